"""TFDS data sets, read by random access from ArrayRecord files; nothing here imports TensorFlow."""

import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from etils import epath
from tensorflow_datasets.proto import tf_example_pb2
from tqdm import tqdm

from vitx.data.dataset import Dataset, DatasetInfo, Example
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.images.decode import decode_image
from vitx.data.images.settings import ImageSettings, image_spec
from vitx.data.settings import DataSettings, read_fields
from vitx.data.sources import tfds_dir
from vitx.errors import ConfigError, listing

# Records read at once while scanning labels or hashing.
CHUNK = 1024
# Features that name an example, in TFDS sets.
_NAMES = ("id", "file_name", "filename", "image/filename")


class Records:
  """The examples of one split expression, such as "train[:80%]"."""

  def __init__(self, builder: tfds.core.DatasetBuilder, name: str, split: str, channels: int):
    self._where = f"{name}: example {split}#"
    self._split = split
    self._channels = channels
    self._image_key, self._label_key = image_and_label(builder.info, name)
    self._name_key = next((key for key in _NAMES if key in builder.info.features), None)
    raw = tfds.decode.DeserializeMethod.RAW_BYTES
    try:
      self._records = builder.as_data_source(split=split, deserialize_method=raw)
      self.files = builder.info.splits[split].file_instructions
    except (ValueError, AssertionError) as error:
      raise ConfigError(
        f"data.splits: {split!r} is no split of {name!r}: {error}"
        f" Splits: {listing(builder.info.splits)}."
      ) from error
    _check_files(name, self.files)
    self._labels: np.ndarray | None = None
    self._lock = threading.Lock()  # one scan for the labels, however many threads ask

  def __len__(self) -> int:
    return len(self._records)

  @property
  def labels(self) -> np.ndarray:
    with self._lock:
      if self._labels is None:
        scan = self.scan(np.arange(len(self)), "labels")
        self._labels = np.array([self._label(record) for record in scan], np.int32)
      return self._labels

  def __getitem__(self, i: int) -> Example:
    """Returns image uint8 (height, width, C), native size, and label int32 ()."""
    record = self._records[i]
    encoded = _features(record)[self._image_key].bytes_list.value[0]
    image = decode_image(encoded, self._channels, f"{self._where}{i}")
    return {"image": image, "label": np.asarray(self._label(record), np.int32)}

  def is_labeled(self) -> bool:
    """Returns whether there are labels: where TFDS has none (ImageNet's test) it writes -1."""
    return self._label(self._records[0]) >= 0

  def name(self, i: int) -> str:
    if self._name_key is None:
      return f"{self._split}#{i}"
    return _features(self._records[i])[self._name_key].bytes_list.value[0].decode()

  def scan(self, indices: np.ndarray, what: str) -> Iterator[bytes]:
    """Yields the undecoded records at `indices`; shows a progress bar if it takes a while."""
    progress = tqdm(total=len(indices), desc=what, delay=3, mininterval=1, leave=False)
    with progress:
      for start in range(0, len(indices), CHUNK):
        keys = indices[start : start + CHUNK].tolist()
        yield from self._records.__getitems__(keys)
        progress.update(len(keys))

  def content(self, indices: np.ndarray, what: str) -> Iterator[bytes]:
    """Yields label and encoded image at `indices`, in one string each."""
    for record in self.scan(indices, what):
      features = _features(record)
      label = features[self._label_key].int64_list.value[0]
      yield b"%d:" % label + features[self._image_key].bytes_list.value[0]

  def _label(self, record: bytes) -> int:
    return _features(record)[self._label_key].int64_list.value[0]


def _features(record: bytes) -> Any:
  return tf_example_pb2.Example.FromString(record).features.feature


def _check_files(name: str, files: Any) -> None:
  for file in files:
    if not epath.Path(file.filename).exists():
      raise ConfigError(f"data.source={name!r} is incomplete: {file.filename} does not exist.")


def image_and_label(info: tfds.core.DatasetInfo, name: str) -> tuple[str, str]:
  """Returns the keys of a set's image and class label.

  Raises:
    ConfigError: the set is not one of single images with one class label.
  """
  features = info.features
  keys = info.supervised_keys or ("", "")
  if len(keys) != 2 or not all(isinstance(key, str) and key in features for key in keys):
    images = [key for key in features if isinstance(features[key], tfds.features.Image)]
    labels = [key for key in features if isinstance(features[key], tfds.features.ClassLabel)]
    keys = (images[0], labels[0]) if len(images) == len(labels) == 1 else ("", "")
  image, label = keys
  if (
    image
    and isinstance(features[image], tfds.features.Image)
    and isinstance(features[label], tfds.features.ClassLabel)
  ):
    return image, label
  raise ConfigError(
    f"data.source={name!r} is not an image classification set: its features are"
    f" {listing(f'{key} ({type(features[key]).__name__})' for key in features)}."
  )


def open_tfds(data: Mapping[str, Any]) -> Dataset:
  """Opens a prepared TFDS set of labeled images; `digits` prepares itself.

  Args:
    data: the config's `data`: source, `NAME[/CONFIG][:VERSION]`; data_dir; channels, for sets whose
      images have no fixed number.

  Raises:
    ConfigError: unknown name, not prepared (with the command), a copy of another format.
  """
  settings = read_fields(DataSettings, data)
  name = settings.source
  directory = tfds_dir.prepared_directory(name, settings.data_dir)
  builder = tfds.builder_from_directory(os.fspath(directory), file_format="array_record")
  image_key, label_key = image_and_label(builder.info, name)
  height, width, own_channels = builder.info.features[image_key].shape
  channels = {1: 1, 3: 3, 4: 3}.get(own_channels, read_fields(ImageSettings, data).channels)
  label = builder.info.features[label_key]
  splits = {
    split: Records(builder, name, split, channels)
    for split, details in builder.info.splits.items()
    if details.num_examples
  }
  labeled = tuple(split for split, records in splits.items() if records.is_labeled())

  def open_split(expression: str) -> Records:
    if expression in splits:
      return splits[expression]
    return Records(builder, name, expression, channels)

  return Dataset(
    info=DatasetInfo(
      name=name,
      spec=image_spec(channels, (height, width)),
      class_names=tuple(label.names or (str(i) for i in range(label.num_classes))),
      fingerprint=_fingerprint(builder, splits, label.names or ()),
    ),
    splits=labeled,
    unlabeled=tuple(split for split in splits if split not in labeled),
    open_split=open_split,
    overlap=lambda a, b: _overlap(open_split(a), open_split(b)),
  )


def _overlap(a: Records, b: Records) -> bool:
  return any(
    one.filename == other.filename
    and one.skip < other.skip + other.take
    and other.skip < one.skip + one.take
    for one in a.files
    for other in b.files
  )


def _fingerprint(builder: tfds.core.DatasetBuilder, splits: dict[str, Records], names: Any) -> str:
  """Hashes encoded images and labels: files and records depend on who wrote them, and with what."""
  info = builder.info
  parts: list[str | bytes] = [info.full_name, *names]
  for split in sorted(splits):
    details = info.splits[split]
    records = splits[split]
    parts += [split, str(len(records))]
    chosen = choose_sample(len(records), details.num_bytes)
    parts.append(digest(records.content(chosen, f"fingerprint of {split}")))
  return digest(parts)
