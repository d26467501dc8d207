"""Finds out which directories of a folder are splits and which are classes."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitx.config.errors import ConfigError, listing
from vitx.data.class_names import FILE, normalize
from vitx.data.dataset import ROLES
from vitx.data.sources.files import find_directories, has_file
from vitx.data.split_names import FOLD, find_role, states_role, suggest_name

SUFFIXES = (
  *(".bmp", ".gif", ".heic", ".heif", ".ico", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm"),
  *(".pgm", ".png", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
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
    problem: The error for a new run if the directories can be read in two ways; "" for none.
  """

  splits: Mapping[str, Classes]
  unlabeled: tuple[str, ...] = ()
  skipped: tuple[Path, ...] = ()
  problem: str = ""


@dataclass(frozen=True)
class _Place:
  """A directory, its subdirectories, and whether images are directly in it, or anywhere below."""

  path: Path
  inner: tuple[Path, ...]
  has_images: bool
  is_filled: bool

  @property
  def role(self) -> str | None:
    return find_role(self.path.name)

  @property
  def names(self) -> set[str]:
    return {normalize(path.name) for path in self.inner}


def find_layout(
  field: str, root: Path, stated: Collection[str], bases: Collection[str]
) -> FolderLayout:
  """Finds out which directories of a folder are splits and which are classes.

  If `bases` has names, the directories with these names are the splits; if they are names of
  subdirectories instead, the directories are classes. Otherwise directories with subdirectories are
  splits if their names state a role, such as "train", or if most of them have subdirectories of
  equal names. In any other layout, each directory is a class, and all images are one split called
  train, which `folder` divides if each class directory has a directory for each split.

  Args:
    field: The config field and its value, for errors.
    root: The folder.
    stated: The class names in `classes.txt`; a directory with one of these names is a class.
    bases: The names of splits in `data.splits`; `train/images` names a part of the split `train`.
  """
  tops = {name.partition("/")[0] for name in bases}
  places = [_read_place(path) for path in find_directories(root, SUFFIXES)]
  filled = [place for place in places if place.is_filled]
  if not {normalize(place.path.name) for place in places}.isdisjoint(stated):
    classes = [p for p in places if p.is_filled or normalize(p.path.name) in stated]
    return _read_classes(classes, tuple(p.path for p in places if p not in classes))
  if tops.isdisjoint(place.path.name for place in filled) and _are_classes(filled, bases):
    return _read_classes(places)
  holding = [p for p in places if p.inner and (p.is_filled or states_role(p.path.name))]
  known = [place for place in holding if place.path.name in tops or states_role(place.path.name)]
  if bases and holding and (known or "train" not in bases):  # classes alone are the split train
    return _read_splits(places, known or holding, tops)
  if any(not place.names.isdisjoint(stated) for place in holding):
    return _read_splits(places, holding, tops)
  if known:
    return _read_splits(places, known, tops, _doubt_roles(field, root, places))
  alike = [place for place in holding if place.role == FOLD] or _find_alike(filled)
  if alike:
    some = listing(sorted(place.path.name for place in alike)[:5])
    problem = (
      f"{field}: {some} have directories with equal names. If they are splits, name one in"
      " data.splits.train. If they are classes, name the directories in them that are to be read,"
      f" such as data.splits.train={min(path.name for path in alike[0].inner)}, or list the classes"
      f" in {root / FILE}, one name on each line."
    )
    return _read_splits(places, alike, tops, problem)
  _check_unlabeled(field, places)
  return _read_classes(places if len(filled) > 1 else filled)


def _read_place(path: Path) -> _Place:
  """Reads the names in a directory, and looks for an image below it."""
  inner = tuple(find_directories(path, SUFFIXES))
  return _Place(path, inner, any(find_images(path)), has_file(path, SUFFIXES))


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


def _are_classes(places: Sequence[_Place], bases: Collection[str]) -> bool:
  """Returns whether directories in the given directories are splits, by their names."""
  parts = {".", *(path.name for place in places for path in place.inner)}
  has_roles = {"train"} < {find_role(name) for name in parts if states_role(name)}
  return not parts.isdisjoint(bases) or (has_roles and not any(p.role in ROLES for p in places))


def _read_classes(places: Sequence[_Place], skipped: tuple[Path, ...] = ()) -> FolderLayout:
  return FolderLayout({"train": {p.path.name: p.path for p in places}}, skipped=skipped)


def _read_splits(
  places: Sequence[_Place], known: Sequence[_Place], bases: Collection[str], problem: str = ""
) -> FolderLayout:
  """Returns the layout of a folder with directories that are known to be splits.

  Another directory is a split, too, if its subdirectories have exactly the names of those in a
  known split, and images. If the config names no splits, similar names suffice, see `_is_like`.
  """
  like = next((place for place in known if place.role == "train"), known[0])
  splits = [
    place
    for place in places
    if place in known
    or (place.is_filled and place.names == like.names)
    or (place.is_filled and not bases and _is_like(place, like.names))
  ]
  others = [place for place in places if place not in splits]
  unlabeled = [place for place in others if place.role or place.path.name in bases]
  return FolderLayout(
    {place.path.name: {path.name: path for path in place.inner} for place in splits},
    tuple(place.path.name for place in unlabeled),
    tuple(place.path for place in others if place not in unlabeled),
    problem,
  )


def _doubt_roles(field: str, root: Path, places: Sequence[_Place]) -> str:
  """Returns the problem of a directory called train that may be a class beside other classes."""
  known = sorted(place.path.name for place in places if states_role(place.path.name))
  others = sorted(place.path.name for place in places if place.is_filled and not place.role)
  if not others or len({find_role(name) for name in known}) > 1:
    return ""
  return (
    f"{field}: {listing(known)} may be a split or, like {listing(others[:5])}, a class."
    f"{suggest_name(others[0])} For a split, set data.splits.{find_role(known[0])}={known[0]}. If"
    f" all are classes, list them in {root / FILE}, one name on each line."
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
