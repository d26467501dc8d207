"""Replaces whole files, and reads files that somebody else may have made."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from etils import epath

from vitx.config.errors import ConfigError, MissingExtraError, UnreadableError


def replace_text(path: str | os.PathLike, text: str) -> None:
  """Writes a whole text file in UTF-8, as `replace_bytes` does."""
  replace_bytes(path, text.encode())


def replace_bytes(path: str | os.PathLike, content: bytes) -> None:
  """Writes a whole file; a concurrent reader sees the old or the new content, never a part.

  The path may be a URL such as gs://bucket/path. The folder is created if necessary.
  """
  place = epath.Path(path)
  place.parent.mkdir(parents=True, exist_ok=True)
  if "://" in str(path):  # an object store replaces a whole object at once
    place.write_bytes(content)
    return
  partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
  partial.write_bytes(content)
  partial.replace(place)


@contextlib.contextmanager
def reading(problem: str) -> Iterator[None]:
  """Turns any exception that a `with` block raises while it reads a file into an UnreadableError.

  For a damaged file, libraries raise many kinds of exceptions: those of zlib and struct,
  MemoryError, RecursionError and AttributeError.

  Args:
    problem: The beginning of the message, with the file and the failure, such as "'a.npz' cannot be
      read as arrays".
  """
  try:
    yield
  except (ConfigError, MissingExtraError):
    raise
  except Exception as error:
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    raise UnreadableError(f"{problem}: {reason}") from error


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
  """Returns the arrays of an `.npz` file by name, or the array of an `.npy` file under "".

  Pickled objects in a file are refused, so that no code runs.

  Raises:
    ConfigError: The file does not exist, or is not a complete file of arrays.
  """
  # The file is opened here because NumPy does not close a file that it opened and cannot read.
  with reading(f"{str(path)!r} cannot be read as arrays"), open(path, "rb") as raw:
    content = np.load(raw, allow_pickle=False)
    return {"": content} if isinstance(content, np.ndarray) else dict(content)
