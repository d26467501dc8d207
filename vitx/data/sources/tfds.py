"""TFDS sets of images or texts, read from ArrayRecord files without TensorFlow."""

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vitx.config.fields import DataSettings, read_fields
from vitx.data.builders import BUILDERS
from vitx.data.dataset import Dataset, DatasetInfo, Example, Examples
from vitx.data.documents import SPEC, VOCABULARY, Documents, carve_end
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.images.decode import Encoded
from vitx.data.images.settings import check_file_settings, find_channels, image_spec
from vitx.data.sources import tfds_dir
from vitx.data.sources.record_files import check_threads
from vitx.data.sources.tfds_records import Content, Records, find_content

NOWHERE = "/nonexistent"  # as the TFDS directory, so that only the code of a set is asked


def open_tfds(data: Mapping[str, Any]) -> Dataset:
  """Opens a prepared TFDS set of images or of texts; `digits` prepares itself.

  Args:
    data: The config's `data`, of which these fields are read: source, `NAME[/CONFIG][:VERSION]`;
      data_dir; channels, for sets whose images have no fixed number; value_range.

  Raises:
    ConfigError: The name is unknown, the set is not prepared (the message has the command), is
      stored in another format or is of another kind, or this process may start too few threads.
  """
  settings = read_fields(DataSettings, data)
  directory = tfds_dir.prepared_directory(settings.source, settings.data_dir)
  check_threads()
  builder = tfds_dir.open_builder(directory, tfds_dir.READABLE)
  content = find_content(builder.info, settings.source)
  if content.text:
    return _open_texts(builder, settings.source, content)
  check_file_settings(settings)
  return _open_images(builder, settings.source, content, settings)


def find_facts(data: Mapping[str, Any]) -> DatasetInfo | None:
  """Returns the facts about a set that follow from its name, without a fingerprint.

  The set need not be prepared: TFDS ships the facts about its sets, and vitx about its own.

  Args:
    data: The config's `data`.

  Returns:
    The facts, or None if they are unknown until the set is opened.
  """
  settings = read_fields(DataSettings, data)
  name, config, _ = tfds_dir.parse_name(settings.source)
  if name in BUILDERS:
    own = BUILDERS[name]
    spec = image_spec(own.shape[-1], own.shape[:2])
    return DatasetInfo(settings.source, spec, tuple(map(str, range(own.classes))))
  if name not in tfds.list_builders(with_community_datasets=False):
    return None
  try:
    info = tfds.builder(f"{name}/{config}" if config else name, data_dir=NOWHERE).info
  except Exception:  # the builder needs TensorFlow, or the config does not exist
    return None
  return _describe(
    info.features, settings.source, find_content(info, settings.source), settings.channels
  )


class Images(Records):
  """The images of one split expression, with labels if the set has them."""

  def __init__(
    self,
    builder: tfds.core.DatasetBuilder,
    name: str,
    split: str,
    content: Content,
    settings: DataSettings,
  ):
    super().__init__(builder, name, split)
    self._content = content
    self._settings = settings
    self._labels: np.ndarray | None = None
    self._lock = threading.Lock()  # one scan for the labels, however many threads call

  @property
  def labels(self) -> np.ndarray | None:
    if not self._content.label:
      return None
    with self._lock:
      if self._labels is None:
        scan = self.scan(np.arange(len(self)), "labels")
        self._labels = np.array([self._label(features) for features in scan], np.int32)
      return self._labels

  def __getitem__(self, i: int) -> Example:
    """Returns image uint8 (height, width, C) in native size, and label int32 () if any."""
    stored = self.encoded(i)
    return {**stored, "image": stored["image"].decode()}

  def encoded(self, i: int) -> dict[str, Any]:
    """Returns an example whose image is still `Encoded`."""
    features = self.read(i)
    content = features[self._content.image].bytes_list.value[0]
    channels, values = self._settings.channels, self._settings.value_range
    image = {"image": Encoded(content, channels, f"{self.where}{i}", value_range=values)}
    if not self._content.label:
      return image
    return {**image, "label": np.asarray(self._label(features), np.int32)}

  def is_usable(self) -> bool:
    """Returns whether no label is missing; TFDS writes -1 for one, as in ImageNet's test."""
    return not self._content.label or self._label(self.read(0)) >= 0

  def digest(self, indices: np.ndarray, what: str) -> str:
    """Hashes the examples at `indices`: label and encoded image in one string each."""
    return digest(self._strings(indices, what))

  def _strings(self, indices: np.ndarray, what: str) -> Iterator[bytes]:
    for features in self.scan(indices, what):
      label = b"%d:" % self._label(features) if self._content.label else b""
      yield label + features[self._content.image].bytes_list.value[0]

  def _label(self, features: Any) -> int:
    return features[self._content.label].int64_list.value[0]


def _open_images(
  builder: tfds.core.DatasetBuilder, name: str, content: Content, settings: DataSettings
) -> Dataset:
  facts = _describe(builder.info.features, name, content, settings.channels)
  settings = dataclasses.replace(settings, channels=find_channels(facts))
  splits = {
    split: Images(builder, name, split, content, settings) for split in _filled(builder.info)
  }
  usable = tuple(split for split, images in splits.items() if images.is_usable())
  fingerprinted = tuple(builder.info.features[content.label].names or ()) if content.label else ()

  def open_split(expression: str) -> Images:
    known = splits.get(expression)
    return Images(builder, name, expression, content, settings) if known is None else known

  return Dataset(
    info=dataclasses.replace(facts, fingerprint=_fingerprint(builder, splits, fingerprinted)),
    splits=usable,
    unlabeled=tuple(split for split in splits if split not in usable),
    open_split=open_split,
    overlap=lambda a, b: open_split(a).overlap(open_split(b)),
  )


def _describe(
  features: Mapping[str, Any], name: str, content: Content, default_channels: int
) -> DatasetInfo:
  """Returns the facts about a set that its TFDS features state."""
  if content.text:
    return DatasetInfo(name, SPEC, vocabulary=VOCABULARY)
  height, width, own_channels = features[content.image].shape
  channels = {1: 1, 3: 3, 4: 3}.get(own_channels, default_channels)
  class_names = None
  if content.label:
    label = features[content.label]
    class_names = tuple(label.names or (str(i) for i in range(label.num_classes)))
  spec = image_spec(channels, (height, width), labeled=bool(content.label))
  return DatasetInfo(name, spec, class_names)


class Texts(Records):
  """The texts of one split expression."""

  def __init__(self, builder: tfds.core.DatasetBuilder, name: str, split: str, key: str):
    super().__init__(builder, name, split)
    self._key = key

  def text(self, i: int) -> np.ndarray:
    """Returns the bytes of one text, uint8 (n,)."""
    return np.frombuffer(self.read(i)[self._key].bytes_list.value[0], np.uint8)

  def find_lengths(self) -> np.ndarray:
    """Returns the length of each text in bytes, int64 (count,); reads all texts."""
    scan = self.scan(np.arange(len(self)), "lengths of texts")
    return np.array([len(each[self._key].bytes_list.value[0]) for each in scan], np.int64)

  def digest(self, indices: np.ndarray, what: str) -> str:
    """Hashes the texts at `indices`."""
    scan = self.scan(indices, what)
    return digest(features[self._key].bytes_list.value[0] for features in scan)


def _open_texts(builder: tfds.core.DatasetBuilder, name: str, content: Content) -> Dataset:
  def texts(expression: str) -> Texts:
    return Texts(builder, name, expression, content.text)

  def open_split(expression: str) -> Examples:
    found = texts(expression)
    return Documents(found.text, found.find_lengths, found.name)

  splits = {split: texts(split) for split in _filled(builder.info)}
  return Dataset(
    info=dataclasses.replace(
      _describe({}, name, content, 0), fingerprint=_fingerprint(builder, splits, ())
    ),
    splits=tuple(splits),
    open_split=open_split,
    overlap=lambda a, b: texts(a).overlap(texts(b)),
    carve=carve_end,
  )


def _filled(info: tfds.core.DatasetInfo) -> list[str]:
  """Returns the splits that have examples."""
  return [split for split, details in info.splits.items() if details.num_examples]


def _fingerprint(
  builder: tfds.core.DatasetBuilder, splits: Mapping[str, Images | Texts], names: tuple[str, ...]
) -> str:
  """Hashes the content, because files and records depend on the software that wrote them."""
  info = builder.info
  parts: list[str | bytes] = [info.full_name, *names]
  for split in sorted(splits):
    records = splits[split]
    parts += [split, str(len(records))]
    chosen = choose_sample(len(records), info.splits[split].num_bytes)
    parts.append(records.digest(chosen, f"fingerprint of {split}"))
  return digest(parts)
