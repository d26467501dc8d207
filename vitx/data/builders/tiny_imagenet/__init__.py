"""Tiny ImageNet-200 as a TFDS set, from the official archive that the user has."""

import os

from etils import epath


def prepare(data_dir: os.PathLike | str, archive: os.PathLike | str) -> epath.Path:
  """Prepares the set as ArrayRecord, without TensorFlow, and returns its directory.

  Args:
    data_dir: TFDS directory to write to.
    archive: tiny-imagenet-200.zip, or the directory extracted from it.

  Raises:
    ConfigError: the archive is missing or has another layout.
  """
  # Imported here: TFDS registers the class at import, and most runs need none of it.
  from vitx.data.builders.tiny_imagenet.tiny_imagenet_dataset_builder import Builder

  builder = Builder(data_dir=os.fspath(data_dir), file_format="array_record", archive=archive)
  builder.download_and_prepare()
  return epath.Path(builder.data_dir)
