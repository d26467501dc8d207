"""The source `hf:NAME`: labeled images read by Hugging Face's library `datasets`."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError, MissingExtraError, listing
from vitx.config.fields import DataSettings, read_fields
from vitx.data.dataset import Dataset, DatasetInfo, Example
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.images.decode import Encoded, decode_example
from vitx.data.images.settings import check_file_settings, image_spec
from vitx.data.sources.files import find_path
from vitx.data.sources.folder import make_dataset
from vitx.files import reading

SAVED = ("dataset_dict.json", "state.json")  # the files that `save_to_disk` writes


@dataclasses.dataclass(frozen=True)
class HubImages:
  """The images of one split, with their classes.

  Attributes:
    table: The split, a `datasets.Dataset` whose images are encoded.
    image: The name of the column of images.
    labels: The classes, int32 (n,).
  """

  table: Any
  split: str
  image: str
  labels: np.ndarray
  settings: DataSettings

  def __len__(self) -> int:
    return len(self.labels)

  def __getitem__(self, i: int) -> Example:
    """Returns `image`, uint8 (height, width, C), in its native size, and `label`, int32 ()."""
    return decode_example(self.encoded(i))

  def encoded(self, i: int) -> dict[str, Any]:
    """Returns an example whose image is not decoded yet, but still an `Encoded`."""
    channels, values = self.settings.channels, self.settings.value_range
    image = Encoded(self.read(i), channels, self.name(i), upright=True, value_range=values)
    return {"image": image, "label": np.asarray(self.labels[i])}

  def read(self, i: int) -> bytes:
    """Returns the bytes of an image file, which the table contains or names by a path."""
    with reading(f"{self.name(i)} cannot be read"):
      stored = self.table[int(i)][self.image]
      return stored["bytes"] or Path(stored["path"]).read_bytes()

  def name(self, i: int) -> str:
    return f"{self.split}[{i}]"


def open_hub(data: Mapping[str, Any]) -> Dataset:
  """Opens `hf:NAME`, or `hf:NAME:CONFIG` for a set with several configs.

  NAME is a set of the Hugging Face Hub, a directory that `datasets.load_dataset` reads, or a
  directory that `save_to_disk` wrote. The set must have one column of images and one of classes
  (`ClassLabel`). The library `datasets` downloads a set of the Hub to its own cache and runs no
  code of the set.

  Args:
    data: The config's `data`, of which these fields are read: source, channels, value_range.
  """
  settings = read_fields(DataSettings, data)
  check_file_settings(settings)
  name = settings.source
  tables = _load(name)
  first = next(iter(tables.values()))
  image, label = _choose_column(name, first, "Image"), _choose_column(name, first, "ClassLabel")
  opened: dict[str, HubImages] = {}
  feature, names = first.features[image], tuple(first.features[label].names)
  for split, table in tables.items():
    others = tuple(getattr(table.features.get(label), "names", names))  # a number has no names
    if not {image, label} <= table.features.keys() or others != names:
      raise ConfigError(
        f"data.source={name!r}: the split {split!r} does not have the columns {image} and {label}"
        f" with the classes {listing(names)}, as {next(iter(tables))!r} has."
      )
    labels = np.array([-1 if number is None else number for number in table[label]], np.int32)
    encoded = table.cast_column(image, dataclasses.replace(feature, decode=False))
    opened[split] = HubImages(encoded, split, image, labels, settings)
  unlabeled = tuple(split for split, examples in opened.items() if (examples.labels < 0).any())
  parts: list[str | bytes] = [*names]
  for split in sorted(opened):
    parts += [split, str(len(opened[split])), digest(_content(opened[split]))]
  info = DatasetInfo(name, image_spec(settings.channels), names, fingerprint=digest(parts))
  labeled = {split: opened[split] for split in opened if split not in unlabeled}
  return make_dataset(info, labeled, unlabeled)


def _load(name: str) -> Mapping[str, Any]:
  """Returns the tables of a set by split."""
  try:
    import datasets
  except ImportError as error:
    raise MissingExtraError(f"data.source={name!r}", "datasets") from error
  path, _, config = name.removeprefix("hf:").partition(":")
  folder = find_path(f"hf:{path}")
  is_saved = any((folder / file).exists() for file in SAVED)
  datasets.disable_progress_bars()
  with reading(f"data.source={name!r} cannot be loaded by the library datasets"):
    if is_saved:
      tables = datasets.load_from_disk(str(folder))
    else:
      tables = datasets.load_dataset(path, config or None)
  return tables if isinstance(tables, dict) else {"train": tables}


def _choose_column(name: str, table: Any, kind: str) -> str:
  """Returns the only column of a table that has the given kind of feature."""
  columns = [name for name, feature in table.features.items() if type(feature).__name__ == kind]
  if len(columns) != 1:
    raise ConfigError(
      f"data.source={name!r} must have one column of kind {kind}, but has"
      f" {listing(columns) or 'none'} among {listing(table.features)}; choose or cast columns, and"
      " save the set by save_to_disk."
    )
  return columns[0]


def _content(examples: HubImages) -> Iterator[str | bytes]:
  """Yields the labels of a split and then the bytes of its images, or of a sample of them."""
  yield examples.labels.tobytes()
  for i in choose_sample(len(examples), examples.table.data.nbytes).tolist():
    yield examples.read(i)
