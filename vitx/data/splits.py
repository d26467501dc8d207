"""Which examples train, which validate, which test; and how a split is divided."""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vitx.config.checks import check_value
from vitx.config.errors import ConfigError, nearest
from vitx.config.fields import DataSettings, read_fields
from vitx.config.registry import lookup
from vitx.data import order
from vitx.data.dataset import ROLES, Dataset, Examples, Subset
from vitx.data.split_names import NAMES

# Set aside for testing where a set has no split for it, whatever the seed.
TEST_SHARE = 0.2


def _choose_published(recipe: str, train: Examples) -> np.ndarray:
  """Chooses as a paper's code does: by `choose_validation` of the shipped config of its rows."""
  return importlib.import_module(f"vitx.configs.{recipe}").choose_validation(train)


# Functions that `data.validation_choice` names, and a config that nobody vouches for may name.
CHOICES = {
  name: functools.partial(_choose_published, name) for name in ("sparse_transformer_cifar10",)
}


def assign(dataset: Dataset, data: Mapping[str, Any], seed: int) -> dict[str, Examples]:
  """Returns the examples of each role.

  test: the split `test`, else the validation split, else 20 % of train.
  validation: the validation split if it is not the test, else the share `data.validation` of train.
  train: the split `train` less what was carved from it, then the share `data.fraction` of that.
  `data.splits` overrides each. What is carved is disjoint from what remains, and class-balanced
  where the examples have classes; a set with `carve` (sequences) has its own way.

  Raises:
    ConfigError: a split is missing, unlabeled or used twice; a share lies out of range.
  """
  settings = read_fields(DataSettings, data)
  names = find_splits(dataset, data.get("splits", {}))
  train = dataset.open_split(names["train"])
  result: dict[str, Examples] = {}
  if names["test"]:
    result["test"] = dataset.open_split(names["test"])
  else:
    train, result["test"] = _set_apart(dataset, train, TEST_SHARE, 0, order.TEST)
  if names["validation"]:
    result["validation"] = dataset.open_split(names["validation"])
  elif settings.validation_choice is not None:
    choose = lookup(CHOICES, settings.validation_choice, "data.validation_choice")
    train, result["validation"] = _divide(train, functools.partial(choose, train))
  else:
    train, result["validation"] = _set_apart(
      dataset, train, settings.validation, seed, order.VALIDATION
    )
  if settings.fraction < 1.0:
    if dataset.carve is None:
      train = take_fraction(train, settings.fraction, seed)
    else:  # the first part, so a smaller one is a part of a larger one
      train, _ = dataset.carve(train, 1.0 - settings.fraction)
  return {**result, "train": train}


def find_splits(dataset: Dataset, given: Mapping[str, str]) -> dict[str, str]:
  """Returns the split of each role; "" means that it is carved from train.

  Args:
    dataset: whose splits they are.
    given: `data.splits`; a role that is left out or "" is found.

  Raises:
    ConfigError: no role, or a split that is missing, unlabeled or used twice.
  """
  for role in given:
    if role not in ROLES:
      raise ConfigError(f"data.splits.{role} is no role. Roles: {', '.join(ROLES)}.")
    check_value(given[role], f"data.splits.{role}", str | None)
  names = {role: given.get(role) or "" for role in ROLES}
  validation = "" if names["validation"] and names["test"] else _find_split(dataset, "validation")
  names["train"] = names["train"] or _find_split(dataset, "train") or "train"
  names["test"] = names["test"] or _find_split(dataset, "test") or validation
  if not names["validation"] and validation not in find_bases(names["test"]):
    names["validation"] = validation
  for role in ROLES:
    if names[role]:
      _check_split(dataset, role, names[role])
  for a, b in (("train", "validation"), ("train", "test"), ("validation", "test")):
    if names[a] and names[b] and dataset.overlap(names[a], names[b]):
      raise ConfigError(
        f"data.splits.{b}={names[b]!r} shares examples with data.splits.{a}={names[a]!r}."
        " Give each role its own."
      )
  return names


def _find_split(dataset: Dataset, role: str) -> str:
  """Returns the split whose name states a role, "" if none does."""
  documented = [name for name in NAMES[role] if name in dataset.splits]
  found = documented[:1] or list(dataset.roles.get(role, ()))
  if len(found) > 1:
    raise ConfigError(
      f"data.splits.{role} is not set, and {dataset.info.name!r} has {' and '.join(found)}; set it"
      " to the one that is meant"
    )
  return found[0] if found else ""


def find_bases(expression: str) -> list[str]:
  """Returns the splits that an expression such as "validation+test[:50%]" takes from."""
  return [term.split("[")[0].strip() for term in expression.split("+")]


def _set_apart(
  dataset: Dataset, train: Examples, share: float, seed: int, stream: int
) -> tuple[Examples, Examples]:
  if dataset.carve is not None:
    return dataset.carve(train, share)
  return carve(train, share, seed, stream)


def _check_split(dataset: Dataset, role: str, expression: str) -> None:
  for base in find_bases(expression):
    if base in dataset.unlabeled:
      problem = "has no labels"
    elif base not in dataset.splits:
      problem = "does not exist"
    else:
      continue
    raise ConfigError(
      f"data.splits.{role}={expression!r}: the split {base!r} of {dataset.info.name!r} {problem}."
      f"{nearest(base, dataset.splits)} Splits: {', '.join(dataset.splits) or 'none'}."
      f"{dataset.hint}"
    )


def choose_balanced(
  classes: np.ndarray, share: float, seed: int, stream: int, spare: int
) -> np.ndarray:
  """Chooses the share of each class, at least one example of each, and leaves `spare` of each.

  Each class has one fixed order from which the first are taken, so a smaller share is a subset of a
  larger one.

  Args:
    classes: (n,), the class of each example.
    share: between 0 and 1.
    seed: of the order.
    stream: which decision this is, see `order`.
    spare: examples of each class that are not chosen.

  Returns:
    bool (n,): the chosen examples.
  """
  shuffled = order.shuffle(seed, stream, 0, len(classes))
  by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
  counts = np.unique(classes, return_counts=True)[1]
  starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
  most = counts - spare
  take = np.clip(np.floor(counts * share + 0.5).astype(np.int64), np.minimum(1, most), most)
  rank = np.arange(len(classes)) - np.repeat(starts, counts)
  chosen = np.zeros(len(classes), bool)
  chosen[by_class[rank < np.repeat(take, counts)]] = True
  return chosen


def carve(train: Examples, share: float, seed: int, stream: int) -> tuple[Subset, Subset]:
  """Divides a split into (the rest, a share), balanced; the rest keeps one of each class."""
  return _divide(train, lambda: choose_balanced(_classes(train), share, seed, stream, spare=1))


def _divide(train: Examples, choose: Callable[[], np.ndarray]) -> tuple[Subset, Subset]:
  """Divides a split into (the rest, what is chosen), by booleans (n,) found at the first use."""
  chosen = functools.cache(choose)
  return (
    Subset(train, lambda: np.flatnonzero(~chosen())),
    Subset(train, lambda: np.flatnonzero(chosen())),
  )


def take_fraction(train: Examples, share: float, seed: int) -> Subset:
  """Returns a balanced part; a smaller one is a subset of a larger one of the same seed."""

  def choose() -> np.ndarray:
    return np.flatnonzero(choose_balanced(_classes(train), share, seed, order.FRACTION, spare=0))

  return Subset(train, choose)


def _classes(examples: Examples) -> np.ndarray:
  """Returns the class of each example; without classes all are of one."""
  return np.zeros(len(examples), np.int32) if examples.labels is None else examples.labels
