"""Where TFDS sets lie, whether they can be read, and which command prepares them."""

import json
import os
import re

import tensorflow_datasets as tfds
from etils import epath

from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.registry import is_trusted, reach_current_folder, refuse_code
from vitx.data.builders import BUILDERS
from vitx.data.cache import cache_directory

READABLE = "array_record"
_NAME = re.compile(r"(?P<name>\w+)(?:/(?P<config>[^:/]+))?(?::(?P<version>\d+\.\d+\.\d+))?")
_TEMPLATE = re.compile(r"([^{}]|\{[A-Z_]+\})*")  # of the names of a split's files
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def default_data_dir(data_dir: str | os.PathLike | None) -> epath.Path:
  """Returns `data_dir`, else $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
  chosen = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  return epath.Path(chosen).expanduser()


def known_names() -> list[str]:
  """Returns the names that TFDS has a builder for, and ours; asks no network."""
  return [*tfds.list_builders(with_community_datasets=False), *BUILDERS]


def parse_name(name: str) -> tuple[str, str | None, str | None]:
  """Splits `NAME[/CONFIG][:VERSION]`. Raises ConfigError for any other form."""
  match = _NAME.fullmatch(name)
  if match is None:
    raise ConfigError(
      f"data.source={name!r} is not of the form NAME, NAME/CONFIG, NAME:VERSION, folder:PATH,"
      " bytes:FILE, audio:FOLDER or module:function."
    )
  return match["name"], match["config"], match["version"]


def check_known(name: str) -> None:
  """Raises ConfigError, with the nearest match, for a name that neither TFDS nor vitx has."""
  base = parse_name(name)[0]
  names = known_names()
  if base not in names:
    raise ConfigError(
      f"data.source={name!r} is unknown.{nearest(base, names)} Valid: {listing(BUILDERS)},"
      " folder:PATH, bytes:FILE, audio:FOLDER, a set of images or texts of TFDS"
      " (tfds.list_builders()) or of your TFDS directory, or your own source as module:function."
    )


def command(name: str, data_dir: str | os.PathLike | None = None, source: str = "") -> str:
  """Returns the command that prepares a set."""
  parts = ["vitx prepare", name]
  parts += ["--from", source] if source else []
  parts += ["--data_dir", os.fspath(data_dir)] if data_dir else []
  return " ".join(parts)


def versions(directory: epath.Path) -> list[epath.Path]:
  """Returns the prepared versions in a directory, the newest last."""
  if not directory.is_dir():
    return []
  found = [
    path
    for path in directory.iterdir()
    if _VERSION.fullmatch(path.name) and (path / "dataset_info.json").exists()
  ]
  return sorted(found, key=lambda path: tuple(map(int, path.name.split("."))))


def find(name: str, data_dir: epath.Path) -> epath.Path | None:
  """Returns the directory of the newest prepared version (or the one named), if there is one.

  Raises:
    ConfigError: the set has configs and the name chooses none.
  """
  base, config, version = parse_name(name)
  directory = data_dir / base / config if config else data_dir / base
  found = [path for path in versions(directory) if version in (None, path.name)]
  if not found and not config and directory.is_dir():
    configs = sorted(path.name for path in directory.iterdir() if versions(path))
    if configs:
      raise ConfigError(
        f"data.source={name!r} has several configs. Write one of those prepared:"
        f" {listing(f'{base}/{config}' for config in configs)}."
      )
  return found[-1] if found else None


def prepared_directory(name: str, data_dir: str | None) -> epath.Path:
  """Returns the version directory of a set that can be read.

  A set of our own that needs no archive is prepared if need be, in a cache of our own: the
  directory of TFDS is the user's.

  Raises:
    ConfigError: unknown name; not prepared, or not as ArrayRecord: names the command to run.
  """
  root = default_data_dir(data_dir)
  directory = find(name, root)
  own = BUILDERS.get(name)
  if directory is None and own is not None and not own.archive:
    root = epath.Path(cache_directory()) / "tfds"
    directory = find(name, root) or own.prepare(root)
  if directory is None:
    check_known(name)
    source = f"PATH_OF_{own.archive}" if own is not None else ""
    raise ConfigError(
      f"data.source={name!r} is not prepared in {root}. Run: {command(name, data_dir, source)}"
    )
  check_readable(name, directory, root)
  return directory


def file_formats(directory: epath.Path) -> list[str]:
  """Returns the formats in which a version is there; TFDS before 4.4 wrote TFRECORD and no name."""
  path = directory / "dataset_info.json"
  try:
    info = json.loads(path.read_bytes())
  except ValueError as error:
    raise make_damage_error(path, error) from error
  if not isinstance(info, dict) or "name" not in info:
    raise make_damage_error(path, "it names no data set")
  return [info.get("fileFormat") or "tfrecord", *info.get("alternativeFileFormats", [])]


def make_damage_error(path: epath.Path, why: object) -> ConfigError:
  """Returns the error for a file of a prepared set that cannot be what TFDS wrote."""
  return ConfigError(
    f"{path} is damaged ({why}). Remove {path.parent} and prepare the set again, or restore it from"
    " a copy."
  )


def check_readable(name: str, directory: epath.Path, root: epath.Path) -> None:
  """Raises ConfigError, with the command that converts it, unless a copy is ArrayRecord."""
  formats = file_formats(directory)
  if READABLE in formats:
    return
  if "tfrecord" not in formats:
    raise ConfigError(f"data.source={name!r} in {directory} is {listing(formats)}, not {READABLE}.")
  target = f"{os.fspath(root).rstrip('/')}-array_record"
  raise ConfigError(
    f"data.source={name!r} in {directory} is a TFRECORD copy, which only TensorFlow reads."
    f" Convert it: {command(name, target, os.fspath(root))}"
    f"  and set data.data_dir={target!r} (or TFDS_DATA_DIR)."
  )


class _CodeRefusedError(Exception):
  """A prepared set names a feature class that TFDS would import, and that nobody has allowed."""


def _guard_feature_classes() -> None:
  """Keeps TFDS from importing the feature classes that a prepared set names.

  TFDS looks each class of `features.json` up by its module and imports the module. All ways to a
  class (the file has two forms, which may nest) pass this one method. Its own classes are
  registered already.
  """
  base = tfds.features.FeatureConnector
  find = base.cls_from_name

  def find_trusted(cls: type, python_class_name: str) -> type:
    is_code = "." in python_class_name and python_class_name not in base._registered_features
    if is_code and not is_trusted():
      raise _CodeRefusedError(python_class_name)
    if is_code:
      reach_current_folder()
    return find(python_class_name)

  base.cls_from_name = classmethod(find_trusted)  # type: ignore[method-assign, assignment]


_guard_feature_classes()


def open_builder(directory: epath.Path, file_format: str | None = None) -> tfds.core.DatasetBuilder:
  """Returns TFDS's builder of a prepared version.

  Args:
    directory: of the version.
    file_format: of the files that are read; None for the one that the set names.

  Raises:
    ConfigError: the files are not those of a prepared set, or lie outside its directory; or
      `features.json` names a feature class that TFDS does not ship and the user has not said that
      foreign code may run.
  """
  try:
    builder = tfds.builder_from_directory(os.fspath(directory), file_format=file_format)
    for split in builder.info.splits.values():
      _check_names(split, directory)
  except _CodeRefusedError as error:
    raise refuse_code(str(error), f"{directory / 'features.json'}: pythonClassName") from error
  except ConfigError:
    raise
  except Exception as error:  # whatever TFDS meets in files that are not what it wrote
    raise make_damage_error(directory / "features.json", error) from error
  return builder


def _check_names(split: tfds.core.SplitInfo, directory: epath.Path) -> None:
  """Raises ConfigError for a split whose files, as `dataset_info.json` names them, lie elsewhere.

  TFDS makes their names of a template and of the names of set and split, and joins them to the
  directory unread.
  """
  template = split.filename_template
  plain = _TEMPLATE.fullmatch(template.template)  # no width of a million, no attributes
  name = template.relative_filepath(shard_index=0, num_shards=1) if plain else template.template
  place = os.path.normpath(name)
  if not plain or "://" in name or os.path.isabs(place) or place.split(os.sep)[0] == os.pardir:
    raise make_damage_error(
      directory / "dataset_info.json",
      f"files of split {split.name!r} are named {name!r}, which is no place in this directory",
    )
