"""Files that others made: what a reader of one may raise, and how much memory one may become."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitx.checks import check_number
from vitx.errors import ConfigError, MissingExtraError

VARIABLE = "VITX_MAX_INFLATED_GIB"
DEFAULT = 2**28  # bytes; Pillow's limit too, of 89 million pixels in three bytes
# A file that becomes no more than so many times its own size is no bomb, however large.
RATIO = 20


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
  with reading(f"{str(path)!r} cannot be read as arrays"), open(path, "rb") as raw:
    found = np.load(raw, allow_pickle=False)
    if isinstance(found, np.ndarray):
      return {"": found}
    declared = sum(member.file_size for member in found.zip.infolist())
    check_inflated(repr(str(path)), declared, os.fstat(raw.fileno()).st_size)
    return dict(found)
