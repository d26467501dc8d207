"""Assigns examples to the roles train, validation and test, and divides splits for this."""

import functools
import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError, nearest
from vitx.config.fields import DataSettings, SplitSettings, check_fold, read_fields
from vitx.config.registry import check_options, lookup
from vitx.data import order
from vitx.data.dataset import ROLES, Dataset, Examples, Subset
from vitx.data.split_names import NAMES

# A range of a file that belongs to a split: the file's name, the range's first position, its end.
FileRange = tuple[str, int, int]
# The share of train that serves as test, independent of the seed, if a set has no split for test.
TEST_SHARE = 0.2


def _choose_as_sparse_transformer(train: Examples) -> np.ndarray:
  """Chooses the validation examples of CIFAR-10 as the code of the Sparse Transformer does.

  Args:
    train: The training examples.

  Returns:
    A mask of the chosen examples, bool (n,).
  """
  recipe = importlib.import_module("vitx.configs.sparse_transformer_cifar10")
  return recipe.choose_validation(train)


# The valid names of `data.validation_choice`, also in a config that is not trusted.
CHOICES = {"sparse_transformer_cifar10": _choose_as_sparse_transformer}


def assign(dataset: Dataset, data: Mapping[str, Any], seed: int) -> dict[str, Examples]:
  """Divides the examples of a data set among the roles train, validation and test.

  - test: The split `test`; without it the validation split, unless `data.splits.validation` names
    it; without both 20 % of train.
  - validation: The validation split. If there is none, or if it serves as test, validation is the
    share `data.validation` of train, or the examples that `data.validation_choice` chooses.
  - train: The share `data.fraction` of the split `train` without the examples of the other roles.

  `data.splits` overrides each choice. Examples that are taken from train for another role are an
  equal share of each class, if there are classes. If the data set has a function `Dataset.carve`,
  this function divides the examples instead.

  With `data.folds`, the split `train` is divided into folds, see `find_folds`. Fold `data.fold` is
  test, and validation is taken from the other folds unless `data.splits` names it. The folds do not
  depend on the seed, so that the runs of all folds and seeds test every example of train equally
  often.

  Args:
    dataset: The data set.
    data: The config's `data`.
    seed: The data seed.

  Returns:
    The examples of each role, by its name.

  Raises:
    ConfigError: A split is missing, unlabeled or used twice, a share is out of range, or the
      examples cannot be divided into the folds.
  """
  settings = read_fields(DataSettings, data)
  given = data.get("splits", {})
  has_folds = settings.folds is not None or settings.fold is not None
  names = find_splits(dataset, given, has_folds=has_folds)
  train = _open_split(dataset, names["train"])
  result: dict[str, Examples] = {}
  if has_folds:
    folds, fold = _read_folds(dataset, train, settings, given)
    train, result["test"] = _divide(train, lambda own: find_folds(_classes(own), folds) == fold)
  elif names["test"]:
    result["test"] = _open_split(dataset, names["test"])
  else:
    train, result["test"] = _carve(dataset, train, TEST_SHARE, 0, order.TEST)
  if names["validation"]:
    result["validation"] = _open_split(dataset, names["validation"])
  elif choose := find_choice(data):
    train, result["validation"] = _divide(train, choose)
  else:
    share = settings.validation
    train, result["validation"] = _carve(dataset, train, share, seed, order.VALIDATION)
  # With one seed, a smaller fraction is a subset of a larger one: `carve` keeps the beginning.
  if settings.fraction < 1.0 and dataset.carve is not None:
    train, _ = dataset.carve(train, 1.0 - settings.fraction)
  elif settings.fraction < 1.0:
    _, train = _carve(dataset, train, settings.fraction, seed, order.FRACTION, spare=0)
  return {**result, "train": train}


def find_choice(data: Mapping[str, Any]) -> Callable[[Examples], np.ndarray] | None:
  """Returns the function that `data.validation_choice` names, or None if the field is not set.

  Raises:
    ConfigError: The name is unknown, or the function cannot be imported.
  """
  name = read_fields(DataSettings, data).validation_choice
  return None if name is None else lookup(CHOICES, name, "data.validation_choice")


def find_splits(
  dataset: Dataset, given: Mapping[str, str], *, has_folds: bool = False
) -> dict[str, str]:
  """Chooses the split of each role; "" means that the role's examples are carved from train.

  Args:
    dataset: The data set.
    given: The config's `data.splits`. For a role that is missing or "", a split whose name states
      the role is chosen.
    has_folds: Whether train is divided into folds. Then the test examples, and validation unless it
      is given, are carved from train, and the data set's own splits for these roles stay free.

  Raises:
    ConfigError: A key is not a role, or a split is missing, unlabeled or used twice.
  """
  check_options(SplitSettings, given, "data.splits")
  read_fields(SplitSettings, given, "data.splits")
  names = {role: given.get(role) or "" for role in ROLES}
  names["train"] = names["train"] or _find_split(dataset, "train") or "train"
  if not has_folds:
    is_given = names["validation"] and names["test"]
    validation = "" if is_given else _find_split(dataset, "validation")
    spare = "" if validation in find_bases(names["validation"]) else validation
    names["test"] = names["test"] or _find_split(dataset, "test") or spare
    if not names["validation"] and validation not in find_bases(names["test"]):
      names["validation"] = validation
  for role in ROLES:
    if names[role]:
      _check_split(dataset, role, names[role])
  for a, b in itertools.combinations(ROLES, 2):
    if names[a] and names[b] and dataset.overlap(names[a], names[b]):
      raise ConfigError(
        f"data.splits.{b}={names[b]!r} shares examples with data.splits.{a}={names[a]!r}."
        " Give each role examples of its own."
      )
  return names


def _find_split(dataset: Dataset, role: str) -> str:
  """Returns the split whose name states a role, or "" if there is none."""
  documented = [name for name in NAMES[role] if name in dataset.splits]
  found = documented[:1] or list(dataset.roles.get(role, ()))
  if len(found) > 1:
    raise ConfigError(
      f"data.splits.{role} is not set, and {dataset.info.name!r} has several splits for"
      f" this role: {' and '.join(found)}. Set the field to one of them."
    )
  return found[0] if found else ""


def overlap(one: Iterable[FileRange], other: Iterable[FileRange]) -> bool:
  """Returns whether a range of one split overlaps with a range of another split."""
  return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in one for b in other)


def check_ranges(ranges: Iterable[FileRange], expression: str, name: str) -> None:
  """Checks that the ranges of a split expression, such as "train[:50%]+train[40%:]", are disjoint.

  Args:
    ranges: The ranges of examples.
    expression: The split expression, for the error.
    name: The name of the data set, for the error.

  Raises:
    ConfigError: Two ranges overlap.
  """
  if any(overlap([a], [b]) for a, b in itertools.pairwise(sorted(ranges))):
    raise ConfigError(
      f"data.splits: {expression!r} names a part of {name!r} twice. Name each part once,"
      " because two roles that are carved from the split could otherwise share examples."
    )


def find_bases(expression: str) -> list[str]:
  """Returns the names of the splits in an expression such as "validation+test[:50%]"."""
  return [term.split("[")[0].strip() for term in expression.split("+")]


def _carve(
  dataset: Dataset, train: Examples, share: float, seed: int, stream: int, spare: int = 1
) -> tuple[Examples, Examples]:
  """Takes a share of a split for another role, an equal share of each class if there are classes.

  Args:
    dataset: The data set, which may have a function of its own for this, `Dataset.carve`.
    train: The examples of the split.
    share: The share to take, in 0..1.
    seed: The seed of the choice.
    stream: The number of the stream of random bits, see `order.generator`.
    spare: The minimum number of examples of each class that are not taken.

  Returns:
    The examples that were not taken, and the examples that were.
  """
  if dataset.carve is not None:
    return dataset.carve(train, share)
  return _divide(train, lambda own: choose_balanced(_classes(own), share, seed, stream, spare))


def _open_split(dataset: Dataset, expression: str) -> Examples:
  """Opens a split; a source that knows names alone raises KeyError for any other expression."""
  try:
    return dataset.open_split(expression)
  except KeyError as error:
    if expression in dataset.splits:
      raise
    raise ConfigError(
      f"data.splits: {dataset.info.name!r} has no split {expression!r}, as its splits can neither"
      f" be joined nor sliced. Name one of them: {', '.join(dataset.splits)}."
    ) from error


def _check_split(dataset: Dataset, role: str, expression: str) -> None:
  for base in find_bases(expression):
    if base in dataset.unlabeled:
      problem = "has no labels"
    elif base not in dataset.splits:
      problem = "does not exist"
    else:
      continue
    raise ConfigError(
      f"data.splits.{role}={expression!r}: the split {base!r} of {dataset.info.name!r}"
      f" {problem}.{nearest(base, dataset.splits)} Splits:"
      f" {', '.join(dataset.splits) or 'none'}.{dataset.hint}"
    )


def choose_balanced(
  classes: np.ndarray, share: float, seed: int, stream: int, spare: int
) -> np.ndarray:
  """Chooses a share of the examples of each class at random.

  At least one example of each class is chosen if `spare` allows it. The chosen examples are the
  first in a random order that depends on the seed alone, so a smaller share is a subset of a larger
  one.

  Args:
    classes: The class of each example, (n,).
    share: The share, between 0 and 1.
    seed: The seed of the order.
    stream: The number of the stream of random bits, see `order.generator`.
    spare: The minimum number of examples of each class that are not chosen.

  Returns:
    A mask of the chosen examples, bool (n,).
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


def find_folds(classes: np.ndarray, folds: int) -> np.ndarray:
  """Divides examples into folds whose sizes, in total and per class, differ by at most one.

  The division depends on the classes and the number of examples alone, not on a seed.

  Args:
    classes: The class of each example, (n,).
    folds: The number of folds.

  Returns:
    The fold of each example, int (n,).
  """
  shuffled = order.shuffle(0, order.FOLDS, 0, len(classes))
  by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
  result = np.empty(len(classes), np.int64)
  result[by_class] = np.arange(len(classes)) % folds
  return result


def _read_folds(
  dataset: Dataset, train: Examples, settings: DataSettings, given: Mapping[str, Any]
) -> tuple[int, int]:
  """Checks and returns `data.folds` and `data.fold`: the number of folds, the test fold's index.

  Raises:
    ConfigError: The fields contradict each other, or a class has fewer examples than folds.
  """
  folds, fold, name = settings.folds, settings.fold, dataset.info.name
  if folds is None:
    raise ConfigError(
      f"data.fold={fold} needs data.folds, which is not set; set it, such as data.folds=5."
    )
  fold = check_fold(fold, folds)
  if given.get("test"):
    raise ConfigError(
      f"data.splits.test={given['test']!r} and data.folds={folds} both name the test examples;"
      " leave one of these fields out."
    )
  if dataset.carve is not None:
    raise ConfigError(
      f"data.folds={folds}: the examples of {name!r} are parts of a sequence, which has no folds;"
      " leave data.folds and data.fold out."
    )
  numbers, counts = np.unique(_classes(train), return_counts=True)
  least, names = int(counts.min(initial=len(train))), dataset.info.class_names
  if least < folds:
    what = f"the class {names[numbers[counts.argmin()]]!r}" if names and least else "train"
    raise ConfigError(
      f"data.folds={folds}: {what} of {name!r} has {least} examples, fewer than the folds; lower"
      f" data.folds{f' to {least}' if least > 1 else ''}, or add examples."
    )
  return folds, fold


def _divide(train: Examples, choose: Callable[[Examples], np.ndarray]) -> tuple[Subset, Subset]:
  """Divides a split in two by a mask that is computed when either part is first used.

  Args:
    train: The examples, n of them.
    choose: A function from the examples to the mask, bool (n,).

  Returns:
    The examples where the mask is False, and those where it is True.
  """
  chosen = functools.cache(lambda: choose(train))
  return (
    Subset(train, lambda: np.flatnonzero(~chosen())),
    Subset(train, lambda: np.flatnonzero(chosen())),
  )


def _classes(examples: Examples) -> np.ndarray:
  """Returns the class of each example; without classes all examples have class 0."""
  return np.zeros(len(examples), np.int32) if examples.labels is None else examples.labels
