"""Finds prepared TFDS sets that can be read, and states the command that prepares one."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds
from etils import epath
from tensorflow_datasets.core.utils.version import list_all_versions

from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.registry import is_trusted, reach_current_folder, refuse_code
from vitx.data.builders import BUILDERS
from vitx.data.cache import cache_directory
from vitx.files import reading

READABLE = "array_record"
_NAME = re.compile(r"(?P<name>\w+)(?:/(?P<config>[^:/]+))?(?::(?P<version>\d+\.\d+\.\d+))?")

_FORMS = (
  "NAME, NAME/CONFIG, NAME:VERSION, folder:PATH, csv:FILE, bytes:FILE, audio:FOLDER,"
  " hf:NAME and module:function"
)


def default_data_dir(data_dir: str | os.PathLike | None) -> epath.Path:
  """Returns the directory of TFDS sets: `data_dir`, else $TFDS_DATA_DIR, else TFDS's default."""
  chosen = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  return epath.Path(chosen).expanduser()


def parse_name(name: str) -> tuple[str, str | None, str | None]:
  """Returns the parts of `NAME[/CONFIG][:VERSION]`; a missing part is None."""
  match = _NAME.fullmatch(name)
  if match is None:
    raise ConfigError(f"data.source={name!r} does not have one of the forms {_FORMS}.")
  return match["name"], match["config"], match["version"]


def check_known(name: str, data_dir: epath.Path | None = None) -> None:
  """Checks that TFDS or vitx knows a name; the error suggests a similar one, also in `data_dir`."""
  base = parse_name(name)[0]
  names = [*tfds.list_builders(with_community_datasets=False), *BUILDERS]  # needs no network
  if base not in names:
    names += [path.name for path in data_dir.glob("*")] if data_dir else []
    raise ConfigError(
      f"data.source={name!r} is unknown.{nearest(base, names)} Give {listing(BUILDERS)}, a name in"
      f" tfds.list_builders() or in your TFDS directory, or another of the forms {_FORMS}."
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
  """Returns the directory of a prepared version, or None if there is none.

  The version is the one in the name, else the newest.
  """
  base, config, version = parse_name(name)
  directory = data_dir / base / config if config else data_dir / base
  prepared = [path for path in versions(directory) if version in (None, path.name)]
  if not prepared and not config and directory.is_dir():
    configs = sorted(path.name for path in directory.iterdir() if versions(path))
    if configs:
      raise ConfigError(
        f"data.source={name!r} has several configs. Name one of the prepared ones:"
        f" {listing(f'{base}/{config}' for config in configs)}."
      )
  return prepared[-1] if prepared else None


def prepared_directory(name: str, data_dir: str | None) -> epath.Path:
  """Returns the directory of a prepared version of a set that can be read.

  A set of vitx's own (`BUILDERS`) that needs no archive is prepared if necessary. It is written to
  the cache of vitx, since the TFDS directory belongs to the user.
  """
  root = default_data_dir(data_dir)
  directory, base = find(name, root), parse_name(name)[0]
  builder = BUILDERS.get(base)
  if directory is None and builder is not None and not builder.archive:
    root = epath.Path(cache_directory()) / "tfds"
    if find(base, root) is None:
      builder.prepare(root)
    directory = find(name, root)
  if directory is None:
    check_known(name, root)
    source = f"PATH_OF_{builder.archive}" if builder is not None else ""
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
  with reading(describe_damage(path)):
    info = json.loads(path.read_bytes())
    return [info.get("fileFormat") or "tfrecord", *info.get("alternativeFileFormats", [])]


def describe_damage(path: os.PathLike | str) -> str:
  """Returns the beginning of an error about a damaged file of a prepared set."""
  return f"{os.fspath(path)} is damaged; prepare the set again, or restore the file from a copy"


def check_readable(name: str, directory: epath.Path, root: epath.Path) -> None:
  """Checks that a prepared copy is stored as ArrayRecord."""
  formats = file_formats(directory)
  if READABLE not in formats:
    target = f"{os.fspath(root).rstrip('/')}-array_record"
    convert = command(name, target, os.fspath(root))
    raise ConfigError(
      f"data.source={name!r}: the format of {directory} is {listing(formats)}, and vitx reads only"
      f" {READABLE}. Convert a tfrecord copy: {convert}"
      f"  and set data.data_dir={target!r} (or TFDS_DATA_DIR)."
    )


def names_of_classes(tree: Any) -> Iterator[str]:
  """Yields the names of classes in the content of `features.json`, and in JSON inside of texts."""
  if isinstance(tree, str):
    with contextlib.suppress(ValueError):
      tree = json.loads(tree)
  if isinstance(tree, list):
    for entry in tree:
      yield from names_of_classes(entry)
  if isinstance(tree, dict):
    for key, entry in tree.items():
      if key in ("pythonClassName", "python_class_name", "type") and isinstance(entry, str):
        yield entry
      yield from names_of_classes(entry)


def open_builder(directory: epath.Path, file_format: str | None = None) -> tfds.core.DatasetBuilder:
  """Returns TFDS's builder of a prepared version.

  TFDS imports the module of each feature class that `features.json` names. So the file is searched
  first: classes that TFDS does not ship need the user's permission.

  Args:
    directory: The directory of the version.
    file_format: The format of the files to read; None is the format that the set names.
  """
  path = directory / "features.json"
  shipped = tfds.features.FeatureConnector._registered_features
  with reading(describe_damage(path)):
    foreign = set(names_of_classes(json.loads(path.read_text()))) - shipped.keys()
    for name in sorted(name for name in foreign if "." in name):
      if not is_trusted():
        raise refuse_code(name, f"{path}: pythonClassName")
      reach_current_folder()
    return tfds.builder_from_directory(os.fspath(directory), file_format=file_format)
