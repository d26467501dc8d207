"""Reads and writes the files of a workdir safely, even if a stranger made the workdir.

A stranger's workdir may have a link in place of `log.txt` or `checkpoints`, which would redirect a
write to any other file. So writes refuse links, and reads refuse pipes and devices. The workdir
itself may be a link, since its user chose it. An object store has neither links nor pipes.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from etils import epath

from vitx.config.errors import ConfigError

# Error codes of opening a link without following it (ELOOP; EMLINK on some systems), or a pipe.
_STRANGE = (errno.ELOOP, errno.EMLINK, errno.ENXIO)
ENVIRONMENT = "environment.json"  # the hardware, the versions and the data of a run
PHASES = "phases.json"  # in a workdir of several phases, a file with their names in order
REPOSITORY = "vitx.json"  # the config and the record of the data of a published model
# A directory with one of these files is a repository, or the workdir of a run or a run in phases.
_MARKS = (ENVIRONMENT, PHASES, REPOSITORY)


def append(directory: str | Path, name: str, text: str, *, sync: bool = False) -> None:
  """Adds text to the end of a file in a local directory; creates the file if it is absent.

  Args:
    directory: An existing directory.
    name: The name of the file, without a folder.
    text: The text to add.
    sync: Whether to wait until the text is on the disk.

  Raises:
    ConfigError: The path is a link, a pipe or a device.
    OSError: The file cannot be written; the error has its path.
  """
  with _open(directory, name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
    file.write(text.encode())
    if sync:
      file.flush()
      os.fsync(file.fileno())


def create(directory: str | Path, name: str, text: str) -> None:
  """Writes a new file to a local directory.

  Raises:
    FileExistsError: The path exists already, as a file or a link.
    OSError: The file cannot be written; the error has its path.
  """
  with _open(directory, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
    file.write(text.encode())


def replace(directory: str | Path, name: str, content: str | bytes) -> None:
  """Writes a whole file; a concurrent reader sees the old or the new content, never a part.

  If the path is a link, the file replaces the link, and the link's target is not written. Raises
  the errors of `append`.
  """
  data = content.encode() if isinstance(content, str) else content
  if "://" in str(directory):  # object stores replace a whole object at once
    (epath.Path(directory) / name).write_bytes(data)
    return
  partial = f".{name}.partial"
  path = os.path.join(directory, partial)
  with contextlib.suppress(FileNotFoundError):
    os.unlink(path)  # left by a killed process, or a link
  with _open(directory, partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
    file.write(data)
  os.replace(path, os.path.join(directory, name))


def read(directory: str | Path, name: str) -> bytes:
  """Returns the content of a file in a workdir.

  Links are followed, because a downloaded workdir may have links in place of files.

  Raises:
    ConfigError: The path is a pipe, a device or a directory.
    OSError: The file does not exist, or cannot be read.
  """
  path = epath.Path(directory) / name
  if "://" not in str(directory) and not stat.S_ISREG(os.stat(path).st_mode):
    raise ConfigError(f"{path} is no file; replace it by a copy of the file that the run wrote.")
  return path.read_bytes()


def check_no_link(path: str | Path) -> None:
  """Checks that a path in a workdir is not a link.

  Raises:
    ConfigError: The path is a link.
  """
  if "://" not in str(path) and os.path.islink(path):
    raise _refuse(path)


def check_output(path: str | Path) -> None:
  """Checks that neither an output path nor any folder above it is a link in a workdir.

  The link may be at any depth in the workdir; a repository counts as one. Other links are
  allowed, such as `/dev/stdout` or a workdir that is a link itself.

  Raises:
    ConfigError: The path or a folder above it is a link in a workdir.
  """
  place = Path(os.path.abspath(path))
  for each in (place, *place.parents):
    marks = (folder / name for folder in each.parents for name in _MARKS)
    if os.path.islink(each) and any(mark.exists() for mark in marks):
      raise _refuse(each)


def _refuse(path: str | Path) -> ConfigError:
  try:
    what = f"is a link to {os.readlink(path)!r}"
  except OSError:
    what = "is no file"
  return ConfigError(
    f"{str(path)!r} {what}. In a workdir only plain files and folders are written, so that nothing"
    " is written elsewhere. Remove it; only the workdir itself may be a link."
  )


@contextlib.contextmanager
def _open(directory: str | Path, name: str, flags: int) -> Iterator[BinaryIO]:
  """Opens a file for writing.

  Raises:
    ConfigError: The path is a link, a pipe or a device.
    OSError: The file cannot be opened; the error has its path.
  """
  assert os.path.basename(name) == name, name
  path = os.path.join(directory, name)
  try:
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
      descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)
    finally:
      os.close(folder)
    with os.fdopen(descriptor, "wb") as file:
      if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise _refuse(path)
      yield file
  except OSError as error:
    if error.errno in _STRANGE:
      raise _refuse(path) from error
    raise OSError(error.errno, error.strerror, path) from error
