"""The 1,797 handwritten digits in scikit-learn as a TFDS set."""

import os

from etils import epath

from vitx.config.errors import ConfigError


def prepare(data_dir: os.PathLike | str) -> epath.Path:
  """Prepares the set as ArrayRecord, without TensorFlow or a download, and returns its directory.

  Several processes may prepare it at once: each writes to its own directory, and one renaming wins.

  Raises:
    ConfigError: The directory cannot be written.
  """
  # The import is here because TFDS registers the class at import, and most runs do not need it.
  from vitx.data.builders.digits.digits_dataset_builder import Builder

  builder = Builder(data_dir=os.fspath(data_dir), file_format="array_record")
  directory = epath.Path(builder.data_dir)
  try:
    builder.download_and_prepare()
  except OSError as error:
    if not (directory / "dataset_info.json").exists():
      raise ConfigError(
        f"data.source='digits' cannot be prepared in {data_dir} ({error}). Set XDG_CACHE_HOME to a"
        " directory that can be written, or run: vitx prepare digits --data_dir DIR"
      ) from error
  return directory
