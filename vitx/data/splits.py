"""Assigns the examples of splits to the roles train, validation, test and calibration."""

import csv
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from absl import logging

from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.fields import DataSettings, SplitSettings, check_fold
from vitx.config.registry import Table, check_options, lookup
from vitx.data import order
from vitx.data.dataset import CALIBRATION, ROLES, Dataset, Examples, SplitPart
from vitx.data.readable import warn_of_unread
from vitx.data.split_names import NAMES, suggest_name
from vitx.data.strata import choose_balanced, find_folds, find_strata
from vitx.files import reading

# A range of a file that belongs to a split: the file's name, the range's first position, its end.
FileRange = tuple[str, int, int]
FindGroups = Callable[[Examples], Any]
# The share of train that serves as test, independent of the seed, if a set has no split for test.
TEST_SHARE = 0.2


# The valid names of `data.validation_choice`, also in a config that is not trusted.
CHOICES = Table(
  "vitx.configs", sparse_transformer_cifar10="sparse_transformer_cifar10:choose_validation"
)


def assign(dataset: Dataset, data: DataSettings, seed: int) -> dict[str, Examples]:
  """Divides the examples of a data set among the roles train, validation, test and calibration.

  - test: The split `test`; without it the validation split, unless `data.splits.validation` names
    it; without both 20 % of train.
  - validation: The validation split. If there is none, or if it serves as test, validation is the
    share `data.validation` of train, or the examples that `data.validation_choice` chooses.
  - calibration: The share `data.calibration` of train, taken before folds and validation. It does
    not depend on the seed, so that the runs of all folds and seeds have it in common.
  - train: The share `data.fraction` of the split `train` without the examples of the other roles.

  The examples that `data.exclude` names are then left out of the roles that were taken from the
  split `train`. So the other examples keep their roles, and runs with and without it can be paired.

  `data.splits` overrides each choice. One logged line names everything that no role reads.

  Examples that are taken from train for another role are an equal share of each class, if there are
  classes, or of each stratum of `find_strata`, if examples have several. If the data set has a
  function `Dataset.carve`, this function divides the examples instead.

  With `data.groups`, examples of one group are taken together, and the shares are as equal as the
  sizes of the groups allow.

  With `data.folds`, the split `train` is divided into folds, see `find_folds`. Fold `data.fold` is
  test, and validation is taken from the other folds unless `data.splits` names it. The folds do not
  depend on the seed, so that the runs of all folds and seeds test every example of train equally
  often.

  Raises:
    ConfigError: A split is missing, unlabeled or used twice, there are too few examples, or the
      roles share a group.
  """
  has_folds = data.folds is not None or data.fold is not None
  if data.groups is not None and dataset.groups is None:
    dataset = dataclasses.replace(dataset, groups=functools.partial(_match, data.groups))
  names = find_splits(dataset, data.splits, has_folds=has_folds)
  _warn_of_unread(dataset, names)
  whole = dataset.open_split(names["train"])
  train, find_groups = whole, _make_find_groups(dataset, whole)
  if data.exclude and dataset.carve is not None:  # before its texts or sounds are cut
    train = _exclude(data.exclude, whole, {"train": whole})["train"]
  carve = functools.partial(_carve, dataset, find_groups)
  result: dict[str, Examples] = {}
  if names["test"]:
    result["test"] = dataset.open_split(names["test"])
  elif not has_folds:
    train, result["test"] = carve(train, TEST_SHARE, (0, order.TEST))
  if data.calibration:
    train, result[CALIBRATION] = carve(train, data.calibration, (0, order.CALIBRATION))
  if has_folds:
    folds, fold = _read_folds(dataset, train, data)
    train, result["test"] = _divide(
      train, lambda part: find_folds(_classes(part), folds, find_groups(part)) == fold
    )
  if names["validation"]:
    result["validation"] = dataset.open_split(names["validation"])
  elif choose := find_choice(data):
    train, result["validation"] = _divide(train, choose)
  else:
    train, result["validation"] = carve(train, data.validation, (seed, order.VALIDATION))
  # With one seed, a smaller fraction is a subset of a larger one: `carve` keeps the beginning.
  if data.fraction < 1.0 and dataset.carve is not None:
    train, _ = dataset.carve(train, 1.0 - data.fraction)
  elif data.fraction < 1.0:
    _, train = carve(train, data.fraction, (seed, order.FRACTION), spare=0)
  result = {"train": train, **result}
  if data.exclude and dataset.carve is None:
    parts = {x: result[x] for x in result if x == "train" or not names.get(x)}
    result |= _exclude(data.exclude, whole, parts)
  if dataset.groups is not None:
    _check_groups(find_groups, result, whole)
  return result


def read_excluded(path: str) -> list[str]:
  """Returns the sorted names in the column "name" of the CSV file `data.exclude`."""
  problem = f"data.exclude={path!r} cannot be read as a CSV file with a column 'name'"
  with (
    reading(problem),
    open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file,
  ):
    return sorted({row["name"] for row in csv.DictReader(file)})


def _exclude(path: str, whole: Examples, roles: Mapping[str, Examples]) -> dict[str, Examples]:
  """Returns the parts of a split without the examples that a file names, and logs a line."""
  list_names = lambda part: [part.name(i) for i in range(len(part))]  # noqa: E731
  excluded, names = read_excluded(path), list_names(whole)
  known, absent = np.intersect1d(excluded, names), np.setdiff1d(excluded, names)
  if len(excluded) and not len(known):
    raise ConfigError(f"data.exclude={path!r} has no name of train, such as {names[0]!r}.")
  warn_of_unread(path, {"examples of train": known.tolist(), "other names": absent.tolist()})
  is_excluded = lambda part: np.isin(list_names(part), excluded)  # noqa: E731
  left = {role: _divide(part, is_excluded)[0] for role, part in roles.items()}
  if empty := [role for role, part in left.items() if not len(part)]:
    raise ConfigError(f"data.exclude={path!r} leaves no example for {listing(empty)}.")
  return left


def _warn_of_unread(dataset: Dataset, names: Mapping[str, str]) -> None:
  """Logs one line about the splits that no role reads, and what the source left out."""
  read = {base for expression in names.values() for base in find_bases(expression)}
  count = dataset.count or (lambda split: len(dataset.open_split(split)))
  spare = [split for split in dataset.splits if split not in read]
  spare = [f"{split} ({count(split)} examples){suggest_name(split)}" for split in spare]
  splits = {"splits that no role reads": spare, "splits without labels": dataset.unlabeled}
  warn_of_unread(dataset.info.name, {**splits, **dataset.unread})


def find_choice(data: DataSettings) -> Callable[[Examples], np.ndarray] | None:
  """Returns the function that `data.validation_choice` names, or None if the field is not set."""
  name = data.validation_choice
  return None if name is None else lookup(CHOICES, name, "data.validation_choice")


def find_splits(
  dataset: Dataset, expressions: Mapping[str, str], *, has_folds: bool = False
) -> dict[str, str]:
  """Chooses the split of each role; "" means that the role's examples are carved from train.

  Args:
    dataset: The data set.
    expressions: The config's `data.splits`. For a role that is missing or "", a split whose name
      states the role is chosen.
    has_folds: Whether train is divided into folds. Then the test examples, and validation unless it
      is given, are carved from train, and the data set's own splits for these roles stay free.
  """
  check_options(SplitSettings, expressions, "data.splits")
  names = {role: expressions.get(role) or "" for role in ROLES}
  names["train"] = names["train"] or _find_split(dataset, "train") or "train"
  if not has_folds:
    has_both = names["validation"] and names["test"]
    validation = "" if has_both else _find_split(dataset, "validation")
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
  splits = documented[:1] or list(dataset.roles.get(role, ()))
  if len(splits) > 1:
    raise ConfigError(
      f"data.splits.{role} is not set, and {dataset.info.name!r} has several splits for"
      f" this role: {' and '.join(splits)}. Set the field to one of them."
    )
  return splits[0] if splits else ""


def overlap(one: Iterable[FileRange], other: Iterable[FileRange]) -> bool:
  """Returns whether a range of one split overlaps with a range of another split."""
  return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in one for b in other)


def check_ranges(ranges: Iterable[FileRange], expression: str, name: str) -> None:
  """Checks that ranges are disjoint; roles that are carved from them could share examples."""
  if any(overlap([a], [b]) for a, b in itertools.pairwise(sorted(ranges))):
    raise ConfigError(f"data.splits: {expression!r} names a part of {name!r} twice.")


def find_bases(expression: str) -> list[str]:
  """Returns the names of the splits in an expression such as "validation+test[:50%]"."""
  return [term.split("[")[0].strip() for term in expression.split("+")]


def _match(groups: str, name: str) -> str:
  """Returns the text that the expression `data.groups` finds in an example's name: its group."""
  field = f"data.groups={groups!r} is no column of the source"
  with reading(f"{field}, and no regular expression"):
    match = re.search(groups, name)
  if match is None:
    raise ConfigError(f"{field}, and as a regular expression finds nothing in {name!r}.")
  return str(match.groups() or match[0])


def _make_find_groups(dataset: Dataset, whole: Examples) -> FindGroups:
  """Returns a function from examples to their groups (n,) or None, which reads `whole` once."""
  group = dataset.groups
  if group is None:
    return lambda examples: None
  read = lambda examples: np.array([group(examples.name(i)) for i in range(len(examples))])  # noqa: E731
  read_whole = functools.cache(lambda: read(whole))

  def find_groups(examples: Examples) -> np.ndarray:
    if isinstance(examples, SplitPart):
      return find_groups(examples.parent)[examples.indices]
    return read_whole() if examples is whole else read(examples)

  return find_groups


def _check_groups(find_groups: FindGroups, roles: Mapping[str, Examples], whole: Examples) -> None:
  """Checks that no roles share a group; warns if train lost a class, which few groups may have."""
  groups = {role: set(find_groups(part).tolist()) for role, part in roles.items()}
  problems = [f"no group is left for {role}" for role in groups if not groups[role]]
  for a, b in itertools.combinations(groups, 2):
    if shared := groups[a] & groups[b]:
      problems.append(f"{a} and {b} share {len(shared)} groups, such as {min(shared)!r}")
  if problems:
    raise ConfigError(f"data.groups: {'; '.join(problems)}. Change data.folds or data.splits.")
  if whole.labels is not None and whole.labels.ndim > 1:  # their task looks for absent classes
    return
  absent = np.setdiff1d(_classes(whole), _classes(roles["train"]))
  if absent.size:
    logging.warning("train has no example of %d classes, such as number %d", absent.size, absent[0])


def _carve(
  dataset: Dataset,
  find_groups: FindGroups,
  train: Examples,
  share: float,
  draw: tuple[int, int],
  spare: int = 1,
) -> tuple[Examples, Examples]:
  """Returns the rest of a split, and a share for which `draw` has the seed and the stream."""
  if dataset.carve is not None:
    return dataset.carve(train, share)
  return _divide(train, lambda x: choose_balanced(_classes(x), find_groups(x), share, *draw, spare))


def _check_split(dataset: Dataset, role: str, expression: str) -> None:
  for base in find_bases(expression):
    if base in dataset.unlabeled or base not in dataset.splits:
      problem = "has no labels" if base in dataset.unlabeled else "does not exist"
      raise ConfigError(
        f"data.splits.{role}={expression!r}: the split {base!r} of {dataset.info.name!r}"
        f" {problem}.{nearest(base, dataset.splits)} Splits: {', '.join(dataset.splits) or 'none'}."
      )


def _read_folds(dataset: Dataset, train: Examples, data: DataSettings) -> tuple[int, int]:
  """Checks and returns `data.folds` and `data.fold`: the number of folds, the test fold's index."""
  folds, fold, name = data.folds, data.fold, dataset.info.name
  if folds is None:
    raise ConfigError(f"data.fold={fold} needs data.folds, which is not set.")
  fold = check_fold(fold, folds)
  if data.splits.test or dataset.carve is not None:
    raise ConfigError(
      f"data.folds={folds} makes each fold the test split in turn, so it cannot be combined with"
      " data.splits.test, nor with texts or sounds, which are one sequence."
    )
  # Strata of examples of several classes may be too small for each fold.
  labels = train.labels
  classes = labels if labels is not None and labels.ndim == 1 else np.zeros(len(train))
  numbers, counts = np.unique(classes, return_counts=True)
  least, names = int(counts.min(initial=len(train))), dataset.info.class_names
  if least < folds:
    names = names if classes is labels and least else None
    part = f"the class {names[numbers[counts.argmin()]]!r}" if names else "train"
    raise ConfigError(f"data.folds={folds}: {part} of {name!r} has only {least} examples.")
  return folds, fold


def _divide(train: Examples, choose: Callable[[Examples], np.ndarray]) -> tuple[Examples, Examples]:
  """Divides a split where a mask, computed at the first use, is False and where it is True."""
  chosen = functools.cache(lambda: choose(train))
  return (
    SplitPart(train, lambda: np.flatnonzero(~chosen())),
    SplitPart(train, lambda: np.flatnonzero(chosen())),
  )


def _classes(examples: Examples) -> np.ndarray:
  """Returns the class or the stratum of each example; without classes all have class 0."""
  labels = examples.labels
  if labels is None:
    return np.zeros(len(examples), np.int32)
  return find_strata(labels) if labels.ndim == 2 else labels
