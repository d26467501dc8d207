"""Lists, renames and deletes the checkpoints in the directory of a run.

Each complete checkpoint is a folder `STEP/`. On a local disk this folder appears and disappears by
one rename, so it is complete even after a kill. An object store has no such rename. There a marker
file is written last and removed first, and a folder without the marker is not complete.
"""

import re
import shutil
from pathlib import Path

from etils import epath

STEP = re.compile(r"0|[1-9]\d*")
UNFINISHED = ".orbax-checkpoint-tmp"  # in the directory's name while a save runs or after a kill
DELETED = "deleted-"  # precedes a checkpoint's name while its deletion runs or after a kill
NEW = "new-"  # precedes the name of a checkpoint that is to replace the one of its step
CORRUPT = "corrupt-"
COMMITTED = "commit_success.txt"  # Orbax's marker of a complete checkpoint in an object store


class Directory:
  """The directory of a run's checkpoints, with one folder per checkpoint."""

  def __init__(self, path: str | Path | epath.Path):
    self.remote = "://" in str(path)
    self.path = epath.Path(path if self.remote else Path(path).absolute())

  def __str__(self) -> str:
    return str(self.path)

  def __truediv__(self, step: int) -> epath.Path:
    return self.path / str(step)

  def steps(self) -> list[int]:
    """Returns the steps of the complete checkpoints, ascending."""
    if not self.path.is_dir():
      return []
    return sorted(int(path.name) for path in self.path.iterdir() if self._complete(path))

  def delete(self, step: int) -> None:
    """Deletes a checkpoint; the remains of a killed deletion do not count as a checkpoint."""
    path = self / step
    if self.remote:
      (path / COMMITTED).unlink()
    else:
      path = path.rename(self._free_name(f"{DELETED}{step}"))
    path.rmtree()

  def name_new(self, step: int) -> epath.Path:
    """Returns the path at which a checkpoint is saved that is to replace the one of its step."""
    return self.path / f"{NEW}{step}"

  def replace(self) -> None:
    """Puts each complete checkpoint `new-STEP` in the place of `STEP`."""
    for new in [path for path in self.path.glob(f"{NEW}*") if UNFINISHED not in path.name]:
      old = self.path / new.name.removeprefix(NEW)
      gone = old.rename(self._free_name(f"{DELETED}{old.name}")) if old.exists() else None
      new.rename(old)
      if gone is not None:
        gone.rmtree()

  def set_aside(self, step: int) -> epath.Path:
    """Renames the checkpoint `STEP` to `corrupt-STEP` and returns the new path.

    If that name is taken, the new name is `corrupt-STEP-2`, `corrupt-STEP-3` and so on.
    """
    return (self / step).rename(self._free_name(f"{CORRUPT}{step}"))

  def remove_leftovers(self) -> None:
    """Removes the remains of killed saves and deletions, and ends a replacement."""
    for path in self.path.iterdir():
      uncommitted = self.remote and STEP.fullmatch(path.name) and not self._complete(path)
      if uncommitted or UNFINISHED in path.name or path.name.startswith(DELETED):
        path.rmtree()
    self.replace()

  def space(self) -> str:
    """Returns a sentence about the free disk space; "" for an object store."""
    if self.remote:
      return ""
    return f"{shutil.disk_usage(self.path).free / 2**20:,.1f} MiB were free there."

  def _complete(self, path: epath.Path) -> bool:
    if not STEP.fullmatch(path.name):
      return False
    if self.remote:
      return (path / COMMITTED).exists()
    return path.is_dir()

  def _free_name(self, name: str) -> epath.Path:
    candidate, number = self.path / name, 1
    while candidate.exists():
      number += 1
      candidate = self.path / f"{name}-{number}"
    return candidate
