"""Reads untrusted files safely, and replaces whole files.

Only regular files are read. Damaged files raise one type of error. The unpacked size is limited.
"""

import contextlib
import errno
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from vitx.config.checks import check_number
from vitx.config.errors import ConfigError, MissingExtraError

VARIABLE = "VITX_MAX_INFLATED_GIB"
DEFAULT = 2**28  # bytes; equals Pillow's limit of 89 million pixels of three bytes
# A file whose content inflates at most by this factor is allowed, however large it is.
RATIO = 20


def open_file(path: str | os.PathLike) -> BinaryIO:
  """Opens a file for reading.

  Pipes and devices are refused: reading a pipe may never return, and a device may have no end.

  Raises:
    OSError: The file cannot be read or is not a regular file.
  """
  descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
  if not stat.S_ISREG(os.fstat(descriptor).st_mode):
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
  return os.fdopen(descriptor, "rb")


def read_bytes(path: str | os.PathLike) -> bytes:
  """Returns the content of a file.

  Raises:
    OSError: The file cannot be read or is not a regular file.
  """
  with open_file(path) as file:
    return file.read()


def replace_text(path: Path, text: str) -> None:
  """Writes a whole text file in UTF-8, as `replace_bytes` does."""
  replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes) -> None:
  """Writes a whole file; a concurrent reader sees the old or the new content, never a part.

  The folder is created if necessary.

  Raises:
    OSError: The file cannot be written.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  partial.write_bytes(content)
  partial.replace(path)


@contextlib.contextmanager
def reading(problem: str) -> Iterator[None]:
  """Turns any exception that a `with` block raises while it reads a file into a ConfigError.

  For a damaged file, libraries raise many kinds of exceptions: those of zlib and struct,
  MemoryError, RecursionError and AttributeError.

  Args:
    problem: The beginning of the message, with the file and the failure, such as "'a.npz' cannot be
      read as arrays".

  Raises:
    ConfigError: The `with` block raised any exception but MissingExtraError.
  """
  try:
    yield
  except (ConfigError, MissingExtraError):
    raise
  except Exception as error:
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    raise ConfigError(f"{problem}: {reason}") from error


def check_inflated(where: str, declared: int, stored: int) -> None:
  """Checks the unpacked size that a compressed file declares, before anything is unpacked.

  Args:
    where: The name of the file, for the error.
    declared: The size of the unpacked content in bytes, as the file declares it.
    stored: The size of the file in bytes.

  Raises:
    ConfigError: The declared size is more than `most_inflated` allows.
  """
  if declared > most_inflated(stored):
    raise ConfigError(
      f"{where} has {stored:,} bytes and becomes {declared:,} in memory: more than {RATIO} times"
      f" as many, and more than {VARIABLE}={limit() / 2**30:g} allows. If you trust the file,"
      f" set the environment variable {VARIABLE}={math.ceil(declared / 2**30)}"
    )


def most_inflated(stored: int) -> float:
  """Returns the largest unpacked size in bytes that a file of `stored` bytes may have.

  It is `RATIO` times the file's size, or `limit` if that is more.

  Raises:
    ConfigError: The environment variable `VITX_MAX_INFLATED_GIB` is not a positive number.
  """
  return max(limit(), RATIO * stored)


def limit() -> float:
  """Returns the unpacked size in bytes that is allowed even for a file that is very small.

  The environment variable `VITX_MAX_INFLATED_GIB` sets it.

  Raises:
    ConfigError: The environment variable `VITX_MAX_INFLATED_GIB` is not a positive number.
  """
  given = os.environ.get(VARIABLE, "")
  if not given:
    return DEFAULT
  try:
    value = float(given)
  except ValueError:
    value = math.nan
  return check_number(value if math.isfinite(value) else given, VARIABLE, "(0, inf)") * 2**30


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
  """Returns the arrays of an `.npz` file by name, or the array of an `.npy` file under "".

  Pickled objects in a file are refused, so that no code runs.

  Raises:
    ConfigError: The file does not exist, is not a complete file of arrays, or has larger arrays
      than `check_inflated` allows.
  """
  # The file is opened here because NumPy does not close a file that it opened and cannot read.
  with reading(f"{str(path)!r} cannot be read as arrays"), open_file(path) as raw:
    found = np.load(raw, allow_pickle=False)
    if isinstance(found, np.ndarray):
      return {"": found}
    declared = sum(member.file_size for member in found.zip.infolist())
    check_inflated(repr(str(path)), declared, os.fstat(raw.fileno()).st_size)
    return dict(found)
