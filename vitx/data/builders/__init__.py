"""The TFDS sets for which vitx has its own builders.

To add a set, write a package here with a TFDS builder class, which has the name of the set in
CamelCase, and an entry of `BUILDERS`.
"""

import os
from dataclasses import dataclass

import tensorflow_datasets as tfds
from absl import logging
from etils import epath
from tensorflow_datasets.core.utils import tqdm_utils

from vitx.config.errors import ConfigError
from vitx.config.registry import import_name


@dataclass(frozen=True)
class BundledDataset:
  """A data set that vitx prepares as ArrayRecord files, without TensorFlow or a download.

  Attributes:
    shape: The shape of the images, (height, width, C).
    builder: The TFDS builder class, as `module:Name`. It is imported only to prepare the set,
      because TFDS registers the class at import.
    archive: The file name of the archive that the user provides; "" if none is needed.
  """

  shape: tuple[int, int, int]
  classes: int
  builder: str
  archive: str = ""
  url: str = ""

  def version(self) -> str:
    """Returns the only version of the set."""
    return str(import_name(self.builder).VERSION)

  def prepare(self, data_dir: os.PathLike | str, archive: str | None = None) -> epath.Path:
    """Prepares the set if necessary, and returns the directory of its version.

    Several processes may prepare the set at once. Each process writes to a temporary directory of
    its own, and one process succeeds in renaming its directory.

    Args:
      data_dir: The TFDS directory to write to.
      archive: The path of the archive, or of the directory extracted from it; None if none is
        needed.
    """
    arguments = {"archive": archive} if self.archive else {}
    builder = import_name(self.builder)(
      data_dir=os.fspath(data_dir), file_format="array_record", **arguments
    )
    directory = epath.Path(builder.data_dir)
    if not directory.exists():
      logging.info("preparing the data set %s in %s, without a download", builder.name, directory)
    # TFDS would print that it downloads the set, and show a bar even for a step of one second.
    builder._log_download_bytes = builder._log_download_done = lambda: None
    shows = tqdm_utils._active
    tfds.display_progress_bar(bool(self.archive))
    try:
      builder.download_and_prepare()
    except OSError as error:
      if not (directory / "dataset_info.json").exists():
        raise ConfigError(
          f"data.source={builder.name!r} cannot be prepared in {data_dir} ({error}). Set"
          " XDG_CACHE_HOME to a directory that can be written, or run vitx prepare with --data_dir."
        ) from error
    finally:
      tfds.display_progress_bar(shows)
    return directory


BUILDERS = {
  "digits": BundledDataset(
    (8, 8, 1), 10, "vitx.data.builders.digits.digits_dataset_builder:Digits"
  ),
  "tiny_imagenet": BundledDataset(
    (64, 64, 3),
    200,
    "vitx.data.builders.tiny_imagenet.tiny_imagenet_dataset_builder:TinyImagenet",
    archive="tiny-imagenet-200.zip",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
  ),
}
