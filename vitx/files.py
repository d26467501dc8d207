"""Files that others made: which are opened, what readers raise, how large they may become."""

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
DEFAULT = 2**28  # bytes; Pillow's limit too, of 89 million pixels in three bytes
# A file that becomes no more than so many times its own size is no bomb, however large.
RATIO = 20


def open_file(path: str | os.PathLike) -> BinaryIO:
  """Opens a file for reading.

  A pipe would keep its reader waiting for ever, and a device may have no end: neither is opened.

  Raises:
    OSError: it cannot be read, or is no regular file.
  """
  descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
  if not stat.S_ISREG(os.fstat(descriptor).st_mode):
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
  return os.fdopen(descriptor, "rb")


def read_bytes(path: str | os.PathLike) -> bytes:
  """Returns the content of a file.

  Raises:
    OSError: as of `open_file`.
  """
  with open_file(path) as file:
    return file.read()


def replace_text(path: Path, text: str) -> None:
  """Writes a file so that a reader sees the old or the new one, never a part.

  Its folder is created if absent. Raises OSError if it cannot be written.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
  partial.write_text(text, encoding="utf-8")
  partial.replace(path)


@contextlib.contextmanager
def reading(problem: str) -> Iterator[None]:
  """Lets whatever a reader raises on a damaged file become one ConfigError, in one line.

  A reader of foreign bytes meets all that its libraries raise: errors of zlib and struct, of memory
  and of recursion, attributes that are not there.

  Args:
    problem: names the file and says what failed, such as "'a.npz' cannot be read as arrays".

  Raises:
    ConfigError: in the block anything was raised but a ConfigError or MissingExtraError.
  """
  try:
    yield
  except (ConfigError, MissingExtraError):
    raise
  except Exception as error:
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    raise ConfigError(f"{problem}: {reason}") from error


def check_inflated(where: str, declared: int, stored: int) -> None:
  """Holds what a file says it will become to the limit, before any of it is inflated.

  Args:
    where: names the file, for the error.
    declared: bytes of memory that the file says its content becomes.
    stored: bytes of the file.

  Raises:
    ConfigError: it is over `RATIO` times the file and over the limit, which the environment
      variable `VITX_MAX_INFLATED_GIB` raises.
  """
  if declared > max(limit(), RATIO * stored):
    raise ConfigError(
      f"{where} has {stored:,} bytes and says that it becomes {declared:,}: more than {RATIO} times"
      f" as many, and more than {VARIABLE}={limit() / 2**30:g} allows. If you trust it, set that"
      f" variable of the environment to {math.ceil(declared / 2**30)}"
    )


def limit() -> float:
  """Returns the bytes that any file may become, however small it is.

  Raises:
    ConfigError: the environment variable is no positive number.
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
  """Returns the arrays of an `.npz` file by name, or that of an `.npy` file under "".

  Nothing that a file pickles is executed.

  Raises:
    ConfigError: there is no such file, it is no whole file of arrays, or its arrays are larger than
      `check_inflated` allows.
  """
  # NumPy leaves a file open that it cannot read, if it opened it itself.
  with reading(f"{str(path)!r} cannot be read as arrays"), open_file(path) as raw:
    found = np.load(raw, allow_pickle=False)
    if isinstance(found, np.ndarray):
      return {"": found}
    declared = sum(member.file_size for member in found.zip.infolist())
    check_inflated(repr(str(path)), declared, os.fstat(raw.fileno()).st_size)
    return dict(found)
