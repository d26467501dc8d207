"""Checks before a long computation that its results can be written, and writes JSON files."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitx.config.errors import ConfigError


def write_json(path: str | Path, value: Any) -> None:
  """Writes a value to an indented JSON file; NaN and infinity, which JSON lacks, become null."""
  plain = json.loads(json.dumps(value), parse_constant=lambda _: None)
  Path(path).write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")


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


def check_folder(path: str | Path, field: str) -> None:
  """Checks that a folder can be created and written; a URL is not checked.

  Raises:
    ConfigError: The folder cannot be created or written.
  """
  if "://" in str(path):
    return
  place = next(p for p in (Path(path), *Path(path).parents, Path()) if p.exists())
  if not (place.is_dir() and os.access(place, os.W_OK)):
    raise ConfigError(f"{field}: {str(place)!r} is no folder that you may write; name another.")
