"""The source `folder:PATH`: images in a directory per class, optionally in a directory per split.

A folder that has only images, and no directories, is a split of images without labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from vitx.config.errors import ConfigError, listing
from vitx.config.fields import DataSettings, read_fields
from vitx.data import class_names
from vitx.data.class_names import normalize
from vitx.data.dataset import Dataset, DatasetInfo, Example, Examples, Joined
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.images.decode import Encoded, decode_example
from vitx.data.images.settings import check_file_settings, image_spec
from vitx.data.sources.files import (
  describe_others,
  find_directories,
  find_files,
  find_root,
  warn_of_skipped,
)
from vitx.data.sources.folder_layout import (
  SUFFIXES,
  Classes,
  FolderLayout,
  find_images,
  find_layout,
)
from vitx.data.split_names import find_role, find_roles
from vitx.data.splits import find_bases
from vitx.files import reading


@dataclass(frozen=True)
class ImageFiles:
  """The images of one split, which are files of a folder.

  Attributes:
    paths: The n paths relative to the root.
    targets: The labels, (n, ...); None for images without labels.
    key: The name of the array of labels in an example: label, labels or target.
    directories: The name of each image's class directory, as the file system spells it: n names,
      "" for an image without a class; () if a table gives the labels.
  """

  root: Path
  paths: tuple[str, ...]
  settings: DataSettings
  targets: np.ndarray | None = None
  key: str = "label"
  directories: tuple[str, ...] = ()

  @property
  def labels(self) -> np.ndarray | None:
    return self.targets if self.key in ("label", "labels") else None

  def __len__(self) -> int:
    return len(self.paths)

  def __getitem__(self, i: int) -> Example:
    """Returns `image`, uint8 (height, width, C), in its native size, and its label if known."""
    return decode_example(self.encoded(i))

  def encoded(self, i: int) -> dict[str, Any]:
    """Returns an example whose image is not decoded yet, but still an `Encoded`."""
    path, content = self.root / self.paths[i], self.read(i)
    channels, values = self.settings.channels, self.settings.value_range
    image = Encoded(content, channels, str(path), upright=True, value_range=values)
    known = {} if self.targets is None else {self.key: np.asarray(self.targets[i])}
    return {"image": image, **known}

  def read(self, i: int) -> bytes:
    path = self.root / self.paths[i]
    with reading(f"{path} cannot be read"):
      return path.read_bytes()

  def name(self, i: int) -> str:
    return self.paths[i]


def open_folder(data: Mapping[str, Any]) -> Dataset:
  """Opens a folder of images, `folder:PATH`, with a directory for each class.

  `folder_layout.find_layout` finds the splits and the classes. A split without class directories
  has no labels and is not used. Classes are numbered in the order of `classes.txt` in PATH, else by
  the number in their names, else in the order of the names. Hidden files and leftovers of other
  programs are ignored. Other files whose suffix is not in `SUFFIXES`, and images outside the class
  directories, are skipped with a warning. A folder of images without any directories is the split
  train, whose images have no labels. Only the first frame of an image file is used.
  `data.splits` may join splits: `fold1+fold2`.

  Args:
    data: The config's `data`, of which these fields are read: source; channels, to which images are
      converted; value_range; on_unreadable; splits. A directory that `splits` names is a split.
  """
  settings = read_fields(DataSettings, data)
  check_file_settings(settings)
  name = settings.source
  root, field = find_root(name), f"data.source={name!r}"
  if not find_directories(root, SUFFIXES) and any(find_images(root)):
    return _open_unlabeled(field, root, settings)
  stated = class_names.read_names(root / class_names.FILE) or ()
  given = filter(None, data.get("splits", {}).values())
  named = {base for split in given for base in find_bases(split)}
  layout = find_layout(field, root, stated, named)
  names, is_stated = _name_classes(field, root, layout, stated)
  files: dict[str, ImageFiles] = {}
  skipped: list[Path] = []
  for split, classes in layout.splits.items():
    files[split], others = _files(field, root, classes, names, settings)
    skipped += others
    wanted = map(normalize, classes) if is_stated else names
    check_filled(name, split, files[split], names, wanted)
  warn_of_skipped(name, root, skipped, describe_others(SUFFIXES))
  inside = {path.parent for classes in layout.splits.values() for path in classes.values()}
  strays = [path for place in sorted({root} | inside) for path in sorted(find_images(place))]
  warn_of_skipped(name, root, strays, "images outside of the class directories")
  kind = "directories that are neither splits nor classes"
  warn_of_skipped(name, root, layout.skipped, kind)
  info = DatasetInfo(
    name=name,
    spec=image_spec(settings.channels),
    class_names=names,
    fingerprint=_fingerprint(files),
    numbered=is_stated or class_names.are_numbered(names),
  )
  return make_dataset(info, files, layout.unlabeled, layout.hint)


def _open_unlabeled(field: str, root: Path, settings: DataSettings) -> Dataset:
  """Opens a folder that has images and no directories; the images are the unlabeled split train."""
  images, skipped = find_files(field, root, SUFFIXES)
  warn_of_skipped(settings.source, root, skipped, describe_others(SUFFIXES))
  paths = tuple(sorted(path.relative_to(root).as_posix() for path in images))
  files = {"train": ImageFiles(root, paths, settings, directories=("",) * len(paths))}
  spec = image_spec(settings.channels, labeled=False)
  return make_dataset(DatasetInfo(settings.source, spec, fingerprint=_fingerprint(files)), files)


def make_dataset(
  info: DatasetInfo,
  files: Mapping[str, Examples],
  unlabeled: tuple[str, ...] = (),
  hint: str = "",
) -> Dataset:
  """Returns a data set whose splits can be joined by `+`, but not sliced.

  Args:
    info: The facts about the data set.
    files: The images of each split, by its name.
    unlabeled: The names of the splits that are unusable because they have no labels.
    hint: A sentence for the error about a missing split; "" for none.
  """

  def open_split(expression: str) -> Examples:
    bases = [term.strip() for term in expression.split("+")]
    if len({*bases} & files.keys()) < len(bases):
      raise ConfigError(
        f"data.splits: {expression!r} of {info.name!r} is not a sum of different splits:"
        f" {' + '.join(files)}."
      )
    return files[bases[0]] if len(bases) == 1 else Joined([files[base] for base in bases])

  return Dataset(
    info,
    splits=tuple(files),
    open_split=open_split,
    unlabeled=unlabeled,
    roles=find_roles(files),
    hint=hint,
    overlap=lambda a, b: not set(find_bases(a)).isdisjoint(find_bases(b)),
  )


def _name_classes(
  field: str, root: Path, layout: FolderLayout, stated: tuple[str, ...]
) -> tuple[tuple[str, ...], bool]:
  """Returns the ordered class names of all splits, and whether `classes.txt` lists them."""
  splits = {split: {*map(normalize, classes)} for split, classes in layout.splits.items()}
  first = "train" if "train" in splits else next(iter(splits), "")
  present = set().union(*splits.values())
  if stated and present.isdisjoint(stated):
    logging.warning(
      "%s is not used, because it names no directory of %s", root / class_names.FILE, field
    )
    stated = ()
  unlisted = present - set(stated) if stated else set()
  if unlisted:
    raise ConfigError(
      f"{field}: {class_names.FILE} does not list the classes {listing(sorted(unlisted)[:5])}."
    )
  for split, classes in splits.items():
    missing, extra = splits[first] - classes, classes - splits[first]
    if (missing or extra) and not stated:
      raise ConfigError(
        f"{field}: the splits have different classes. Only in {first!r}:"
        f" {listing(missing) or 'none'}. Only in {split!r}: {listing(extra) or 'none'}. If both are"
        f" right, list all classes in {root / class_names.FILE}, one name on each line."
      )
  if len(present) < 2:
    inside = next(iter(layout.splits.get(first, {}).values()), root)
    hint = ""
    if inside != root and any(path.is_dir() for path in inside.iterdir()):
      hint = f" Did you mean folder:{inside}?"
    elif present:  # `inside` has images, or it would be no class
      hint = f" For images without labels, name a directory of images alone: folder:{inside}."
    raise ConfigError(
      f"{field} has fewer than two classes: {listing(present) or 'none'}. Put a directory per class"
      f" into {root} or into its train, val and test.{hint}"
    )
  return (stated, True) if stated else (class_names.sort_names(sorted(present)), False)


def _files(
  field: str, root: Path, classes: Classes, names: tuple[str, ...], settings: DataSettings
) -> tuple[ImageFiles, list[Path]]:
  """Returns the images of a split, and the paths of other files in its class directories.

  Images are in the order of the directory names, independent of the labels, so that a run draws the
  same examples however its classes are numbered.
  """
  paths: list[str] = []
  labels: list[int] = []
  directories: list[str] = []
  skipped: list[Path] = []
  for raw, directory in sorted(classes.items()):
    images, others = find_files(field, directory, SUFFIXES)
    paths += sorted(path.relative_to(root).as_posix() for path in images)
    labels += [names.index(normalize(raw))] * len(images)
    directories += [raw] * len(images)
    skipped += others
  targets = np.array(labels, np.int32)
  files = ImageFiles(root, tuple(paths), settings, targets, directories=tuple(directories))
  return files, skipped


def check_filled(
  name: str, split: str, files: ImageFiles, names: Sequence[str], wanted: Iterable[str]
) -> None:
  """Checks that a split has images, and that the split train has images of the wanted classes."""
  empty = {*wanted} - {names[label] for label in np.unique(np.asarray(files.labels))}
  if empty and (find_role(split) == "train" or not len(files)):
    raise ConfigError(
      f"data.source={name!r}: the split {split!r} has no images of {listing(empty)} with one of the"
      f" suffixes {listing(SUFFIXES)}."
    )


def _fingerprint(files: Mapping[str, ImageFiles]) -> str:
  """Returns a hash of the names, the sizes, the classes and the content of all files.

  If a split is larger than `fingerprint.HASH_ALL`, only the content of a sample of files is hashed.
  A class is hashed as its index among the sorted names, so that the fingerprint does not depend on
  the numbers of the classes.
  """
  names = sorted({name for images in files.values() for name in images.directories})
  place = {name: i for i, name in enumerate(names)}
  parts: list[str | bytes] = [*names]
  for split in sorted(files):
    sizes, content = digest_files(files[split])
    labels = [place[directory] for directory in files[split].directories]
    lines = zip(files[split].paths, sizes, labels, strict=True)
    parts += [split, "\n".join(f"{path}\t{size}\t{label}" for path, size, label in lines), content]
  return digest(parts)


def digest_files(files: ImageFiles) -> tuple[list[int], str]:
  """Returns the size in bytes of each file, and a digest of the content of all or of a sample.

  An unreadable file counts as empty if `data.on_unreadable` is "skip".
  """

  def read(i: int) -> bytes:
    try:
      return files.read(i)
    except ConfigError:
      if files.settings.on_unreadable != "skip":
        raise
      return b""

  paths = (files.root / path for path in files.paths)
  sizes = [path.stat().st_size if path.exists() else 0 for path in paths]  # 0: a broken link
  return sizes, digest(map(read, choose_sample(len(files), sum(sizes)).tolist()))
