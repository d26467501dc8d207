"""One way to name labeled images: `digits`, `tiny_imagenet`, a TFDS name, `folder:PATH`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitx.data import splits
from vitx.data.dataset import Dataset, DatasetInfo, Examples
from vitx.data.sources import folder, tfds
from vitx.errors import ConfigError, nearest

__all__ = ["Dataset", "Examples", "Source", "open_dataset", "open_source"]


@dataclass(frozen=True)
class Source:
  """A data set whose examples have roles.

  Attributes:
    name: as in `data.source`.
    num_classes: number of classes K.
    class_names: (K,), by label.
    image_size: (height, width) of all images; None if they vary.
    channels: 1 or 3.
    train: what the model learns from.
    select: what chooses between models; disjoint from train.
    report: what is reported, touched once at the end.
    fingerprint: digest of the data set's content, wherever it lies.
  """

  name: str
  num_classes: int
  class_names: tuple[str, ...]
  image_size: tuple[int, int] | None
  channels: int
  train: Examples
  validation: Examples
  test: Examples
  fingerprint: str

  @property
  def info(self) -> DatasetInfo:
    return Dataset.info.fget(self)  # type: ignore[attr-defined]

  def role(self, name: str) -> Examples:
    """Returns the examples of a role. Raises ConfigError for any other word."""
    if name not in splits.ROLES:
      raise ConfigError(
        f"split={name!r} is no role.{nearest(name, splits.ROLES)} Roles: {', '.join(splits.ROLES)}."
      )
    return getattr(self, name)


def open_source(data: Mapping[str, Any], seed: int) -> Source:
  """Opens the data set that a config's `data` names, without decoding an image.

  Args:
    data: the config's `data`: source, data_dir, splits, select, fraction, channels.
    seed: the data seed, from which the carved splits follow.

  Raises:
    ConfigError: unknown, unprepared or unreadable set, missing split; names the field and the fix.
  """
  dataset = open_dataset(data)
  examples = splits.assign(dataset, data, seed)
  return Source(
    name=dataset.name,
    num_classes=len(dataset.class_names),
    class_names=dataset.class_names,
    image_size=dataset.image_size,
    channels=dataset.channels,
    fingerprint=dataset.fingerprint,
    **examples,
  )


def open_dataset(data: Mapping[str, Any]) -> Dataset:
  """Opens the same data set before its splits get roles; arguments and errors as `open_source`."""
  if data["channels"] not in (1, 3):
    raise ConfigError(f"data.channels={data['channels']!r}: images have 1 (gray) or 3 (RGB).")
  name = data["source"]
  if name.startswith("folder:"):
    given = [split for split in dict(data["splits"]).values() if split]
    return folder.open_folder(name, data["channels"], split_layout=bool(given))
  return tfds.open_tfds(name, data["data_dir"], data["channels"])
