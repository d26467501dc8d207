"""Finds files and directories in a user's own folder."""

import os
from collections.abc import Sequence
from pathlib import Path

from absl import logging

from vitx.config.errors import ConfigError

LISTED = 5  # a warning names this many skipped files and counts the others
# Directories with copies of files, which archives, file managers and Python leave beside the files.
LEFTOVERS = {"__macosx", "__pycache__", "@eadir", "$recycle.bin", "lost+found"}
LEFTOVERS |= {"system volume information"}
# A workdir has a directory of checkpoints and one of these files, which a run writes at its start.
RUN = ("config.json", "log.txt", "train.lock")


def find_path(source: str) -> Path:
  """Returns the path in a source `KIND:PATH`, where `~` is the home directory of the user."""
  return Path(os.path.expanduser(source.partition(":")[2]))


def find_root(source: str) -> Path:
  """Returns the folder that a source `KIND:PATH` names."""
  root = find_path(source)
  if source.endswith(":") or not root.is_dir():
    raise ConfigError(f"data.source={source!r} does not name a directory.")
  return root


def find_files(
  field: str, directory: Path, suffixes: Sequence[str]
) -> tuple[list[Path], list[Path]]:
  """Returns the files in a directory and below it; follows links.

  Hidden files, workdirs of vitx, and directories that archives and file managers leave behind
  (`LEFTOVERS`) are left out.

  Returns:
    The sorted files with one of the suffixes, which are in lower case, and the sorted other files.
  """
  wanted: list[Path] = []
  others: list[Path] = []
  for folder, inner, names in os.walk(directory, followlinks=True):
    inner[:] = sorted(name for name in inner if not _is_leftover(Path(folder) / name))
    for path in (Path(folder) / name for name in inner):
      if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
        raise ConfigError(f"{field}: the link {path} leads back to {path.resolve()}; remove it.")
    for path in (Path(folder) / name for name in names if not name.startswith(".")):
      (wanted if path.name.lower().endswith(tuple(suffixes)) else others).append(path)
  return sorted(wanted), sorted(others)


def find_directories(directory: Path, suffixes: Sequence[str]) -> list[Path]:
  """Returns the sorted subdirectories of a directory that may contain the user's own files.

  Hidden directories, directories that archives and file managers leave behind (`LEFTOVERS`),
  workdirs of vitx, and directories with workdirs but no file with one of the suffixes are left out.
  """
  inner = sorted(path for path in directory.iterdir() if path.is_dir() and not _is_leftover(path))
  return [path for path in inner if not _holds_runs_alone(path, suffixes)]


def _is_leftover(path: Path) -> bool:
  return path.name.startswith(".") or path.name.casefold() in LEFTOVERS or _is_run(path)


def _is_run(path: Path) -> bool:
  """Returns whether a directory is the workdir of a run or of several runs."""
  if (path / "phases.json").is_file():
    return True
  return (path / "checkpoints").is_dir() and any((path / name).is_file() for name in RUN)


def _holds_runs_alone(path: Path, suffixes: Sequence[str]) -> bool:
  """Returns whether a directory has workdirs, and no file with the suffixes outside of them."""
  has_runs = False
  for folder, inner, names in os.walk(path):
    if any(name.lower().endswith(tuple(suffixes)) for name in names if not name.startswith(".")):
      return False
    paths = [Path(folder) / name for name in inner]
    has_runs = has_runs or any(map(_is_run, paths))
    inner[:] = [path.name for path in paths if not _is_leftover(path)]
  return has_runs


def warn_of_skipped(name: str, root: Path, skipped: Sequence[Path], kind: str) -> None:
  """Logs a warning that names the first skipped files or directories, if there are any.

  Args:
    name: The name of the data set.
    root: The folder, to which the names are relative.
    skipped: The paths.
    kind: The description of the paths, such as "files with another suffix than .wav".
  """
  if skipped:
    some = ", ".join(path.relative_to(root).as_posix() for path in skipped[:LISTED])
    more = f" and {len(skipped) - LISTED} more" if len(skipped) > LISTED else ""
    logging.warning("%s: skipped %d %s: %s%s", name, len(skipped), kind, some, more)


def describe_others(suffixes: Sequence[str]) -> str:
  """Returns words for files without the suffixes: "files whose suffix is none of .jpg, .png"."""
  return f"files whose suffix is none of {', '.join(suffixes)}"
