"""A folder of the user's own images: a directory per class, perhaps in a directory per split."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from vitx.data.dataset import Dataset, DatasetInfo, Example
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.images.decode import Encoded
from vitx.data.images.settings import ImageSettings, image_spec
from vitx.data.settings import DataSettings, read_fields
from vitx.data.sources.files import check_name, find_files, list_files, warn_of_skipped
from vitx.data.splits import VALIDATION_NAMES
from vitx.errors import ConfigError, listing

SUFFIXES = (
  *(".bmp", ".gif", ".ico", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"),
  *(".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
KNOWN_SPLITS = ("train", "test", *VALIDATION_NAMES)


@dataclass(frozen=True)
class Files:
  """The images of one split; labels follow from the directories.

  Attributes:
    root: the folder that the config names.
    paths: (n,), relative to the root.
    labels: int32 (n,).
    channels: 1 or 3.
  """

  root: Path
  paths: tuple[str, ...]
  labels: np.ndarray
  channels: int

  def __len__(self) -> int:
    return len(self.paths)

  def __getitem__(self, i: int) -> Example:
    """Returns image uint8 (height, width, C), native size, and label int32 ()."""
    stored = self.encoded(i)
    return {**stored, "image": stored["image"].decode()}

  def encoded(self, i: int) -> dict[str, Any]:
    """Returns the same with the image as it is stored."""
    path = self.root / self.paths[i]
    try:
      content = path.read_bytes()
    except OSError as error:
      raise ConfigError(f"{path} cannot be read ({error}). Replace or remove it.") from error
    image = Encoded(content, self.channels, str(path), upright=True)
    return {"image": image, "label": np.asarray(self.labels[i])}

  def name(self, i: int) -> str:
    return self.paths[i]


def open_folder(data: Mapping[str, Any]) -> Dataset:
  """Opens `folder:PATH`.

  The layout is PATH/SPLIT/CLASS/... if a directory with the name of a split (train, val, valid,
  validation, dev, test) holds directories itself; else PATH/CLASS/..., which is one split, `train`.
  A split without class directories has no labels and is not used. Hidden files are ignored; other
  files whose suffix is none of `SUFFIXES`, and images beside the directories of the classes, are
  skipped with a warning. Of several frames the first counts.

  Args:
    data: the config's `data`: source; channels, to which images are converted; splits, which if any
      is given says that PATH holds a directory per split, whatever their names.

  Raises:
    ConfigError: no such directory, fewer than two classes, a class without images in train, splits
      whose classes differ.
  """
  settings = read_fields(DataSettings, data)
  name, channels = settings.source, read_fields(ImageSettings, data).channels
  split_layout = any(settings.splits.values())
  root = Path(name.removeprefix("folder:")).expanduser()
  if not root.is_dir():
    raise ConfigError(f"data.source={name!r}: {root} is not a directory.")
  inside = _directories(root)
  if split_layout or any(path.name in KNOWN_SPLITS and _directories(path) for path in inside):
    splits = {path.name: path for path in inside if _directories(path)}
  else:
    splits = {"train": root}
  class_names = _classes(name, splits)
  files: dict[str, Files] = {}
  skipped: list[Path] = []
  for split, path in splits.items():
    files[split], others = _files(name, root, path, class_names, channels)
    skipped += others
    _check_filled(name, split, files[split], class_names)
  warn_of_skipped(name, root, skipped, SUFFIXES)
  _warn_of_strays(name, root, {root, *splits.values()})
  return Dataset(
    info=DatasetInfo(
      name=name,
      spec=image_spec(channels),
      class_names=class_names,
      fingerprint=_fingerprint(files, class_names),
    ),
    splits=tuple(splits),
    unlabeled=tuple(path.name for path in inside if len(splits) > 1 and path.name not in splits),
    open_split=files.__getitem__,
  )


def _directories(path: Path) -> list[Path]:
  found = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
  for directory in found:
    check_name(f"data.source='folder:{path}'", directory)
  return found


def _warn_of_strays(name: str, root: Path, places: Collection[Path]) -> None:
  """Says which images lie in no directory of a class, if there are any."""
  strays = [
    path
    for place in sorted(places)
    for path in sorted(place.iterdir())
    if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
  ]
  if strays:
    logging.warning(
      "%s: skipped %d images that lie in no directory of a class: %s",
      name,
      len(strays),
      list_files(root, strays),
    )


def _classes(name: str, splits: dict[str, Path]) -> tuple[str, ...]:
  """Returns the class names, sorted, which all splits must share."""
  classes = {split: {path.name for path in _directories(root)} for split, root in splits.items()}
  first = "train" if "train" in classes else next(iter(classes), "")
  for split, found in classes.items():
    if found != classes[first]:
      missing, extra = listing(classes[first] - found), listing(found - classes[first])
      raise ConfigError(
        f"data.source={name!r}: the classes of {split!r} differ from those of {first!r}:"
        f" missing {missing or 'none'}; not in {first!r}: {extra or 'none'}."
      )
  result = tuple(sorted(classes.get(first, ())))
  if len(result) < 2:
    raise ConfigError(
      f"data.source={name!r}: found {len(result)} classes ({listing(result) or 'none'}). Put a"
      " directory per class, with its images, in PATH or in PATH/train, PATH/val, PATH/test."
    )
  return result


def _files(
  name: str, root: Path, split: Path, class_names: tuple[str, ...], channels: int
) -> tuple[Files, list[Path]]:
  """Returns the images of a split, and what else lies in the directories of its classes."""
  paths: list[str] = []
  labels: list[int] = []
  skipped: list[Path] = []
  for label, class_name in enumerate(class_names):
    found, others = find_files(f"data.source={name!r}", split / class_name, SUFFIXES)
    paths += sorted(path.relative_to(root).as_posix() for path in found)
    labels += [label] * len(found)
    skipped += others
  return Files(root, tuple(paths), np.array(labels, np.int32), channels), skipped


def _check_filled(name: str, split: str, files: Files, class_names: tuple[str, ...]) -> None:
  counts = np.bincount(files.labels, minlength=len(class_names))
  empty = [class_name for class_name, count in zip(class_names, counts, strict=True) if not count]
  if empty and (split == "train" or not len(files)):
    raise ConfigError(
      f"data.source={name!r}: {split!r} has no images of {listing(empty)}"
      f" (looked for {listing(SUFFIXES)})."
    )


def _fingerprint(files: dict[str, Files], class_names: tuple[str, ...]) -> str:
  """Hashes names, sizes and labels of all files, and their content (a sample if large)."""
  parts: list[str | bytes] = [*class_names]
  for split in sorted(files):
    found = files[split]
    sizes = [(found.root / path).stat().st_size for path in found.paths]
    lines = zip(found.paths, sizes, found.labels.tolist(), strict=True)
    parts += [split, "\n".join(f"{path}\t{size}\t{label}" for path, size, label in lines)]
    chosen = choose_sample(len(found), sum(sizes))
    parts.append(digest((found.root / found.paths[i]).read_bytes() for i in chosen))
  return digest(parts)
