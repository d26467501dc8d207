"""Files of NumPy's arrays."""

import zipfile
from pathlib import Path

import numpy as np

from vitx.data.regular_file import open_file
from vitx.errors import ConfigError


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
  """Returns the arrays of an `.npz` file by name, or that of an `.npy` file under "".

  Nothing that a file pickles is executed.

  Raises:
    ConfigError: there is no such file, or it is no whole file of arrays.
  """
  try:
    # NumPy leaves a file open that it cannot read, if it opened it itself.
    with open_file(path) as raw:
      found = np.load(raw, allow_pickle=False)
      return {"": found} if isinstance(found, np.ndarray) else dict(found)
  except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
    raise ConfigError(f"{str(path)!r} cannot be read as arrays: {error}") from error
