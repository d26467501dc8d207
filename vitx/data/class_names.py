"""Names of classes: putting them in order, and matching the classes of two lists.

A label is an index into a list of names. If there are two lists, such as those of a model and of a
data set, classes are matched by name and never by index alone.
"""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError, listing
from vitx.data.dataset import Dataset, DatasetInfo, Example, Examples, Subset
from vitx.files import reading

FILE = "classes.txt"  # the list of classes in order, in a folder or beside a file of weights
CLASS = "ClassLabel"  # the kind of a column of classes in TFDS and in the library datasets
LISTED = 5  # an error shows this many names
_NUMBERED = re.compile(r"(\D*)(\d+)(\D*)", re.ASCII)
_WORDNET = re.compile(r"\A(n\d{8})(?:[\s,:].*)?\Z", re.ASCII)  # an id, and a comment after it


def normalize(name: str) -> str:
  """Returns a name in Unicode's composed form, since file systems encode accents in two ways."""
  return unicodedata.normalize("NFC", name)


def sort_names(names: Sequence[str]) -> tuple[str, ...]:
  """Sorts names: by their numbers if they differ in one number only, else by their characters."""
  numbers = _read_numbers(names)
  return tuple(sorted(names) if numbers is None else sorted(names, key=lambda n: (numbers[n], n)))


def are_numbered(names: Sequence[str]) -> bool:
  """Returns whether the number of each class follows from the names.

  It does if the names contain consecutive numbers from 0 or 1 with equal text around them, like
  "class1" and "class2", or if they are the WordNet ids of all 1,000 ImageNet classes.
  """
  numbers = sorted((_read_numbers(names) or {}).values())
  in_a_row = numbers in (list(range(len(names))), list(range(1, len(names) + 1)))
  return in_a_row or set(names) == imagenet_labels().keys()


def _read_numbers(names: Sequence[str]) -> dict[str, int] | None:
  """Returns the number in each name, by name; None if they differ in anything but a number."""
  matches = {name: _NUMBERED.fullmatch(name) for name in names}
  around = {match and (match[1], match[3]) for match in matches.values()}
  if None in around or len(around) != 1:
    return None
  return {name: int(match[2]) for name, match in matches.items() if match}


@functools.cache
def imagenet_labels() -> dict[str, int]:
  """Returns the label, 0 ... 999, of each ImageNet class by its WordNet id."""
  from tensorflow_datasets.core.utils import resource_utils

  path = resource_utils.tfds_path("datasets/imagenet2012/labels.txt")
  return {name: i for i, name in enumerate(path.read_text().split())}


def read_names(path: Path) -> tuple[str, ...] | None:
  """Reads class names from a file with one name per line; returns None if it does not exist.

  Text after a WordNet id (`n01440764 tench`) is a comment and left out.
  """
  if not path.exists():
    return None
  with reading(f"{path} cannot be read as a list of classes"):
    text = path.read_bytes().decode("utf-8-sig")
  lines = [normalize(line.strip()) for line in text.splitlines() if line.strip()]
  names = [_WORDNET.sub(r"\1", line) for line in lines]
  repeated = [name for name in names if names.count(name) > 1]
  if repeated or not names:
    problem = f"names {repeated[0]!r} twice" if repeated else "names no class"
    raise ConfigError(f"{path} {problem}.")
  return tuple(names)


def order_names(field: str, stated: Sequence[str] | None, present: Set[str]) -> tuple[str, ...]:
  """Returns the names in the order of `classes.txt` or, if it states none, of `sort_names`."""
  unlisted = present - set(stated or present)
  if unlisted:
    raise ConfigError(f"{field}: {FILE} does not list the classes {listing(sorted(unlisted)[:5])}.")
  return tuple(stated or sort_names([*present]))


def fit_lines(names: Sequence[str]) -> bool:
  """Returns whether `read_names` would restore these names from a file with one name per line."""
  lines = [line.strip() for name in names for line in name.splitlines()]
  return lines == [_WORDNET.sub(r"\1", name) for name in names] == list(names)


def match_classes(
  info: DatasetInfo, others: Sequence[str], *, unnamed: bool = False
) -> np.ndarray | None:
  """Matches the classes of a data set by name to another list of class names.

  ImageNet's classes also match if one list has WordNet ids and the other all numbers "0" ... "999".

  Args:
    info: The facts about the data set, with its class names.
    others: The names of the classes of a model or of another data set.
    unnamed: Whether `others` has only the texts "0", "1", ... because the real names are unknown.
      In this case label i of the data set matches class i if `info.numbered` is True and there are
      equally many classes.

  Returns:
    The index in `others` of each class of the data set, int32 (K,); None if `others` lacks a class.
  """
  ours, theirs = _make_keys(info.class_names or ()), _make_keys(others)
  place, known = {name: i for i, name in enumerate(theirs)}, imagenet_labels()
  if all(name in place for name in ours):
    return np.array([place[name] for name in ours], np.int32)
  if _are_numbers(theirs, len(known)) and all(name in known for name in ours):
    return np.array([place[str(known[name])] for name in ours], np.int32)
  if _are_numbers(ours, len(known)) and place.keys() == known.keys():
    ids = list(known)
    return np.array([place[ids[int(number)]] for number in ours], np.int32)
  if unnamed and info.numbered and _are_numbers(theirs, len(ours)):
    return np.array([place[str(i)] for i in range(len(ours))], np.int32)
  return None


def choose_label(columns: Sequence[str] | None, kinds: Mapping[str, str], *others: str) -> str:
  """Returns the column of a data set that contains the classes; "" if it is not certain.

  Args:
    columns: The config's `data.label_columns`; None takes every column of the kind ClassLabel.
    kinds: The kind of each column of the data set, by its name.
    others: The kinds of columns that may be chosen, besides ClassLabel.
  """
  valid = [column for column, kind in kinds.items() if kind in (CLASS, *others)]
  if columns is None:
    columns = [column for column in valid if kinds[column] == CLASS]
  for column in columns:
    check_choice(column, "data.label_columns", valid)
  return columns[0] if len(columns) == 1 else ""


def hint_label(kinds: Mapping[str, str], valid: str) -> str:
  """Returns the `DatasetInfo.hint` about the columns that `choose_label` can choose."""
  stated = listing(f"{column} ({kind})" for column, kind in kinds.items())
  return f" data.label_columns can name one column of the kind {valid}; the columns are {stated}."


def find_in_weights(
  info: DatasetInfo, source: str, names: Sequence[str] | None, count: int
) -> np.ndarray | str:
  """Matches the classes of a data set to the outputs of a classifier with given weights.

  Args:
    info: The facts about the data set, which has classes.
    source: The path of the weights: a workdir or a file.
    names: The names of the weights' classes; None if they are unknown. For a file of weights, a
      file `classes.txt` beside it may list them.
    count: The number of outputs of the weights' classification layer.

  Returns:
    The index of the output for each class of the data set, int32 (K,); or a text with the reason if
    the classes do not match.
  """
  classes = info.class_names or ()
  if not names and Path(source).is_file():
    beside = Path(source).parent / FILE
    names = read_names(beside)
    if names is not None and len(names) != count:
      raise ConfigError(f"{beside} names {len(names)} classes, but {source} has {count}.")
  if not names and count == len(imagenet_labels()) and imagenet_labels().keys() >= {*classes}:
    names = list(imagenet_labels())
  if names:
    indices = match_classes(info, names)
    reason = f"other classes ({compare(classes, names, 'data', 'source')})"
    return reason if indices is None else indices
  if info.numbered and len(classes) == count:
    return np.arange(count, dtype=np.int32)
  return (
    f"{source} does not name its classes, and the classes of {info.name!r} have no"
    " numbers other than the order of their names; list the classes of the head in"
    f" {FILE} beside the weights, one name on each line"
  )


def _are_numbers(keys: Sequence[str], count: int) -> bool:
  """Returns whether the names are the numbers 0 ... count-1 in some order."""
  return set(keys) == {str(i) for i in range(count)}


def _make_keys(names: Sequence[str]) -> list[str]:
  """Normalizes names for comparison: if all names are numbers, "07" becomes "7"."""
  composed = [normalize(name) for name in names]
  if all(name.isascii() and name.isdecimal() for name in composed):
    numbers = [str(int(name)) for name in composed]
    return numbers if len(set(numbers)) == len(numbers) else composed
  return composed


def compare(names: Sequence[str], others: Sequence[str], title: str, other_title: str) -> str:
  """Returns a text with up to 5 names that only one of two lists has; the titles name the lists."""
  ours, theirs = set(_make_keys(names)), set(_make_keys(others))
  missing = [name for name in _make_keys(others) if name not in ours][:LISTED]
  extra = [name for name in _make_keys(names) if name not in theirs][:LISTED]
  return f"not in the {title}: {missing or 'none'}; not in the {other_title}: {extra or 'none'}"


def renumber(dataset: Dataset, names: Sequence[str], *, unnamed: bool = False) -> Dataset | None:
  """Returns a data set whose labels are indices into another list of class names.

  The result is None if the list lacks a class; `unnamed` is explained at `match_classes`.
  """
  indices = match_classes(dataset.info, names, unnamed=unnamed)
  if indices is None:
    return None
  renamed = dataclasses.replace(
    dataset, info=dataclasses.replace(dataset.info, class_names=tuple(names))
  )
  if np.array_equal(indices, np.arange(len(indices))):
    return renamed
  return dataclasses.replace(
    renamed,
    open_split=lambda expression: Renumbered(dataset.open_split(expression), indices, len(names)),
  )


class Renumbered(Subset):
  """Examples whose labels are replaced by indices (K,) into another list of `count` class names."""

  def __init__(self, parent: Examples, indices: np.ndarray, count: int):
    super().__init__(parent, lambda: np.arange(len(parent)))
    self._indices = indices
    self._count = count

  @functools.cached_property
  def labels(self) -> np.ndarray | None:
    labels = self.parent.labels
    if labels is None or labels.ndim == 1:
      return None if labels is None else self._indices[labels]
    return self._renumber({"labels": labels})["labels"]

  def __getitem__(self, i: int) -> Example:
    return self._renumber(super().__getitem__(i))

  def encoded(self, i: int) -> dict[str, Any]:
    return self._renumber(super().encoded(i))

  def _renumber(self, example: dict[str, Any]) -> dict[str, Any]:
    if "label" in example:
      return {**example, "label": self._indices[example["label"]]}
    known = example["labels"]  # an example may have several classes
    labels = np.zeros((*known.shape[:-1], self._count), np.float32)
    labels[..., self._indices] = known
    return {**example, "labels": labels}
