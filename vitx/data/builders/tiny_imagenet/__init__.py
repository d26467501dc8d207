"""Tiny ImageNet-200 as a TFDS set, from the user's copy of the official archive."""

import os

from etils import epath


def prepare(data_dir: os.PathLike | str, archive: os.PathLike | str) -> epath.Path:
  """Prepares the set as ArrayRecord, without TensorFlow, and returns its directory.

  Args:
    data_dir: The TFDS directory to write to.
    archive: The path of tiny-imagenet-200.zip, or of the directory extracted from it.

  Raises:
    ConfigError: The archive is missing or has another layout.
  """
  # The import is here because TFDS registers the class at import, and most runs do not need it.
  from vitx.data.builders.tiny_imagenet.tiny_imagenet_dataset_builder import Builder

  builder = Builder(data_dir=os.fspath(data_dir), file_format="array_record", archive=archive)
  builder.download_and_prepare()
  return epath.Path(builder.data_dir)
