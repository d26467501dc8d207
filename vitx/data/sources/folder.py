"""The source `folder:PATH`: images in a directory per class, optionally in a directory per split.

A folder that has only images, and no directories, is a split of images without labels.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError, listing
from vitx.config.fields import DataSettings
from vitx.data import class_names
from vitx.data.class_names import normalize
from vitx.data.dataset import Dataset, DatasetInfo, Example, Examples, Joined
from vitx.data.fingerprint import digest, read_sample
from vitx.data.images.decode import Encoded, decode_example
from vitx.data.images.settings import check_file_settings, image_spec
from vitx.data.sources import files, folder_layout
from vitx.data.sources.folder_layout import SUFFIXES, Classes, FolderLayout
from vitx.data.split_names import find_role, find_roles, states_role, suggest_name
from vitx.data.splits import find_bases
from vitx.files import reading

Images = dict[str, list[str]]  # the paths of images relative to the root, by class directory


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


def open_folder(data: DataSettings) -> Dataset:
  """Opens a folder of images, `folder:PATH`, with a directory for each class.

  `folder_layout.find_layout` finds the splits and the classes. A split without class directories
  has no labels and is not used. Classes are numbered in the order of `classes.txt` in PATH, else by
  the number in their names, else in the order of the names. Hidden files and leftovers of other
  programs are ignored. `Dataset.unread` names the other files whose suffix is not in `SUFFIXES`,
  the images outside the class directories, and the directories without a role. A folder of images
  without any directories is the split train, whose images have no labels. Only the first frame of
  an image file is used. `data.splits` may join splits: `fold1+fold2`.

  Args:
    data: The config's `data`, of which these fields are read: source; channels, to which images are
      converted; value_range; splits. A directory that `splits` names is a split, in the folder or
      in each class directory.
  """
  check_file_settings(data)
  name = data.source
  root, field = files.find_root(name), f"data.source={name!r}"
  if not files.find_directories(root, SUFFIXES) and any(folder_layout.find_images(root)):
    return _open_unlabeled(field, root, data)
  stated = class_names.read_names(root / class_names.FILE) or ()
  expressions = filter(None, data.splits.values())
  bases = {base for split in expressions for base in find_bases(split)}
  layout = folder_layout.find_layout(field, root, stated, bases)
  names, is_stated = _name_classes(field, root, layout, stated)
  splits: dict[str, ImageFiles] = {}
  required: dict[str, Iterable[str]] = {}
  others: list[Path] = []
  skipped, problem = list[str](), layout.problem
  for split, classes in layout.splits.items():
    # In the order of the directory names, independent of the labels, so that a run draws the same
    # examples however its classes are numbered.
    lists = {raw: files.find_files(field, path, SUFFIXES) for raw, path in sorted(classes.items())}
    images = {raw: files.list_names(root, paths) for raw, (paths, _) in lists.items()}
    others += [path for _, more in lists.values() for path in more]
    parts, other_parts, doubt = _find_parts(field, split, root, classes, images, bases)
    skipped += other_parts
    problem = (find_role(split) == "train" and doubt) or problem or doubt
    for part, paths in parts.items():
      splits[part] = _make_files(root, paths, names, data)
      required[part] = {*map(normalize, classes)} if is_stated else names
  check_filled(data, splits, names, required)
  for path in layout.skipped:
    count = len(files.find_files(field, path, SUFFIXES)[0])
    skipped.append(f"{path.name} ({count} images){suggest_name(path.name)}")
  inside = {path.parent for classes in layout.splits.values() for path in classes.values()}
  strays = (path for place in {root} | inside for path in folder_layout.find_images(place))
  unread = {
    "directories that are neither splits nor classes": skipped,
    "images outside of the class directories": files.list_names(root, strays),
    "lists of other classes": [class_names.FILE] if stated and not is_stated else [],
    **files.describe_others(root, others, SUFFIXES),
  }
  info = DatasetInfo(
    name=name,
    spec=image_spec(data.channels),
    class_names=names,
    fingerprint=_fingerprint(splits),
    numbered=is_stated or class_names.are_numbered(names),
  )
  return make_dataset(info, splits, unlabeled=layout.unlabeled, unread=unread, problem=problem)


def _open_unlabeled(field: str, root: Path, settings: DataSettings) -> Dataset:
  """Opens a folder that has images and no directories; the images are the unlabeled split train."""
  images, others = files.find_files(field, root, SUFFIXES)
  paths = tuple(files.list_names(root, images))
  splits = {"train": ImageFiles(root, paths, settings, directories=("",) * len(paths))}
  spec = image_spec(settings.channels, labeled=False)
  info = DatasetInfo(settings.source, spec, fingerprint=_fingerprint(splits))
  return make_dataset(info, splits, unread=files.describe_others(root, others, SUFFIXES))


def make_dataset(info: DatasetInfo, splits: Mapping[str, Examples], **fields: Any) -> Dataset:
  """Returns a data set whose splits can be joined by `+`, but not sliced.

  Args:
    info: The facts about the data set.
    splits: The images of each split, by its name.
    **fields: Other fields of the `Dataset`.
  """

  def open_split(expression: str) -> Examples:
    bases = [term.strip() for term in expression.split("+")]
    if len({*bases} & splits.keys()) < len(bases):
      raise ConfigError(
        f"data.splits: {expression!r} of {info.name!r} is not a sum of different splits:"
        f" {' + '.join(splits)}."
      )
    return splits[bases[0]] if len(bases) == 1 else Joined([splits[base] for base in bases])

  return Dataset(
    info,
    splits=tuple(splits),
    open_split=open_split,
    roles=find_roles(splits),
    overlap=lambda a, b: not set(find_bases(a)).isdisjoint(find_bases(b)),
    **fields,
  )


def _name_classes(
  field: str, root: Path, layout: FolderLayout, stated: tuple[str, ...]
) -> tuple[tuple[str, ...], bool]:
  """Returns the ordered class names of all splits, and whether `classes.txt` lists them."""
  splits = {split: {*map(normalize, classes)} for split, classes in layout.splits.items()}
  first = "train" if "train" in splits else next(iter(splits), "")
  present = set().union(*splits.values())
  if stated and present.isdisjoint(stated):
    stated = ()
  names = class_names.order_names(field, stated, present)
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
  return names, bool(stated)


def _find_parts(
  field: str, split: str, root: Path, classes: Classes, images: Images, bases: Collection[str]
) -> tuple[dict[str, Images], list[str], str]:
  """Returns the parts of a split to read, the names of its other parts, and a problem or "".

  A part has the images in directories of one name in the class directories, or (the part ".") those
  beside such directories. The parts that `data.splits` names are read as splits, and without split
  directories also those whose names state a role. Without either the whole split is read, and two
  names are a problem unless `data.splits` names the split itself.
  """
  parts: dict[str, Images] = {}
  for raw, paths in images.items():
    above = f"{classes[raw].relative_to(root).as_posix()}/"
    for path in paths:
      inner, slash, _ = path.removeprefix(above).partition("/")
      parts.setdefault(inner if slash else ".", {}).setdefault(raw, []).append(path)
  prefix = "" if all(path.parent == root for path in classes.values()) else f"{split}/"
  shared = sorted(part for part in parts if len(parts[part]) > len(images) / 2)
  roles = {find_role(part) for part in parts if states_role(part)}
  has_splits = not prefix and "train" in map(find_role, shared) and len(roles) > 1
  chosen_parts = {name.rpartition("/")[2] for name in bases}
  read = [part for part in parts if part in chosen_parts or (has_splits and states_role(part))]
  if read:
    unread = [
      f"{prefix}{x} ({sum(map(len, parts[x].values()))} images)" for x in parts if x not in read
    ]
    return {f"{prefix}{part}": parts[part] for part in sorted(read)}, sorted(unread), ""
  if len(shared) < 2 or split in bases:
    return {split: images}, [], ""
  role = f"data.splits.{find_role(split) if states_role(split) else 'train'}"
  beside = "images and " if shared[0] == "." else ""
  problem = (
    f"{field}: the class directories of the split {split!r} have {beside}directories with equal"
    f" names, {listing({*shared} - {'.'})}. Set {role}={split} to read all images, or"
    f" {role}={prefix}{shared[0]} to read {'those beside them' if beside else 'some'} alone."
  )
  return {split: images}, [], problem


def _make_files(
  root: Path, images: Images, names: tuple[str, ...], settings: DataSettings
) -> ImageFiles:
  """Returns images, which are listed by class directory, with the numbers of their classes."""
  directories = tuple(raw for raw in images for _ in images[raw])
  labels = {raw: names.index(normalize(raw)) for raw in {*directories}}
  targets = np.array([labels[raw] for raw in directories], np.int32)
  paths = tuple(path for names_of_class in images.values() for path in names_of_class)
  return ImageFiles(root, paths, settings, targets, directories=directories)


def check_filled(
  data: DataSettings,
  splits: Mapping[str, ImageFiles],
  names: Sequence[str],
  required: Mapping[str, Iterable[str]],
) -> None:
  """Checks that each split has images, and that those for train have images of each class.

  Args:
    data: The config's `data`, whose `splits.train` names the splits for train.
    splits: The images of each split.
    names: The names of the classes.
    required: The classes that each split is to have for train.
  """
  names_of_train = [split for split in splits if find_role(split) == "train"]
  train = data.splits.train or ("train" if "train" in splits else "+".join(names_of_train))
  for expression in (train, *(split for split in splits if not len(splits[split]))):
    parts = [split for split in find_bases(expression) if split in splits]
    labels = {label for split in parts for label in np.unique(np.asarray(splits[split].labels))}
    empty = {name for split in parts for name in required[split]} - {names[x] for x in labels}
    if empty:
      raise ConfigError(
        f"data.source={data.source!r}: the split {expression!r} has no images of {listing(empty)}"
        f" with one of the suffixes {listing(SUFFIXES)}."
      )


def _fingerprint(splits: Mapping[str, ImageFiles]) -> str:
  """Returns a hash of the names, the sizes, the classes and the content of all files.

  If a split is larger than `fingerprint.HASH_ALL`, only the content of a sample of files is hashed.
  A class is hashed as its index among the sorted names, so that the fingerprint does not depend on
  the numbers of the classes.
  """
  names = sorted({name for images in splits.values() for name in images.directories})
  place = {name: i for i, name in enumerate(names)}
  parts: list[str | bytes] = [*names]
  for split in sorted(splits):
    sizes, content = digest_files(splits[split])
    labels = [place[directory] for directory in splits[split].directories]
    lines = zip(splits[split].paths, sizes, labels, strict=True)
    parts += [split, "\n".join(f"{path}\t{size}\t{label}" for path, size, label in lines), content]
  return digest(parts)


def digest_files(images: ImageFiles) -> tuple[list[int], str]:
  """Returns the size in bytes of each file, and a digest of the content of all or of a sample."""
  paths = (images.root / path for path in images.paths)
  sizes = [path.stat().st_size if path.exists() else 0 for path in paths]  # 0: a broken link
  return sizes, digest(read_sample(images.read, len(images), sum(sizes)))
