"""Finds prepared TFDS sets that can be read, and states the command that prepares one."""

import json
import os
import re

import tensorflow_datasets as tfds
from etils import epath
from tensorflow_datasets.core.utils.version import list_all_versions

from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.registry import is_trusted, reach_current_folder, refuse_code
from vitx.data.builders import BUILDERS
from vitx.data.cache import cache_directory

READABLE = "array_record"
_NAME = re.compile(r"(?P<name>\w+)(?:/(?P<config>[^:/]+))?(?::(?P<version>\d+\.\d+\.\d+))?")
_TEMPLATE = re.compile(r"([^{}]|\{[A-Z_]+\})*")  # templates of a split's file names


def default_data_dir(data_dir: str | os.PathLike | None) -> epath.Path:
  """Returns the directory of TFDS sets: `data_dir`, else $TFDS_DATA_DIR, else TFDS's default."""
  chosen = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  return epath.Path(chosen).expanduser()


def parse_name(name: str) -> tuple[str, str | None, str | None]:
  """Returns the parts of `NAME[/CONFIG][:VERSION]`; a missing part is None.

  Raises:
    ConfigError: The name has another form.
  """
  match = _NAME.fullmatch(name)
  if match is None:
    raise ConfigError(
      f"data.source={name!r} does not have one of the forms NAME, NAME/CONFIG, NAME:VERSION,"
      " folder:PATH, csv:FILE, bytes:FILE, audio:FOLDER, hf:NAME and module:function."
    )
  return match["name"], match["config"], match["version"]


def check_known(name: str) -> None:
  """Checks that TFDS or vitx knows a name.

  Raises:
    ConfigError: The name is unknown; the message suggests the nearest name.
  """
  base = parse_name(name)[0]
  names = [*tfds.list_builders(with_community_datasets=False), *BUILDERS]  # needs no network
  if base not in names:
    raise ConfigError(
      f"data.source={name!r} is unknown.{nearest(base, names)} Valid: {listing(BUILDERS)},"
      " folder:PATH, csv:FILE, bytes:FILE, audio:FOLDER, hf:NAME, images or texts of TFDS"
      " (tfds.list_builders()) or in your TFDS directory, or your own source as module:function."
    )


def command(name: str, data_dir: str | os.PathLike | None = None, source: str = "") -> str:
  """Returns the command that prepares a set."""
  parts = ["vitx prepare", name]
  parts += ["--from", source] if source else []
  parts += ["--data_dir", os.fspath(data_dir)] if data_dir else []
  return " ".join(parts)


def versions(directory: epath.Path) -> list[epath.Path]:
  """Returns the directories of the prepared versions of a set, the newest last."""
  paths = [directory / str(version) for version in list_all_versions(directory)]
  return [path for path in paths if (path / "dataset_info.json").exists()]


def find(name: str, data_dir: epath.Path) -> epath.Path | None:
  """Returns the directory of a prepared version of a set, or None if there is none.

  The version is the one in the name, else the newest.

  Raises:
    ConfigError: The set has configs and the name does not choose one.
  """
  base, config, version = parse_name(name)
  directory = data_dir / base / config if config else data_dir / base
  found = [path for path in versions(directory) if version in (None, path.name)]
  if not found and not config and directory.is_dir():
    configs = sorted(path.name for path in directory.iterdir() if versions(path))
    if configs:
      raise ConfigError(
        f"data.source={name!r} has several configs. Name one of the prepared ones:"
        f" {listing(f'{base}/{config}' for config in configs)}."
      )
  return found[-1] if found else None


def prepared_directory(name: str, data_dir: str | None) -> epath.Path:
  """Returns the directory of a prepared version of a set that can be read.

  A set of vitx's own (`BUILDERS`) that needs no archive is prepared if necessary. It is written to
  the cache of vitx, since the TFDS directory belongs to the user.

  Raises:
    ConfigError: The name is unknown, or the set is not prepared as ArrayRecord; the message has the
      command to run.
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
  """Returns the names of the file formats of a prepared version.

  A version that names no format is TFRECORD, because TFDS before 4.4 did not write the name.
  """
  path = directory / "dataset_info.json"
  try:
    info = json.loads(path.read_bytes())
  except ValueError as error:
    raise make_damage_error(path, error) from error
  if not isinstance(info, dict) or "name" not in info:
    raise make_damage_error(path, "it does not name a data set")
  return [info.get("fileFormat") or "tfrecord", *info.get("alternativeFileFormats", [])]


def make_damage_error(path: epath.Path, why: object) -> ConfigError:
  """Returns the error for a damaged file of a prepared set."""
  return ConfigError(
    f"{path} is damaged ({why}). Remove {path.parent} and prepare the set again, or"
    " restore the file from a copy."
  )


def check_readable(name: str, directory: epath.Path, root: epath.Path) -> None:
  """Checks that a prepared copy is stored as ArrayRecord.

  Raises:
    ConfigError: The copy has another format; the message has the command that converts it.
  """
  formats = file_formats(directory)
  if READABLE in formats:
    return
  if "tfrecord" not in formats:
    raise ConfigError(
      f"data.source={name!r}: the format of {directory} is {listing(formats)}, and vitx"
      f" reads only {READABLE}. Prepare the set again in that format."
    )
  target = f"{os.fspath(root).rstrip('/')}-array_record"
  raise ConfigError(
    f"data.source={name!r}: {directory} is a TFRECORD copy, which only TensorFlow reads."
    f" Convert it: {command(name, target, os.fspath(root))}"
    f"  and set data.data_dir={target!r} (or TFDS_DATA_DIR)."
  )


class _CodeRefusedError(Exception):
  """The error for a prepared set that names Python code which the user has not allowed to run."""


def _guard_feature_classes() -> None:
  """Prevents TFDS from importing the feature classes of a prepared set without permission.

  TFDS imports the module of each class that `features.json` names. This function replaces the
  method by which TFDS looks up these classes. TFDS uses it for the new and the old form of the
  file, and for features inside other features. The classes of TFDS itself need no permission.
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
    directory: The directory of the version.
    file_format: The format of the files to read; None is the format that the set names.

  Raises:
    ConfigError: The directory has no prepared set, or its metadata name files outside of it. This
      error is also raised if `features.json` names a feature class outside TFDS and the user does
      not allow foreign code to run.
  """
  try:
    builder = tfds.builder_from_directory(os.fspath(directory), file_format=file_format)
    for split in builder.info.splits.values():
      _check_names(split, directory)
  except _CodeRefusedError as error:
    raise refuse_code(str(error), f"{directory / 'features.json'}: pythonClassName") from error
  except ConfigError:
    raise
  except Exception as error:  # TFDS raises many kinds of errors for files it did not write
    raise make_damage_error(directory / "features.json", error) from error
  return builder


def _check_names(split: tfds.core.SplitInfo, directory: epath.Path) -> None:
  """Checks that the metadata of a split name no file outside the set's directory.

  TFDS makes the names of files from a template and from the names of the set and the split, and
  joins them to the directory without a check.

  Raises:
    ConfigError: `dataset_info.json` names a file outside the directory.
  """
  template = split.filename_template
  plain = _TEMPLATE.fullmatch(template.template)  # rejects huge field widths and attribute access
  name = template.relative_filepath(shard_index=0, num_shards=1) if plain else template.template
  place = os.path.normpath(name)
  if not plain or "://" in name or os.path.isabs(place) or place.split(os.sep)[0] == os.pardir:
    raise make_damage_error(
      directory / "dataset_info.json",
      f"it names the files of the split {split.name!r} {name!r}, outside of this directory",
    )
