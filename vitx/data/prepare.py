"""Prepares a data set for training, as ArrayRecord files."""

import importlib.util
import os

import tensorflow_datasets as tfds
from etils import epath

from vitx.config.errors import ConfigError, MissingExtraError
from vitx.data.builders import BUILDERS, tfrecord_to_array_record
from vitx.data.sources import tfds_dir
from vitx.data.sources.tfds_records import find_content


def prepare(name: str, data_dir: str | None = None, source: str | None = None) -> epath.Path:
  """Prepares a data set as ArrayRecord and returns the directory of its version.

  Args:
    name: The name of the set, `NAME[/CONFIG][:VERSION]`.
    data_dir: The directory to write to; None is $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    source: The path of the archive for `tiny_imagenet`, or of a TFRECORD copy for a set of TFDS;
      None for other sets, which are generated or downloaded.
  """
  root = tfds_dir.default_data_dir(data_dir)
  base, config, version = tfds_dir.parse_name(name)
  entry = BUILDERS.get(base)
  if source and not (entry and entry.archive):
    return tfrecord_to_array_record.convert(name, source, root)
  if entry is None:
    return _download(name, root)
  if config or version not in (None, entry.version()):
    raise ConfigError(f"data set {name!r} does not exist; vitx has only {base}:{entry.version()}.")
  if entry.archive and not source:
    raise ConfigError(
      f"data set {name!r} is prepared from its official archive. Download it from {entry.url}, then"
      f" run: {tfds_dir.command(name, data_dir, f'PATH_OF_{entry.archive}')}"
    )
  return entry.prepare(root, source)


def _download(name: str, root: epath.Path) -> epath.Path:
  tfds_dir.check_known(name)
  directory = tfds_dir.find(name, root)
  if directory is not None:
    tfds_dir.check_readable(name, directory, root)
    return directory
  if importlib.util.find_spec("tensorflow") is None:
    raise MissingExtraError(f"Preparing {name!r}", "prepare")
  builder = tfds.builder(name, data_dir=os.fspath(root), file_format=tfds_dir.READABLE)
  find_content(builder.info, name)  # an unsuitable set raises an error before hours of downloading
  builder.download_and_prepare()
  return epath.Path(builder.data_dir)
