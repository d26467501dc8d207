"""TFDS sets of images or texts, read from ArrayRecord files without TensorFlow."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from vitx.config.fields import DataSettings
from vitx.config.settings import change
from vitx.data.builders import BUILDERS
from vitx.data.class_names import CLASS, hint_label
from vitx.data.dataset import Dataset, DatasetInfo, Examples
from vitx.data.documents import SPEC, VOCABULARY, Documents, carve_end
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.images.settings import check_file_settings, find_channels, image_spec
from vitx.data.sources import tfds_dir
from vitx.data.sources.record_files import start_threads
from vitx.data.sources.tfds_records import Content, Records, find_content
from vitx.data.splits import overlap

NOWHERE = "/nonexistent"  # a TFDS directory without sets, so that facts come from code alone


def open_tfds(data: DataSettings) -> Dataset:
  """Opens a prepared TFDS set of images or of texts; prepares `digits` if necessary.

  Args:
    data: The config's `data`, of which these fields are read: source, `NAME[/CONFIG][:VERSION]`;
      data_dir; channels, for sets that do not fix the number of channels; value_range;
      label_columns, the feature of the class.
  """
  name = data.source
  directory = tfds_dir.prepared_directory(name, data.data_dir)
  start_threads()
  builder = tfds_dir.open_builder(directory, tfds_dir.READABLE)
  content = find_content(builder.info, name, data.label_columns)
  if not content.text:
    check_file_settings(data)
  facts = _describe(builder.info.features, name, content, data.channels)
  if content.image:
    data = change(data, {"channels": find_channels(facts)})
  read = functools.partial(Records, builder, content, data)
  details = builder.info.splits.items()
  splits = {split: read(split) for split, detail in details if detail.num_examples}
  unlabeled = tuple(split for split, part in splits.items() if part.is_unlabeled())

  def open_split(expression: str) -> Examples:
    records = splits.get(expression) or read(expression)
    return _open_documents(records) if content.text else records

  return Dataset(
    info=dataclasses.replace(facts, fingerprint=_fingerprint(builder, splits, content)),
    splits=tuple(split for split in splits if split not in unlabeled),
    unlabeled=unlabeled,
    open_split=open_split,
    count=lambda split: len(splits[split]),  # without the lengths of texts
    overlap=lambda a, b: overlap(read(a).ranges, read(b).ranges),
    carve=carve_end if content.text else None,
  )


def find_facts(data: DataSettings) -> DatasetInfo | None:
  """Returns the facts, but no fingerprint, that the code of a set states; None if there is none."""
  name, config, _ = tfds_dir.parse_name(data.source)
  if name in BUILDERS:
    builder = BUILDERS[name]
    spec = image_spec(builder.shape[-1], builder.shape[:2])
    return DatasetInfo(data.source, spec, tuple(map(str, range(builder.classes))))
  if name not in tfds.list_builders(with_community_datasets=False):
    return None
  try:
    info = tfds.builder(f"{name}/{config}" if config else name, data_dir=NOWHERE).info
  except Exception:  # the builder needs TensorFlow, or the config does not exist
    return None
  content = find_content(info, data.source, data.label_columns)
  return _describe(info.features, data.source, content, data.channels)


def _describe(
  features: Mapping[str, Any], name: str, content: Content, default_channels: int
) -> DatasetInfo:
  """Returns the facts about a set that its TFDS features state."""
  if content.text:
    return DatasetInfo(name, SPEC, vocabulary=VOCABULARY)
  height, width, stored_channels = features[content.image].shape
  channels = {1: 1, 3: 3, 4: 3}.get(stored_channels, default_channels)
  class_names, kinds = None, {key: type(features[key]).__name__ for key in features}
  hint = "" if content.label else hint_label(kinds, CLASS)
  if content.label:
    label = features[content.label]
    class_names = tuple(label.names or (str(i) for i in range(label.num_classes)))
  spec = image_spec(channels, (height, width), labeled=bool(content.label))
  return DatasetInfo(name, spec, class_names, hint=hint)


def _open_documents(texts: Records) -> Documents:
  """Returns the texts of a split as documents; their lengths are found by reading all texts."""

  def find_lengths() -> np.ndarray:
    scan = texts.scan(np.arange(len(texts)), "lengths of texts")
    return np.array([len(texts.find_encoded(features)) for features in scan])

  def read(i: int) -> np.ndarray:
    return np.frombuffer(texts.find_encoded(texts.read(i)), np.uint8)

  return Documents(read, find_lengths, texts.name)


def _fingerprint(
  builder: tfds.core.DatasetBuilder, splits: Mapping[str, Records], content: Content
) -> str:
  """Hashes the examples, since files and records depend on the software that wrote them."""
  info = builder.info
  names = info.features[content.label].names if content.label else None
  parts: list[str | bytes] = [info.full_name, *(names or ())]
  for split in sorted(splits):
    records = splits[split]
    chosen = choose_sample(len(records), info.splits[split].num_bytes)
    parts += [split, str(len(records)), records.digest(chosen, f"fingerprint of {split}")]
  return digest(parts)
