"""Classes by their names: how a folder's are ordered, and where those of one list stand in another.

Labels are places in a list of names. Wherever two lists meet (a model and a data set, the weights
that a run begins from and its own data) a class is found by its name, never by its place alone.
"""

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorflow_datasets.core.utils import resource_utils

from vitx.config.errors import ConfigError
from vitx.data.dataset import Dataset, DatasetInfo, Example, Examples, Subset
from vitx.files import read_bytes

FILE = "classes.txt"  # names the classes in their order, in a folder or beside a file of weights
LISTED = 5  # names that an error shows
_NUMBERED = re.compile(r"(\D*)(\d+)(\D*)", re.ASCII)
_WORDNET = re.compile(r"(n\d{8})(?:[\s,:].*)?", re.ASCII)


def normalize(name: str) -> str:
  """Returns a name with its accents composed: file systems differ in how they write them."""
  return unicodedata.normalize("NFC", name)


def sort_names(names: Sequence[str]) -> tuple[str, ...]:
  """Returns names in order: numbered ones by their number, others by their characters."""
  numbers = _read_numbers(names)
  return tuple(sorted(names) if numbers is None else sorted(names, key=lambda n: (numbers[n], n)))


def are_numbered(names: Sequence[str]) -> bool:
  """Returns whether names alone say which number each class has.

  So do numbers in a row from 0 or 1, with the same text around each, and all of ImageNet's names.
  """
  numbers = sorted((_read_numbers(names) or {}).values())
  in_a_row = numbers in (list(range(len(names))), list(range(1, len(names) + 1)))
  return in_a_row or set(names) == imagenet_places().keys()


def _read_numbers(names: Sequence[str]) -> dict[str, int] | None:
  """Returns the number in each name; None unless all differ in one number only."""
  found = {name: _NUMBERED.fullmatch(name) for name in names}
  around = {match and (match[1], match[3]) for match in found.values()}
  if None in around or len(around) != 1:
    return None
  return {name: int(match[2]) for name, match in found.items() if match}


@functools.cache
def imagenet_places() -> dict[str, int]:
  """Returns the number that each of ImageNet's 1,000 classes has, by its WordNet id."""
  path = resource_utils.tfds_path("datasets/imagenet2012/labels.txt")
  return {name: i for i, name in enumerate(path.read_text().split())}


def read_names(path: Path) -> tuple[str, ...] | None:
  """Returns the class names that a file lists, one a line; None if there is no such file.

  What follows a WordNet id on its line (`n01440764 tench`) is for people and left out.

  Raises:
    ConfigError: it is no text, names no class or one of them twice.
  """
  try:
    text = read_bytes(path).decode("utf-8-sig")
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    raise ConfigError(f"{path} cannot be read as a list of classes: {error}") from error
  lines = [normalize(line.strip()) for line in text.splitlines() if line.strip()]
  ids = [_WORDNET.fullmatch(line) for line in lines]
  names = [line if match is None else match[1] for line, match in zip(lines, ids, strict=True)]
  twice = next((name for name in names if names.count(name) > 1), None)
  if twice is not None or not names:
    problem = "names no class" if twice is None else f"names {twice!r} twice"
    raise ConfigError(f"{path} {problem}; write the name of each class on a line of its own")
  return tuple(names)


def fit_lines(names: Sequence[str]) -> bool:
  """Returns whether `read_names` would give these names back, were each written to a line."""
  ids = [_WORDNET.fullmatch(name) for name in names]
  lines = [name if match is None else match[1] for name, match in zip(names, ids, strict=True)]
  return [line.strip() for name in names for line in name.splitlines()] == lines == list(names)


def find_places(
  info: DatasetInfo, others: Sequence[str], *, unnamed: bool = False
) -> np.ndarray | None:
  """Returns where each class of a data set stands in another list of names, int32 (K,).

  Of ImageNet's classes the names are their WordNet ids, or all their numbers from 0.

  Args:
    info: of the data set.
    others: the names of a model's classes, or of another data set's.
    unnamed: whether those are the numbers from 0 for want of names; then they are places in the
      order of the data set, if it numbers its classes itself.

  Returns:
    None if one of its classes has no place there.
  """
  own, theirs = _keys(info.class_names or ()), _keys(others)
  place, known = {name: i for i, name in enumerate(theirs)}, imagenet_places()
  if all(name in place for name in own):
    return np.array([place[name] for name in own], np.int32)
  if _are_places(theirs, len(known)) and all(name in known for name in own):
    return np.array([place[str(known[name])] for name in own], np.int32)
  if _are_places(own, len(known)) and place.keys() == known.keys():
    ids = list(known)
    return np.array([place[ids[int(number)]] for number in own], np.int32)
  if unnamed and info.numbered and _are_places(theirs, len(own)):
    return np.array([place[str(i)] for i in range(len(own))], np.int32)
  return None


def find_in_weights(
  info: DatasetInfo, source: str, names: Sequence[str] | None, count: int
) -> np.ndarray | str:
  """Returns where each class of a data set stands in the head of some weights, or why it does not.

  Args:
    info: of the data set, which has classes.
    source: the workdir or the file of the weights.
    names: of their classes; None if it does not know them. `classes.txt` may name those of a file.
    count: of the classes that the head knows.

  Returns:
    int32 (K,), or a reason in words.

  Raises:
    ConfigError: `classes.txt` is no list, or one of another length.
  """
  own = info.class_names or ()
  if not names and Path(source).is_file():
    beside = Path(source).parent / FILE
    names = read_names(beside)
    if names is not None and len(names) != count:
      raise ConfigError(
        f"{beside} names {len(names)} classes, and the head of {source} knows {count}; list those"
        " of the head in their order, a name a line, or move the file away"
      )
  if not names and count == len(imagenet_places()) and imagenet_places().keys() >= {*own}:
    names = list(imagenet_places())
  if names:
    places = find_places(info, names)
    return f"other classes ({compare(own, names, 'data', 'source')})" if places is None else places
  if info.numbered and len(own) == count:
    return np.arange(count, dtype=np.int32)
  return (
    f"{source} does not name its classes, and those of {info.name!r} have no numbers but by the"
    f" order of their names; list the head's classes in {FILE} beside the weights, a name a line"
  )


def _are_places(keys: Sequence[str], count: int) -> bool:
  """Returns whether names are the numbers from 0 of so many classes."""
  return set(keys) == {str(i) for i in range(count)}


def _keys(names: Sequence[str]) -> list[str]:
  """Returns what tells names apart: 07 is 7 where all are numbers."""
  composed = [normalize(name) for name in names]
  if all(name.isascii() and name.isdecimal() for name in composed):
    numbers = [str(int(name)) for name in composed]
    return numbers if len(set(numbers)) == len(numbers) else composed
  return composed


def compare(names: Sequence[str], others: Sequence[str], what: str, other: str) -> str:
  """Returns which names each of two lists has alone, in words."""
  own, theirs = set(_keys(names)), set(_keys(others))
  missing = [name for name in _keys(others) if name not in own][:LISTED]
  extra = [name for name in _keys(names) if name not in theirs][:LISTED]
  return f"not in the {what}: {missing or 'none'}; not in the {other}: {extra or 'none'}"


def renumber(dataset: Dataset, names: Sequence[str], *, unnamed: bool = False) -> Dataset | None:
  """Returns a data set whose labels are places in another list; None if a class is not there.

  Args:
    dataset: with classes.
    names: of the list.
    unnamed: as of `find_places`.
  """
  places = find_places(dataset.info, names, unnamed=unnamed)
  if places is None:
    return None
  found = dataclasses.replace(
    dataset, info=dataclasses.replace(dataset.info, class_names=tuple(names))
  )
  if np.array_equal(places, np.arange(len(places))):
    return found
  return dataclasses.replace(
    found, open_split=lambda expression: Renumbered(dataset.open_split(expression), places)
  )


class Renumbered(Subset):
  """Examples whose labels are places in another list of classes."""

  def __init__(self, parent: Examples, places: np.ndarray):
    super().__init__(parent, lambda: np.arange(len(parent)))
    self._places = places

  @functools.cached_property
  def labels(self) -> np.ndarray | None:
    labels = self._parent.labels
    return None if labels is None else self._places[labels]

  def __getitem__(self, i: int) -> Example:
    return self._renumber(super().__getitem__(i))

  def encoded(self, i: int) -> dict[str, Any]:
    return self._renumber(super().encoded(i))

  def _renumber(self, example: dict[str, Any]) -> dict[str, Any]:
    return {**example, "label": self._places[example["label"]]}
