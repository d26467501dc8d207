"""What every kind of data set offers before its splits get roles, and how it is fingerprinted."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

# Sets up to this size are fingerprinted by their whole content, larger ones by a sample of it.
HASH_ALL = 256 * 2**20
SAMPLE = 256


@dataclass(frozen=True)
class ArraySpec:
  """Shape (None: varies) and dtype of an array of an example."""

  shape: tuple[int | None, ...]
  dtype: str


@dataclass(frozen=True)
class DatasetInfo:
  """What a data set says of itself."""

  name: str
  spec: Mapping[str, ArraySpec]
  class_names: tuple[str, ...] | None = None
  vocabulary: int | None = None
  fingerprint: str = ""


class Examples(Protocol):
  """Labeled images by index; every method may be called from several threads at once."""

  @property
  def labels(self) -> np.ndarray:
    """int32 (n,). Found without decoding an image, at the first use."""

  def __len__(self) -> int: ...

  def image(self, i: int) -> np.ndarray:
    """uint8 (height, width, C), native size. Raises ConfigError naming an unreadable image."""

  def label(self, i: int) -> int:
    """The label of one example, without finding all the others."""

  def name(self, i: int) -> str:
    """A path or an id, for errors and files of predictions."""


@dataclass(frozen=True)
class Dataset:
  """A data set as it lies on disk.

  Attributes:
    name: as the config writes it.
    class_names: by label.
    image_size: (height, width) if all images share one.
    channels: 1 or 3.
    splits: names of the labeled splits.
    unlabeled: names of the splits that cannot be used.
    open_split: from a split (or an expression over splits) to its examples.
    overlap: whether two splits share examples.
    fingerprint: hexadecimal digest of the content, wherever it lies.
  """

  name: str
  class_names: tuple[str, ...]
  image_size: tuple[int, int] | None
  channels: int
  splits: tuple[str, ...]
  unlabeled: tuple[str, ...]
  open_split: Callable[[str], Examples]
  overlap: Callable[[str, str], bool]
  fingerprint: str

  @property
  def info(self) -> DatasetInfo:
    size = self.image_size or (None, None)
    spec = {"image": ArraySpec((*size, self.channels), "uint8"), "label": ArraySpec((), "int32")}
    return DatasetInfo(self.name, spec, self.class_names, None, self.fingerprint)


class Subset:
  """Some of the examples of another; which ones is decided at the first use."""

  def __init__(self, parent: Examples, choose: Callable[[], np.ndarray]):
    self._parent = parent
    self._choose = choose

  @functools.cached_property
  def indices(self) -> np.ndarray:
    """int64 (n,): where in the parent each example stands."""
    return self._choose()

  @functools.cached_property
  def labels(self) -> np.ndarray:
    return self._parent.labels[self.indices]

  def __len__(self) -> int:
    return len(self.indices)

  def image(self, i: int) -> np.ndarray:
    return self._parent.image(int(self.indices[i]))

  def label(self, i: int) -> int:
    return self._parent.label(int(self.indices[i]))

  def name(self, i: int) -> str:
    return self._parent.name(int(self.indices[i]))


class Joined:
  """The examples of several others, one after the other."""

  def __init__(self, parts: Sequence[Examples]):
    self._parts = parts
    self._ends = np.cumsum([len(part) for part in parts])

  @functools.cached_property
  def labels(self) -> np.ndarray:
    return np.concatenate([part.labels for part in self._parts])

  def __len__(self) -> int:
    return int(self._ends[-1])

  def image(self, i: int) -> np.ndarray:
    part, i = self._find(i)
    return part.image(i)

  def label(self, i: int) -> int:
    part, i = self._find(i)
    return part.label(i)

  def name(self, i: int) -> str:
    part, i = self._find(i)
    return part.name(i)

  def _find(self, i: int) -> tuple[Examples, int]:
    part = int(np.searchsorted(self._ends, i, side="right"))
    return self._parts[part], i - int(self._ends[part - 1]) if part else i


def digest(parts: Iterable[str | bytes]) -> str:
  """Returns 32 hexadecimal digits of SHA-256 over the parts, each preceded by its length."""
  sha = hashlib.sha256()
  for part in parts:
    data = part.encode() if isinstance(part, str) else part
    sha.update(len(data).to_bytes(8, "little"))
    sha.update(data)
  return sha.hexdigest()[:32]


def sampled(count: int, size_in_bytes: int) -> np.ndarray:
  """Returns which of `count` items enter a fingerprint: all if small, else evenly spaced ones."""
  if size_in_bytes <= HASH_ALL or count <= SAMPLE:
    return np.arange(count)
  return np.linspace(0, count - 1, SAMPLE).astype(np.int64)
