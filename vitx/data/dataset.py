"""What a data set is before and after its splits get roles, whatever arrays its examples hold."""

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from vitx.config.errors import ConfigError, nearest

ROLES = ("train", "validation", "test")
Example = dict[str, np.ndarray]


@dataclass(frozen=True)
class ArraySpec:
  """One array of an example.

  Attributes:
    shape: without a batch axis; None where it varies from example to example.
    dtype: NumPy's name of it, such as "uint8".
  """

  shape: tuple[int | None, ...]
  dtype: str


@dataclass(frozen=True)
class DatasetInfo:
  """Facts about a data set, known without reading an example.

  Attributes:
    name: as `data.source` writes it.
    spec: the arrays of an example, by their key.
    class_names: (K,), by class number; None if the examples have no classes.
    vocabulary: number of token ids, for sequences of tokens; None for anything else.
    fingerprint: hexadecimal digest of the content, wherever it lies.
    numbered: whether the set says which number each class has; False where that follows from the
      order of the names alone.

  Raises:
    ConfigError: names of classes that are no texts, empty, or the same twice.
  """

  name: str
  spec: Mapping[str, ArraySpec]
  class_names: tuple[str, ...] | None = None
  vocabulary: int | None = None
  fingerprint: str = ""
  numbered: bool = True

  def __post_init__(self):
    names = self.class_names
    if names is not None and (len({*names}) < len(names) or not all(map(_is_name, names))):
      raise ConfigError(
        f"data.source={self.name!r}: class_names={names!r:.200} must be different texts, one for"
        " each class"
      )


def _is_name(name: object) -> bool:
  return isinstance(name, str) and bool(name.strip())


def check_arrays(info: DatasetInfo, reads: Mapping[str, tuple[str, int]], task: str) -> None:
  """Raises ConfigError unless the spec of a set has the arrays that a task reads.

  Args:
    info: of the set.
    reads: dtype and number of axes by key; "integer" stands for every dtype of whole numbers.
    task: its name.
  """
  for name, (dtype, axes) in reads.items():
    found = info.spec.get(name)
    fits = found is not None and found.dtype == dtype
    if found is not None and dtype == "integer":
      fits = re.fullmatch(r"u?int(8|16|32|64)|bool", found.dtype) is not None
    if found is not None and fits and len(found.shape) == axes:
      continue
    said = f"no {name}" if found is None else f"{name} {found.dtype} {found.shape}"
    raise ConfigError(
      f"data.source={info.name!r}: the source's spec says {said}, the task {task!r} takes {name}"
      f" {dtype} of {axes} axes; convert it in the source, and let the spec say so"
    )


class Examples(Protocol):
  """Examples by index; every method may be called from several threads at once.

  They may also have `encoded(i)`, see `read_encoded`.
  """

  @property
  def labels(self) -> np.ndarray | None:
    """Returns the class of each example, int32 (n,), decoding none; None without classes."""

  def __len__(self) -> int: ...

  def __getitem__(self, i: int) -> Example:
    """Returns the arrays of one example. Raises ConfigError naming one that cannot be read."""
    ...

  def name(self, i: int) -> str:
    """Returns a path or an id, for errors and files of predictions."""
    ...


def read_encoded(examples: Examples, i: int) -> dict[str, Any]:
  """Returns an example as it is stored, such as with a `decode.Encoded` in the place of an image.

  It is for transforms whose `takes_encoded` is True. Examples without `encoded` give their arrays.

  Raises:
    ConfigError: naming an example that cannot be read.
  """
  read = getattr(examples, "encoded", None)
  return examples[i] if read is None else read(i)


@dataclass(frozen=True)
class Dataset:
  """A data set as it lies on disk.

  Attributes:
    info: its facts.
    splits: names of the splits that can be used.
    open_split: from a split (or an expression over splits) to its examples.
    unlabeled: names of the splits that cannot be used, for want of labels.
    roles: the splits that may play a role, where their names state it in other words than train,
      validation, val, valid, dev or test.
    unreadable: names of the examples that were left out of the splits which have been opened, see
      `readable.skip_unreadable`.
    hint: a sentence for the error of a split that is missing; "" for none.
    overlap: whether two splits share examples; by default each shares them with itself only.
    carve: from examples and a share to (the rest, the share), for sets whose examples must not be
      drawn one by one, such as texts; None draws them, balanced where they have classes.
  """

  info: DatasetInfo
  splits: tuple[str, ...]
  open_split: Callable[[str], Examples]
  unlabeled: tuple[str, ...] = ()
  roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
  unreadable: Sequence[str] = ()
  hint: str = ""
  overlap: Callable[[str, str], bool] = operator.eq
  carve: Callable[[Examples, float], tuple[Examples, Examples]] | None = None


@dataclass(frozen=True)
class Source:
  """A data set whose examples have roles.

  Attributes:
    info: the facts of the data set.
    train: what the model learns from.
    validation: what chooses between models; disjoint from train.
    test: what the final figures are of, touched once at the end.
    unreadable: names of the examples that were left out, for `data.on_unreadable="skip"`.
  """

  info: DatasetInfo
  train: Examples
  validation: Examples
  test: Examples
  unreadable: tuple[str, ...] = ()

  def role(self, name: str) -> Examples:
    """Returns the examples of a role. Raises ConfigError for any other word."""
    if name not in ROLES:
      raise ConfigError(
        f"split={name!r} is no role.{nearest(name, ROLES)} Roles: {', '.join(ROLES)}."
      )
    return getattr(self, name)


def spread(examples: Examples, count: int) -> Examples:
  """Returns so many examples, at equal distances from each other; all if there are no more."""
  total = len(examples)
  if count >= total:
    return examples
  return Subset(examples, lambda: np.arange(count) * total // count)


class Subset:
  """Some of the examples of another; which ones is decided at the first use."""

  def __init__(self, parent: Examples, choose: Callable[[], np.ndarray]):
    self._parent = parent
    self._choose = choose

  @functools.cached_property
  def indices(self) -> np.ndarray:
    """Returns where in the parent each example stands, int64 (n,)."""
    return self._choose()

  @functools.cached_property
  def labels(self) -> np.ndarray | None:
    labels = self._parent.labels
    return None if labels is None else labels[self.indices]

  def __len__(self) -> int:
    return len(self.indices)

  def __getitem__(self, i: int) -> Example:
    return self._parent[int(self.indices[i])]

  def encoded(self, i: int) -> dict[str, Any]:
    return read_encoded(self._parent, int(self.indices[i]))

  def name(self, i: int) -> str:
    return self._parent.name(int(self.indices[i]))


class Joined:
  """The examples of several others, one after the other."""

  def __init__(self, parts: Sequence[Examples]):
    self._parts = parts
    self._ends = np.cumsum([len(part) for part in parts])

  @functools.cached_property
  def labels(self) -> np.ndarray | None:
    labels = [part.labels for part in self._parts]
    known = [some for some in labels if some is not None]
    return np.concatenate(known) if len(known) == len(labels) else None

  def __len__(self) -> int:
    return int(self._ends[-1])

  def __getitem__(self, i: int) -> Example:
    part, i = self._find(i)
    return part[i]

  def encoded(self, i: int) -> dict[str, Any]:
    part, i = self._find(i)
    return read_encoded(part, i)

  def name(self, i: int) -> str:
    part, i = self._find(i)
    return part.name(i)

  def _find(self, i: int) -> tuple[Examples, int]:
    part = int(np.searchsorted(self._ends, i, side="right"))
    return self._parts[part], i - int(self._ends[part - 1]) if part else i
