"""Files that a user names or a folder holds: regular ones alone are opened."""

import errno
import os
import stat
from typing import BinaryIO


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
