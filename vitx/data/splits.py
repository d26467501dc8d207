"""Which examples train, which select the model, which are reported; and how a split is divided."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitx.data import order
from vitx.data.dataset import Dataset, Examples, Subset
from vitx.errors import ConfigError, nearest

ROLES = ("train", "validation", "test")
VALIDATION = ("validation", "val", "valid", "dev")
# Set aside for the report where a set has no split for it: the same for every seed.
REPORT_SHARE = 0.2


def assign(dataset: Dataset, data: Mapping[str, Any], seed: int) -> dict[str, Examples]:
  """Returns the examples of each role.

  test: the labeled test split, else the validation split, else 20 % of train.
  validation: the validation split if it is not the report, else the share `data.validation` of train.
  train: the split `train` less what was carved from it, then the share `data.fraction` of that.
  `data.splits` overrides each. What is carved is class-balanced and disjoint from what remains.

  Raises:
    ConfigError: a split is missing, unlabeled or used twice; a share lies out of range.
  """
  given = data["splits"]
  unknown = [role for role in given if role not in ROLES]
  if unknown:
    raise ConfigError(f"data.splits.{unknown[0]} is no role. Roles: {', '.join(ROLES)}.")
  check_share("data.fraction", data["fraction"], largest=1.0)
  names = split_names(dataset, {role: given.get(role) or "" for role in ROLES})
  train = dataset.open_split(names["train"])
  result: dict[str, Examples] = {}
  if names["test"]:
    result["test"] = dataset.open_split(names["test"])
  else:
    train, result["test"] = carve(train, REPORT_SHARE, 0, order.REPORT)
  if names["validation"]:
    result["validation"] = dataset.open_split(names["validation"])
  else:
    check_share("data.validation", data["validation"])
    train, result["validation"] = carve(train, data["validation"], seed, order.SELECT)
  if data["fraction"] < 1.0:
    train = fraction(train, data["fraction"], seed)
  return {**result, "train": train}


def check_share(field: str, share: float, largest: float | None = None) -> None:
  """Raises ConfigError unless 0 < share < 1, or share <= largest."""
  if not (0 < share < 1 or share == largest):
    bounds = "0 < share < 1" if largest is None else f"0 < share <= {largest:g}"
    raise ConfigError(f"{field}={share!r} is no share of the training examples: {bounds}.")


def split_names(dataset: Dataset, given: Mapping[str, str]) -> dict[str, str]:
  """Returns the split of each role; "" means that it is carved from train."""
  names = dict(given)
  validation = next((name for name in VALIDATION if name in dataset.splits), "")
  names["train"] = names["train"] or "train"
  names["test"] = names["test"] or ("test" if "test" in dataset.splits else validation)
  if not names["validation"] and _base(names["test"]) != validation:
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


def _base(expression: str) -> str:
  return expression.split("[")[0]


def _check_split(dataset: Dataset, role: str, expression: str) -> None:
  for term in expression.split("+"):
    base = _base(term).strip()
    if base in dataset.unlabeled:
      problem = "has no labels"
    elif base not in dataset.splits:
      problem = "does not exist"
    else:
      continue
    raise ConfigError(
      f"data.splits.{role}={expression!r}: the split {base!r} of {dataset.name!r} {problem}."
      f"{nearest(base, dataset.splits)} Labeled splits: {', '.join(dataset.splits) or 'none'}."
    )


def balanced(labels: np.ndarray, share: float, seed: int, stream: int, spare: int) -> np.ndarray:
  """Chooses the share of each class, at least one example of each, and leaves `spare` of each.

  Each class has one fixed order from which the first are taken, so a smaller share is a subset of a
  larger one.

  Returns:
    bool (n,): the chosen examples.
  """
  mixed = order.shuffled(seed, stream, 0, len(labels))
  by_class = mixed[np.argsort(labels[mixed], kind="stable")]
  counts = np.unique(labels, return_counts=True)[1]
  starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
  most = counts - spare
  take = np.clip(np.floor(counts * share + 0.5).astype(np.int64), np.minimum(1, most), most)
  rank = np.arange(len(labels)) - np.repeat(starts, counts)
  chosen = np.zeros(len(labels), bool)
  chosen[by_class[rank < np.repeat(take, counts)]] = True
  return chosen


def carve(train: Examples, share: float, seed: int, stream: int) -> tuple[Subset, Subset]:
  """Divides a split into (the rest, a class-balanced share); the rest keeps one of each class."""
  chosen: list[np.ndarray] = []

  def choose(carved: bool) -> np.ndarray:
    if not chosen:
      chosen.append(balanced(train.labels, share, seed, stream, spare=1))
    return np.flatnonzero(chosen[0] == carved)

  return Subset(train, lambda: choose(False)), Subset(train, lambda: choose(True))


def fraction(train: Examples, share: float, seed: int) -> Subset:
  """Returns a class-balanced part; a smaller one is a subset of a larger one of the same seed."""
  return Subset(
    train,
    lambda: np.flatnonzero(balanced(train.labels, share, seed, order.FRACTION, spare=0)),
  )
