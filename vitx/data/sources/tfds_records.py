"""Random access to the records of a TFDS split, and the choice of the features to read."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from etils import epath
from google.protobuf.message import DecodeError
from tensorflow_datasets.proto import tf_example_pb2
from tqdm import tqdm

from vitx.config.errors import ConfigError, listing
from vitx.data.sources import tfds_dir
from vitx.data.sources.record_files import RecordFiles

# The errors of the readers of records; their messages name no file.
READ_ERRORS = (RuntimeError, ValueError, IndexError, DecodeError)
# The features that name an example in TFDS sets.
_NAMES = ("id", "file_name", "filename", "image/filename")


@dataclass(frozen=True)
class Content:
  """The features of a TFDS set to read: an image with or without a class, or a text.

  Attributes:
    image: The key of the image; "" for texts.
    label: The key of the class label; "" if there is none.
    text: The key of the text; "" for images.
  """

  image: str = ""
  label: str = ""
  text: str = ""


def find_content(info: tfds.core.DatasetInfo, name: str) -> Content:
  """Finds the features of a set of single images with at most one label, or of texts.

  If there are several candidates, takes the supervised keys of TFDS, or the feature "text".

  Raises:
    ConfigError: The set is of another kind.
  """
  features = info.features

  def of(kind: type) -> list[str]:
    return [key for key in features if isinstance(features[key], kind)]

  images, labels = of(tfds.features.Image), of(tfds.features.ClassLabel)
  texts = of(tfds.features.Text)
  keys = info.supervised_keys or ("", "")
  first, second = keys if len(keys) == 2 and all(isinstance(key, str) for key in keys) else ("", "")
  if first in images and second in labels:
    return Content(image=first, label=second)
  if len(images) == 1:
    return Content(image=images[0], label=labels[0] if len(labels) == 1 else "")
  if first in texts:
    return Content(text=first)
  if texts and len(texts) + len(labels) == len(features) and (len(texts) == 1 or "text" in texts):
    return Content(text="text" if "text" in texts else texts[0])
  raise ConfigError(
    f"data.source={name!r} is no set of single images, nor of texts: its features are"
    f" {listing(f'{key} ({type(features[key]).__name__})' for key in features)}."
  )


class Records:
  """The records of one split expression, such as "train[:80%]".

  Attributes:
    files: The TFDS file instructions: files, each with a range of its records.
    where: The name of an example in errors, up to its number.
  """

  def __init__(self, builder: tfds.core.DatasetBuilder, name: str, split: str):
    self.where = f"{name}: example {split}#"
    self._split = split
    self._name_key = next((key for key in _NAMES if key in builder.info.features), None)
    try:
      self.files = builder.info.splits[split].file_instructions
    except (KeyError, ValueError, AssertionError) as error:
      raise ConfigError(
        f"data.splits: {split!r} is no split of {name!r}: {error}"
        f" Splits: {listing(builder.info.splits)}."
      ) from error
    if not self.files:
      raise ConfigError(f"data.splits: {split!r} of {name!r} holds no examples; name a larger part")
    if any(file.take < 1 for file in self.files):
      raise ConfigError(
        f"data.splits: {split!r} of {name!r} ends before it begins; turn its bounds"
      )
    in_turn = sorted(self.files, key=lambda file: (file.filename, file.skip))
    if any(_overlaps(a, b) for a, b in itertools.pairwise(in_turn)):
      raise ConfigError(
        f"data.splits: {split!r} of {name!r} names examples twice; name each once, since those that"
        " are carved from it would be in both parts"
      )
    _check_files(name, self.files)
    self._records = RecordFiles(self.files)

  def __len__(self) -> int:
    return len(self._records)

  def read(self, i: int) -> Any:
    """Returns the features of one record, by key."""
    try:
      return parse(self._records[i])
    except READ_ERRORS as error:
      raise tfds_dir.make_damage_error(self._file(i), error) from error

  def name(self, i: int) -> str:
    """Returns the set's own name of an example, else its split and number."""
    if self._name_key is None:
      return f"{self._split}#{i}"
    return self.read(i)[self._name_key].bytes_list.value[0].decode()

  def scan(self, indices: np.ndarray, what: str) -> Iterator[Any]:
    """Yields the features of the records at `indices`; shows a progress bar if it is slow."""
    progress = tqdm(total=len(indices), desc=what, delay=2, mininterval=1, leave=False)
    with progress:
      for i in indices.tolist():
        yield self.read(i)
        progress.update()

  def _file(self, i: int) -> epath.Path:
    """Returns the file that holds a record."""
    ends = np.cumsum([file.take for file in self.files])
    return epath.Path(self.files[int(np.searchsorted(ends, i, side="right"))].filename)

  def overlap(self, other: "Records") -> bool:
    """Returns whether two splits share a record."""
    return any(_overlaps(one, two) for one in self.files for two in other.files)


def _overlaps(one: Any, two: Any) -> bool:
  """Returns whether two file instructions share a record."""
  return (
    one.filename == two.filename
    and one.skip < two.skip + two.take
    and two.skip < one.skip + one.take
  )


def parse(record: bytes) -> Any:
  """Returns the features of a record, by key."""
  return tf_example_pb2.Example.FromString(record).features.feature


def _check_files(name: str, files: Any) -> None:
  for file in files:
    if not epath.Path(file.filename).exists():
      raise ConfigError(f"data.source={name!r} is incomplete: {file.filename} does not exist.")
