"""Reads single records of a TFDS split, and chooses which features of a set to read."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.proto import tf_example_pb2
from tqdm import tqdm

from vitx.config.errors import ConfigError, UnreadableError, listing
from vitx.config.fields import DataSettings
from vitx.data.class_names import choose_label
from vitx.data.dataset import Example
from vitx.data.fingerprint import SAMPLE, digest
from vitx.data.images.decode import Encoded, decode_example
from vitx.data.sources import tfds_dir
from vitx.data.sources.record_files import RecordFiles
from vitx.data.splits import check_ranges

# The features that name an example in TFDS sets.
_NAMES = ("id", "file_name", "filename", "image/filename")


@dataclass(frozen=True)
class Content:
  """The keys of the features that vitx reads: an image and perhaps a class, or a text; else ""."""

  image: str = ""
  label: str = ""
  text: str = ""


def find_content(
  info: tfds.core.DatasetInfo, name: str, columns: Sequence[str] | None = None
) -> Content:
  """Chooses the features of a TFDS set that vitx reads: an image and at most one class, or a text.

  Of several candidates, the supervised keys of TFDS are chosen, or the feature "text".

  Args:
    info: The description of the set.
    name: The name of the set.
    columns: The feature of the class, `data.label_columns`; () for none, None to choose it here.
  """
  features = info.features

  def of(kind: type) -> list[str]:
    return [key for key in features if isinstance(features[key], kind)]

  images, labels = of(tfds.features.Image), of(tfds.features.ClassLabel)
  texts = of(tfds.features.Text)
  keys = info.supervised_keys or ("", "")
  first, second = keys if len(keys) == 2 and all(isinstance(key, str) for key in keys) else ("", "")
  label = choose_label(columns, {key: type(features[key]).__name__ for key in features})
  if first in images and second in labels:
    return Content(image=first, label=second if columns is None else label)
  if len(images) == 1:
    return Content(image=images[0], label=label)
  if first in texts:
    return Content(text=first)
  if texts and len(texts) + len(labels) == len(features) and (len(texts) == 1 or "text" in texts):
    return Content(text="text" if "text" in texts else texts[0])
  raise ConfigError(
    f"data.source={name!r} is neither a set of single images nor a set of texts. Its features are"
    f" {listing(f'{key} ({type(features[key]).__name__})' for key in features)}; use another."
  )


class Records:
  """The records of one split expression, such as "train[:80%]".

  An example of a set of images has `image` and, if the set has classes, `label`. The texts of a set
  of texts are read by `find_encoded`.

  Attributes:
    ranges: The (file name, first record, end) of each range of records.
  """

  def __init__(
    self, builder: tfds.core.DatasetBuilder, content: Content, data: DataSettings, split: str
  ):
    self.content, self._split, self._data = content, split, data
    self._name_key = next((key for key in _NAMES if key in builder.info.features), None)
    try:
      files = builder.info.splits[split].file_instructions
    except (KeyError, ValueError, AssertionError) as error:
      raise ConfigError(
        f"data.splits: {split!r} is not a split of {data.source!r}: {error}"
        f" Splits: {listing(builder.info.splits)}."
      ) from error
    if not files or any(file.take < 1 for file in files):
      raise ConfigError(
        f"data.splits: {split!r} of {data.source!r} has no examples. Name a larger part."
      )
    self.ranges = [(file.filename, file.skip, file.skip + file.take) for file in files]
    check_ranges(self.ranges, split, data.source)
    self._records = RecordFiles(self.ranges)

  @functools.cached_property
  def labels(self) -> np.ndarray | None:
    if not self.content.label:
      return None
    scan = self.scan(np.arange(len(self)), "labels")
    return np.array([self.label(features) for features in scan], np.int32)

  def is_unlabeled(self) -> bool:
    """Returns whether the labels of the split are missing, as in ImageNet's test split."""
    some = np.linspace(0, len(self) - 1, SAMPLE).astype(int).tolist()
    return bool(self.content.label) and all(self.label(self.read(i)) < 0 for i in some)

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, i: int) -> Example:
    """Returns `image`, uint8 (height, width, C), in its native size, and `label`, if any."""
    return decode_example(self.encoded(i))

  def encoded(self, i: int) -> dict[str, Any]:
    """Returns an example whose image is not decoded yet, but still an `Encoded`."""
    features, where = self.read(i), f"{self._data.source}: example {self._split}#{i}"
    content, values = self.find_encoded(features), self._data.value_range
    image = {"image": Encoded(content, self._data.channels, where, value_range=values)}
    if not self.content.label:
      return image
    label = self.label(features)
    if label < 0:  # a split without any labels is not opened; one in a batch would teach no class
      raise UnreadableError(
        f"{where} has no label, unlike others of its split. Set data.on_unreadable=skip, or name a"
        " split in data.splits in which every example has a label."
      )
    return {**image, "label": np.asarray(label, np.int32)}

  def read(self, i: int) -> Any:
    """Returns the features of one record, by key."""
    try:
      return tf_example_pb2.Example.FromString(self._records[i]).features.feature
    except Exception as error:  # the readers raise many kinds of errors, which name no file
      path = self.ranges[self._records.find(i)[0]][0]
      raise UnreadableError(f"{tfds_dir.describe_damage(path)}: {error}") from error

  def name(self, i: int) -> str:
    """Returns the name that the set gives an example, or else its split and index."""
    # The feature may also be a number, which is not stored as bytes.
    values = self.read(i)[self._name_key].bytes_list.value if self._name_key else ()
    return values[0].decode() if values else f"{self._split}#{i}"

  def scan(self, indices: np.ndarray, title: str) -> Iterator[Any]:
    """Yields the features of the records at `indices`, with a progress bar if it takes long."""
    for i in tqdm(indices.tolist(), desc=title, delay=2, mininterval=1, leave=False):
      yield self.read(i)

  def find_encoded(self, features: Any) -> bytes:
    """Returns the bytes of the encoded image or of the text in the features of a record."""
    return features[self.content.image or self.content.text].bytes_list.value[0]

  def label(self, features: Any) -> int:
    """Returns the class in the features of a record; TFDS writes -1 if the class is missing."""
    return features[self.content.label].int64_list.value[0]

  def digest(self, indices: np.ndarray, title: str) -> str:
    """Hashes the examples at `indices` by their labels and the bytes of their images or texts."""

    def join(features: Any) -> bytes:
      label = b"%d:" % self.label(features) if self.content.label else b""
      return label + self.find_encoded(features)

    return digest(map(join, self.scan(indices, title)))
