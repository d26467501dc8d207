"""The files of a folder of the user's own."""

import os
from collections.abc import Sequence
from pathlib import Path

from absl import logging

from vitx.errors import ConfigError

LISTED = 5  # skipped files that are named; the others are counted


def find_files(
  field: str, directory: Path, suffixes: Sequence[str]
) -> tuple[list[Path], list[Path]]:
  """Returns the files in a directory and below it, links followed, hidden ones left out.

  Args:
    field: that named it and its value, for errors.
    directory: where to look.
    suffixes: in lower case, of the files that are looked for.

  Returns:
    The files with one of the suffixes, sorted, and the others, sorted.

  Raises:
    ConfigError: a link leads back to a directory that it lies in, or a name is not UTF-8.
  """
  found: list[Path] = []
  others: list[Path] = []
  for folder, inner, names in os.walk(directory, followlinks=True):
    inner[:] = sorted(each for each in inner if not each.startswith("."))
    for each in inner:
      _check_link(field, Path(folder) / each)
    for each in names:
      if not each.startswith("."):
        path = Path(folder) / each
        check_name(field, path)
        (found if each.lower().endswith(tuple(suffixes)) else others).append(path)
  return sorted(found), sorted(others)


def check_name(field: str, path: Path) -> None:
  """Raises ConfigError, which begins with `field`, for a path that is not UTF-8.

  No file of ours could hold it.
  """
  try:
    str(path).encode()
  except UnicodeEncodeError:
    raise ConfigError(
      f"{field}: the name of {os.fsencode(path)!r} is not UTF-8. Rename it."
    ) from None


def warn_of_skipped(
  name: str, root: Path, skipped: Sequence[Path], suffixes: Sequence[str]
) -> None:
  """Says which files of a folder are not read, if there are any."""
  if skipped:
    wanted, some = ", ".join(suffixes), list_files(root, skipped)
    logging.warning(
      "%s: skipped %d files that are none of %s: %s", name, len(skipped), wanted, some
    )


def list_files(root: Path, files: Sequence[Path]) -> str:
  """Returns the first files, relative to a folder, and how many more there are."""
  some = ", ".join(path.relative_to(root).as_posix() for path in files[:LISTED])
  return f"{some} and {len(files) - LISTED} more" if len(files) > LISTED else some


def _check_link(field: str, path: Path) -> None:
  check_name(field, path)
  if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
    raise ConfigError(
      f"{field}: the link {path} leads back to {path.resolve()}, in which it lies. Remove it."
    )
