"""Types for data sets, which do not depend on the contents of an example.

A data set consists of splits, which may have any names. A run needs examples for three roles:
train, from which the model learns; validation, which chooses between models; and test, which gives
the final results. A fourth, calibration, is empty unless the config asks for it. `splits.assign`
takes the examples of each role from the splits.
"""

import bisect
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from vitx.config.errors import ConfigError

ROLES = ("train", "validation", "test")
CALIBRATION = "calibration"  # the role of the examples that calibrate prediction sets
_INTEGER = r"u?int(8|16|32|64)|bool"  # matches the names of dtypes
Example = dict[str, np.ndarray]


@dataclass(frozen=True)
class ArraySpec:
  """The shape and dtype of one array of an example.

  Attributes:
    shape: The shape without a batch axis; None for a side that varies between examples.
    dtype: NumPy's name of the dtype, such as "uint8".
  """

  shape: tuple[int | None, ...]
  dtype: str


@dataclass(frozen=True)
class DatasetInfo:
  """Facts about a data set, known without reading an example.

  Attributes:
    name: The name of the set, as in `data.source`.
    spec: The shape and dtype of each array of an example, by the array's key.
    class_names: The names of the K classes in the order of the labels; None without classes.
    vocabulary: The number of token ids; None for examples that are not token sequences.
    fingerprint: A hexadecimal digest of the content, independent of its location; "" if unknown.
    numbered: Whether the set itself gives each class its number. If False, the numbers come from
      sorting the names of the classes.
    hint: A sentence, after a space, that is added to the error about a missing label; "" for none.
  """

  name: str
  spec: Mapping[str, ArraySpec]
  class_names: tuple[str, ...] | None = None
  vocabulary: int | None = None
  fingerprint: str = ""
  numbered: bool = True
  hint: str = ""

  def __post_init__(self):
    names = self.class_names or ()
    are_names = all(isinstance(name, str) and name.strip() for name in names)
    if not are_names or len({*names}) < len(names):
      raise ConfigError(
        f"data.source={self.name!r}: class_names={names!r:.200} must be different, not empty."
      )


def check_arrays(info: DatasetInfo, reads: Mapping[str, tuple[str, int]], task: str) -> None:
  """Checks that the examples of a data set have the arrays that a task reads.

  Args:
    info: The facts about the data set.
    reads: The required dtype and number of axes of each array by its key; "integer" allows every
      integer dtype.
    task: The name of the task.
  """
  for name, (dtype, axes) in reads.items():
    array, valid = info.spec.get(name), _INTEGER if dtype == "integer" else dtype
    if array and re.fullmatch(valid, array.dtype) and len(array.shape) == axes:
      continue
    declared = f"{name} {array.dtype} {array.shape}" if array else f"no array {name!r}"
    raise ConfigError(
      f"data.source={info.name!r}: the spec of the source declares {declared}, but the"
      f" task {task!r} needs {name} {dtype} with {axes} axes.{info.hint * (name == 'label')}"
    )


class Examples(Protocol):
  """A sequence of examples: the protocol of everything that vitx trains or evaluates on.

  Every method may be called from several threads at once. An implementation may also have a method
  `encoded(i)`, see `read_encoded`.
  """

  @property
  def labels(self) -> np.ndarray | None:
    """Returns the class of each example, int32 (n,), without decoding an image.

    For examples of several classes it returns float32 (n, K), 1 for each class; without classes it
    returns None.
    """

  def __len__(self) -> int: ...

  def __getitem__(self, i: int) -> Example:
    """Returns the arrays of an example; raises UnreadableError with its name if that fails."""
    ...

  def name(self, i: int) -> str:
    """Returns the path or the id of an example, for errors and files of predictions."""
    ...


def read_encoded(examples: Examples, i: int) -> dict[str, Any]:
  """Returns an example whose image is still a file, `images.decode.Encoded`, and not pixels.

  Transforms whose `takes_encoded` is True need this form. If `examples` has no method `encoded`,
  the arrays of the example are returned.
  """
  read = getattr(examples, "encoded", None)
  return examples[i] if read is None else read(i)


@dataclass(frozen=True)
class Dataset:
  """A data set whose splits do not have the roles train, validation and test yet.

  Attributes:
    splits: The names of the usable splits.
    open_split: A function that returns the examples of a split, or of an expression such as
      "train[:80%]" or "train+test".
    unlabeled: The names of the splits that are unusable because they have no labels.
    roles: The splits whose role is guessed from their names, such as "dev_images", by role; see
      `split_names.find_roles`.
    unreadable: The names of the examples that the opened splits lack, see `skip_unreadable`.
    unread: The names of the files and directories that the source skipped, grouped by kind. A key
      describes the kind in the plural, such as "images outside of the class directories".
    problem: The error for a new run if the source can be read in two ways, and `splits` follows one
      of them; "" for none.
    count: A function that returns the number of examples of a split without reading an example; by
      default the length of the opened split.
    overlap: A function that returns whether two splits share examples; by default a split shares
      examples only with itself.
    carve: A function (examples, share) that returns (the rest, the share). It is for examples, such
      as texts, that must not be drawn one by one. If None, examples are drawn at random, an equal
      share of each class if there are classes.
    groups: A function from the name of an example to its group, if `data.groups` names a column of
      the source; None if it does not.
  """

  info: DatasetInfo
  splits: tuple[str, ...]
  open_split: Callable[[str], Examples]
  unlabeled: tuple[str, ...] = ()
  roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
  unreadable: Sequence[str] = ()
  unread: Mapping[str, Sequence[str]] = field(default_factory=dict)
  problem: str = ""
  count: Callable[[str], int] | None = None
  overlap: Callable[[str, str], bool] = operator.eq
  carve: Callable[[Examples, float], tuple[Examples, Examples]] | None = None
  groups: Callable[[str], str] | None = None


@dataclass(frozen=True)
class Source:
  """A data set whose examples are divided among the roles train, validation and test.

  Attributes:
    calibration: The examples that `data.calibration` sets aside; None for none.
  """

  info: DatasetInfo
  train: Examples
  validation: Examples
  test: Examples
  unreadable: tuple[str, ...] = ()
  calibration: Examples | None = None

  def role(self, name: str) -> Examples:
    """Returns the examples of a role, one of `ROLES`."""
    return getattr(self, name)

  def parts(self) -> dict[str, Examples]:
    """Returns the examples of each role that has some, by the role's name."""
    roles = {role: self.role(role) for role in ROLES}
    return roles if self.calibration is None else {**roles, CALIBRATION: self.calibration}

  def all_roles(self) -> Examples:
    """Returns the examples of all roles."""
    return Joined([*self.parts().values()])

  def describe(self) -> str:
    """Returns a text with the name of the data and the numbers of examples and classes."""
    examples = ", ".join(f"{len(part):,} {role}" for role, part in self.parts().items())
    names = self.info.class_names
    classes = "" if names is None else f", {len(names):,} classes"
    return f"{self.info.name}, examples {examples}{classes}"


def spread(examples: Examples, count: int) -> Examples:
  """Returns `count` evenly spaced examples, or all examples if there are at most `count`."""
  total = len(examples)
  if count >= total:
    return examples
  return Subset(examples, lambda: np.arange(count) * total // count)


class Subset:
  """A subset of other examples.

  Args:
    parent: The other examples.
    choose: A function that returns the indices of the subset in `parent`, int64 (n,); it is called
      at the first use.
  """

  def __init__(self, parent: Examples, choose: Callable[[], np.ndarray]):
    self.parent = parent
    self._choose = choose

  @functools.cached_property
  def indices(self) -> np.ndarray:
    """Returns the index of each example in the parent, int64 (n,)."""
    return self._choose()

  @functools.cached_property
  def labels(self) -> np.ndarray | None:
    labels = self.parent.labels
    return None if labels is None else labels[self.indices]

  def __len__(self) -> int:
    return len(self.indices)

  def __getitem__(self, i: int) -> Example:
    return self.parent[int(self.indices[i])]

  def encoded(self, i: int) -> dict[str, Any]:
    return read_encoded(self.parent, int(self.indices[i]))

  def name(self, i: int) -> str:
    return self.parent.name(int(self.indices[i]))


class SplitPart(Subset):
  """A part of a split that was divided."""


class Joined:
  """The concatenation of several sets of examples."""

  def __init__(self, parts: Sequence[Examples]):
    self._parts = parts
    self._ends = np.cumsum([len(part) for part in parts])

  @functools.cached_property
  def labels(self) -> np.ndarray | None:
    labels = [part.labels for part in self._parts]
    known = [some for some in labels if some is not None]
    return np.concatenate(known) if len(known) == len(labels) else None

  def __len__(self) -> int:
    return sum(map(len, self._parts))

  def __getitem__(self, i: int) -> Example:
    part, i = find_part(self._ends, i)
    return self._parts[part][i]

  def encoded(self, i: int) -> dict[str, Any]:
    part, i = find_part(self._ends, i)
    return read_encoded(self._parts[part], i)

  def name(self, i: int) -> str:
    part, i = find_part(self._ends, i)
    return self._parts[part].name(i)


def find_part(ends: np.ndarray | Sequence[int], i: int) -> tuple[int, int]:
  """Returns the part of a concatenation that contains an element, and the element's index in it.

  Args:
    ends: The index in the concatenation at which each part ends, (parts,).
    i: The index of the element in the concatenation.
  """
  part = bisect.bisect_right(ends, i)
  return part, i - int(ends[part - 1]) if part else i
