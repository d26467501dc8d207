"""Writes files that a user asks for, and checks beforehand whether they can be written."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitx.checkpoints.own_files import check_output
from vitx.config.checks import check_text
from vitx.config.errors import ConfigError, naming

LONGEST = 255  # the most bytes in a file's name


def write_json(path: str | Path, value: Any) -> None:
  """Writes a value to an indented JSON file; NaN and infinity, which JSON lacks, become null."""
  plain = json.loads(json.dumps(value), parse_constant=lambda _: None)
  write_file(path, json.dumps(plain, indent=2) + "\n")


def write_file(path: str | Path, content: str | bytes | bytearray) -> None:
  """Writes a file that the user has asked for.

  Raises:
    OSError: The file cannot be written; the error has its path.
  """
  with naming(path):
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def check_absent(paths: Iterable[Path], advice: str, where: str = "") -> None:
  """Checks that no file exists yet at some paths.

  Args:
    paths: The paths of the files that are to be written.
    advice: The end of the message, which advises the user.
    where: The beginning of the message, such as "out='x': ".

  Raises:
    ConfigError: A path exists; the message names the first.
  """
  for path in paths:
    if os.path.lexists(path):
      raise ConfigError(f"{where}{path} exists already; {advice}")


def check_file(path: str | Path | None, field: str) -> None:
  """Checks that a file can be written to a path, before anything is computed.

  Args:
    path: The path of the file; None, for no file, is valid.
    field: The name of the argument that gives the path, for the error.

  Raises:
    ConfigError: The file cannot be written.
  """
  if path is None:
    return
  given, parent = Path(check_text(str(path), field)), Path(path).parent
  check_output(path)
  if len(os.fsencode(given.name)) > LONGEST:
    raise ConfigError(f"{field}={str(path)!r} is too long for the name of a file; shorten it.")
  if not str(path) or given.is_dir():
    raise ConfigError(f"{field}={str(path)!r} is a folder; name a file.")
  if not parent.is_dir():
    raise ConfigError(f"{field}={str(path)!r}: there is no folder {str(parent)!r}; make it first.")
  _check_writable(given if given.exists() else parent, path, field)


def check_folder(path: str | Path, field: str) -> None:
  """Checks that a folder can be created and written, before anything is computed.

  A URL is not checked.

  Raises:
    ConfigError: The folder cannot be created or written.
  """
  if "://" in str(path):
    return
  check_output(path)
  given = Path(path)
  there = next(each for each in (given, *given.parents, Path()) if each.exists())
  if not str(path) or not there.is_dir():
    raise ConfigError(
      f"{field}={str(path)!r} cannot be written: {str(there)!r} is no folder. Name another place."
    )
  _check_writable(there, path, field)


def check_overwritten(path: str | Path, field: str) -> None:
  """Checks, as `check_folder` does, a folder in which files are overwritten under unknown names.

  In a workdir the folder must not have links, because files of their names would be written
  elsewhere.

  Raises:
    ConfigError: The folder cannot be created or written, or has a link and is in a workdir.
  """
  check_folder(path, field)
  for each in Path(path).iterdir() if Path(path).is_dir() else ():
    check_output(each)


def _check_writable(place: Path, path: str | Path, field: str) -> None:
  if not os.access(place, os.W_OK):
    raise ConfigError(f"{field}={str(path)!r}: no permission to write there; name another place.")
