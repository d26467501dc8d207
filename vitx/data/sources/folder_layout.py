"""Finds out which directories of a folder are splits and which are classes."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitx.config.errors import ConfigError, listing
from vitx.data.class_names import FILE, normalize
from vitx.data.dataset import ROLES
from vitx.data.sources.files import find_directories
from vitx.data.split_names import FOLD, find_role, states_role

SUFFIXES = (
  *(".bmp", ".gif", ".ico", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png"),
  *(".ppm", ".tga", ".tif", ".tiff", ".webp"),
)
# The image directories of the classes, by the name in the file system. A class has several
# directories if their names differ only in the encoding of accents (`class_names.normalize`).
Classes = dict[str, Path]


@dataclass(frozen=True)
class FolderLayout:
  """The splits and the classes of a folder.

  Attributes:
    splits: The class directories of each split, by the name of the split and of the class.
    unlabeled: The names of the splits without class directories.
    skipped: The directories that are neither splits nor classes.
    hint: A sentence for errors if only the contents of directories suggest that they are splits.
  """

  splits: Mapping[str, Classes]
  unlabeled: tuple[str, ...] = ()
  skipped: tuple[Path, ...] = ()
  hint: str = ""


@dataclass(frozen=True)
class _Place:
  """A directory, its subdirectories, and whether it contains images directly."""

  path: Path
  inner: tuple[Path, ...]
  has_images: bool

  @property
  def role(self) -> str | None:
    return find_role(self.path.name)

  @property
  def names(self) -> set[str]:
    return {normalize(path.name) for path in self.inner}


def find_layout(
  field: str, root: Path, stated: Collection[str], named: Collection[str]
) -> FolderLayout:
  """Finds out which directories of a folder are splits and which are classes.

  If `named` has names, the directories with these names are the splits. Otherwise directories with
  subdirectories are splits if their names state a role, such as "train", or if most of them have
  subdirectories of equal names. The nesting may also be reversed: each class directory has a
  directory for each split. In any other layout, each directory is a class, and all images are one
  split called train.

  Args:
    field: The config field and its value, for errors.
    root: The folder.
    stated: The class names in `classes.txt`; a directory with one of these names is a class.
    named: The names of splits in `data.splits`.
  """
  places = [
    _Place(path, tuple(find_directories(path, SUFFIXES)), any(find_images(path)))
    for path in find_directories(root, SUFFIXES)
  ]
  if not {normalize(place.path.name) for place in places}.isdisjoint(stated):
    return _read_classes(places)
  holding = [place for place in places if place.inner]
  if named and holding:
    known = [place for place in holding if place.path.name in named or states_role(place.path.name)]
    return _read_splits(places, known or holding, named)
  if any(not place.names.isdisjoint(stated) for place in holding):
    return _read_splits(places, holding, named)
  if _are_classes_of_splits(places):
    return _read_classes_of_splits(places)
  known = [p for p in holding if states_role(p.path.name)] or [p for p in holding if p.role == FOLD]
  if known:
    return _read_splits(places, known, named)
  alike = _find_alike(places)
  if alike:
    some = listing(sorted(place.path.name for place in alike)[:5])
    hint = (
      f" {some} have directories with equal names and are therefore taken for splits."
      " Choose their roles with data.splits. If they are classes, list them in"
      f" {root / FILE}, one name on each line."
    )
    return _read_splits(places, alike, named, hint)
  _check_unlabeled(field, places)
  return _read_classes(places)


def find_images(directory: Path) -> Iterator[Path]:
  """Yields the image files in a directory, but not those in its subdirectories."""
  for path in directory.iterdir():
    if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and not path.is_dir():
      yield path


def _find_alike(places: Sequence[_Place]) -> list[_Place]:
  """Returns the directories that share names of subdirectories, or [] if most of them do not."""
  count = Counter(name for place in places for name in place.names)
  shared = {name for name in count if count[name] > 1}
  alike = [place for place in places if _is_like(place, shared)]
  return alike if len(alike) > max(1, len(places) / 2) else []


def _is_like(place: _Place, names: set[str]) -> bool:
  """Returns whether a directory looks like a split whose classes have the given names."""
  return not place.has_images and len(place.names & names) >= max(2, len(place.names) / 2)


def _are_classes_of_splits(places: Sequence[_Place]) -> bool:
  """Returns whether each directory is a class with a directory for train and for another role."""
  return len(places) > 1 and all(
    not place.has_images
    and not states_role(place.path.name)
    and {"train"} < {find_role(name) for name in place.names if states_role(name)}
    for place in places
  )


def _read_classes(places: Sequence[_Place]) -> FolderLayout:
  return FolderLayout({"train": {place.path.name: place.path for place in places}})


def _read_classes_of_splits(places: Sequence[_Place]) -> FolderLayout:
  splits: dict[str, Classes] = {}
  skipped = []
  for place in places:
    for path in place.inner:
      if not states_role(path.name):
        skipped.append(path)
        continue
      splits.setdefault(path.name, {})[place.path.name] = path
  return FolderLayout(splits, skipped=tuple(skipped))


def _read_splits(
  places: Sequence[_Place], known: Sequence[_Place], named: Collection[str], hint: str = ""
) -> FolderLayout:
  """Returns the layout of a folder with directories that are known to be splits.

  Another directory is a split, too, if its subdirectories have exactly the names of those in a
  known split. If the config names no splits, similar names suffice, see `_is_like`.
  """
  like = next((place for place in known if place.role == "train"), known[0])
  splits = [
    place
    for place in places
    if place in known or place.names == like.names or (not named and _is_like(place, like.names))
  ]
  others = [place for place in places if place not in splits]
  unlabeled = [place for place in others if place.role or place.path.name in named]
  return FolderLayout(
    {place.path.name: {path.name: path for path in place.inner} for place in splits},
    tuple(place.path.name for place in unlabeled),
    tuple(place.path for place in others if place not in unlabeled),
    hint,
  )


def _check_unlabeled(field: str, places: Sequence[_Place]) -> None:
  roles = {place.role for place in places}
  if len(roles) > 1 and "train" in roles and roles <= {*ROLES}:
    train = next(place.path for place in places if place.role == "train")
    raise ConfigError(
      f"{field}: {listing(place.path.name for place in places)} are the names of splits, but have"
      f" no directory per class. If they are classes, list them in {FILE}, one name on each line."
      f" To use images without labels, name one directory, such as folder:{train}."
    )
