"""Finds files and directories in a user's own folder."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vitx.config.errors import ConfigError

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
  paths = {*_walk(field, directory)}
  matching = {path for path in paths if path.name.lower().endswith(tuple(suffixes))}
  return sorted(matching), sorted(paths - matching)


def has_file(directory: Path, suffixes: Sequence[str]) -> bool:
  """Returns whether a directory has a file with one of the suffixes, as `find_files` finds it."""
  names = (path.name.lower() for path in _walk(str(directory), directory))
  return any(name.endswith(tuple(suffixes)) for name in names)


def _walk(field: str, directory: Path) -> Iterator[Path]:
  """Yields the files in a directory and below it that are not hidden or left by programs."""
  for folder, inner, names in os.walk(directory, followlinks=True):
    inner[:] = sorted(name for name in inner if not _is_leftover(Path(folder) / name))
    for path in (Path(folder) / name for name in inner):
      if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
        raise ConfigError(f"{field}: the link {path} leads back to {path.resolve()}; remove it.")
    yield from (Path(folder) / name for name in names if not name.startswith("."))


def find_directories(directory: Path, suffixes: Sequence[str]) -> list[Path]:
  """Returns the sorted subdirectories of a directory that may contain the user's own files.

  Hidden directories, directories that archives and file managers leave behind (`LEFTOVERS`),
  workdirs of vitx, and directories with workdirs but no file with one of the suffixes are left out.
  """
  inner = sorted(path for path in directory.iterdir() if path.is_dir() and not _is_leftover(path))
  return [p for p in inner if has_file(p, suffixes) or not any(map(_is_run, p.rglob("*")))]


def _is_leftover(path: Path) -> bool:
  return path.name.startswith(".") or path.name.casefold() in LEFTOVERS or _is_run(path)


def _is_run(path: Path) -> bool:
  """Returns whether a directory is the workdir of a run or of several runs."""
  is_one = (path / "checkpoints").is_dir() and any((path / name).is_file() for name in RUN)
  return is_one or (path / "phases.json").is_file()


def list_names(root: Path, paths: Iterable[Path]) -> list[str]:
  """Returns the sorted names of paths relative to a folder, with slashes."""
  return sorted(path.relative_to(root).as_posix() for path in paths)


def describe_others(
  root: Path, others: Sequence[Path], suffixes: Sequence[str]
) -> dict[str, list[str]]:
  """Returns the names of files without the suffixes in a folder, for `Dataset.unread`."""
  return {f"files whose suffix is none of {', '.join(suffixes)}": list_names(root, others)}
