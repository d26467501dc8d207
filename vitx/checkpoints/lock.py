"""The lock on a workdir: one training at a time writes there.

It is a file that is created exclusively and says who holds it. Its holder touches it twice a
minute and removes it in the end. Who finds one asks whether its holder is alive: on the same
machine the process table knows, elsewhere the file's age tells. A stale lock is replaced, in one
rename, by the one process that holds a second lock, named after the stale one: of two takers one
wins.

An object store creates nothing exclusively through our interface: there the file is written and
read back, two trainings that start in the same moment are found out at their first save, and the
log says so.
"""

import contextlib
import dataclasses
import datetime
import errno
import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import psutil
from absl import logging
from etils import epath

from vitx.checkpoints import own_files, processes
from vitx.checkpoints.workdir import write_json
from vitx.config.errors import ConfigError

TRAIN = "train.lock"  # of a training
POINT = "point.lock"  # of whoever is about to train one point of a sweep
BEAT = 30.0  # seconds between two signs of life
STALE = 300.0  # seconds without one, after which a holder on another machine counts as gone
TORN = 10.0  # seconds after which a lock without content counts as a killed process's
# What a file system says that cannot create a file exclusively.
UNABLE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK)

_TOKEN = re.compile(r"\w+")


class WorkdirInUseError(ConfigError):
  """Another training holds the workdir; the message names its host and process."""


@dataclasses.dataclass(frozen=True)
class Holder:
  """Who holds a lock.

  Attributes:
    host: name of the computer.
    pid: of the process.
    began: when the process started, in ticks since the machine did; "" where that is not told.
    machine: what process numbers belong to: a start of a computer, a container.
    token: of this lock and no other.
    since: local time, for people.
  """

  host: str
  pid: int
  began: str
  machine: str
  token: str
  since: str

  @classmethod
  def here(cls) -> "Holder":
    """Returns a new holder: this process, now."""
    pid, since = os.getpid(), datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    return cls(socket.gethostname(), pid, _began(pid), _machine(), uuid.uuid4().hex[:16], since)

  @classmethod
  def from_json(cls, stored: Any) -> "Holder":
    """Returns the holder that a file tells. Raises TypeError or ValueError for what is none."""
    holder = cls(**stored)
    for field in dataclasses.fields(cls):
      if type(value := getattr(holder, field.name)) is not field.type:
        raise TypeError(f"{field.name}={value!r}")
    if not _TOKEN.fullmatch(holder.token):  # it becomes part of a file's name
      raise ValueError(f"token={holder.token!r}")
    return holder

  def is_alive(self) -> bool:
    """Returns whether the process runs, asked on its own machine."""
    try:
      if psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE:
        return False
    except psutil.NoSuchProcess:
      return False
    except psutil.AccessDenied:
      return True
    return _began(self.pid) == self.began  # the number may be another process's by now


TORN_HOLDER = Holder("?", 0, "", "", "torn", "?")  # of a file without content


class Lock:
  """A lock file in a directory, which exists; `acquire`, `check` and `release` it."""

  def __init__(self, directory: str | Path, name: str = TRAIN):
    """Describes the lock; nothing is written."""
    self._directory, self._name = str(directory), name
    self._path = epath.Path(directory) / name
    self._remote = "://" in self._directory
    self._own = Holder.here()
    self._held, self._ended = False, threading.Event()

  def acquire(self) -> None:
    """Takes the lock, and keeps it alive in a thread.

    Raises:
      WorkdirInUseError: another process holds it.
    """
    try:
      self._take()
    except OSError as error:
      if error.errno not in UNABLE:
        raise
      logging.warning(
        "%s: this file system cannot lock (%s); see to it that one training writes there",
        self._directory,
        error.strerror,
      )
      return
    self._held = True
    for leftover in self._path.parent.glob(f"{self._name}.*"):  # of takers that were killed
      leftover.unlink(missing_ok=True)
    threading.Thread(target=self._beat, daemon=True).start()

  def check(self) -> None:
    """Makes sure that the lock is still this process's; where it was deleted it is written again.

    Raises:
      WorkdirInUseError: another process has taken it over meanwhile.
    """
    if not self._held:
      return
    holder = self._read()
    if holder is None:
      if self._create():
        return
      holder = self._read() or TORN_HOLDER
    if holder.token != self._own.token:
      raise self._refusal(holder)

  def release(self) -> None:
    """Gives the lock back, if it was taken."""
    self._ended.set()
    if self._is_own():
      self._path.unlink(missing_ok=True)

  def _take(self) -> None:
    own_files.check_no_link(str(self._path))
    if not self._create():
      holder = self._read()
      # It may have gone between the two lines: then this is like a first attempt.
      if holder is not None or not self._create():
        self._replace(holder or TORN_HOLDER)
    if not self._is_own():  # on an object store, or where this process was stopped for long
      raise self._refusal(self._read() or TORN_HOLDER)

  def _create(self) -> bool:
    """Creates the file; returns False if it is there."""
    if self._remote:
      if self._path.exists():
        return False
      logging.warning(
        "%s: an object store cannot lock for sure; start one training there, not two at once",
        self._directory,
      )
      write_json(self._directory, self._name, dataclasses.asdict(self._own))
      return True
    try:
      own_files.create(self._directory, self._name, json.dumps(dataclasses.asdict(self._own)))
    except FileExistsError:
      return False
    return True

  def _replace(self, holder: Holder) -> None:
    """Takes a stale lock's place; raises WorkdirInUseError if it is not stale."""
    if not self._is_stale(holder):
      raise self._refusal(holder)
    second = Lock(self._directory, f"{self._name}.{holder.token}")
    second._take()
    try:
      found = self._read()
      if found is not None and found.token != holder.token:
        raise self._refusal(found)
      logging.warning(
        "%s: took over the lock of process %d on host %r, which is gone",
        self._directory,
        holder.pid,
        holder.host,
      )
      write_json(self._directory, self._name, dataclasses.asdict(self._own))
    finally:
      second.release()

  def _is_stale(self, holder: Holder) -> bool:
    if holder == TORN_HOLDER:
      return self._age() > TORN
    if holder.machine == self._own.machine:
      return not holder.is_alive()
    return self._age() > STALE

  def _age(self) -> float:
    """Returns seconds since the last sign of life, by the clock of whoever keeps the files."""
    probe = self._path.parent / f"{self._name}.probe-{self._own.token}"
    try:
      probe.write_text("")  # nobody knows its name before
      return probe.stat().mtime - self._path.stat().mtime
    except FileNotFoundError:  # somebody else was faster
      return 0.0
    finally:
      probe.unlink(missing_ok=True)

  def _read(self) -> Holder | None:
    """Returns who holds the lock; None if nobody does."""
    try:
      return Holder.from_json(json.loads(own_files.read(self._directory, self._name)))
    except FileNotFoundError:
      return None
    except (ValueError, TypeError):
      return TORN_HOLDER

  def _is_own(self) -> bool:
    holder = self._read()
    return holder is not None and holder.token == self._own.token

  def _beat(self) -> None:
    """Gives signs of life until the lock is given back or lost."""
    while not self._ended.wait(BEAT):
      with contextlib.suppress(OSError):  # the next one may reach the file again
        if not self._is_own():
          continue
        if self._remote:
          write_json(self._directory, self._name, dataclasses.asdict(self._own))
        else:
          os.utime(self._path, follow_symlinks=False)

  def _refusal(self, holder: Holder) -> WorkdirInUseError:
    elsewhere = holder.machine != self._own.machine
    sign = (
      f" (last sign of life {self._age():.0f} s ago, gone after {STALE:.0f})" if elsewhere else ""
    )
    return WorkdirInUseError(
      f"workdir={self._directory!r} is in use: process {holder.pid} on host {holder.host!r} holds"
      f" {self._name} since {holder.since}{sign}; wait for it, stop it or choose another --workdir"
    )


@contextlib.contextmanager
def hold(directory: str | Path, name: str = TRAIN) -> Iterator[Lock]:
  """Holds a workdir's lock while a `with` block trains there.

  Every process of a run comes here; process 0 takes the lock, and all are refused with it.

  Args:
    directory: exists.
    name: of the file.

  Yields:
    The lock, to be checked before what must not be written twice.

  Raises:
    WorkdirInUseError: another training holds it.
  """
  lock = Lock(directory, name)
  refusal = None
  try:
    if jax.process_index() == 0:
      lock.acquire()
  except WorkdirInUseError as error:
    refusal = error
  if not processes.ask_first(refusal is None):
    raise refusal or WorkdirInUseError(f"workdir={str(directory)!r} is in use, process 0 says")
  try:
    yield lock
  finally:
    lock.release()


def _machine() -> str:
  """Returns what tells apart machines, their starts and containers, as far as the system says."""
  parts = [socket.gethostname()]
  with contextlib.suppress(OSError):
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    parts.append(os.readlink("/proc/self/ns/pid"))
  return " ".join(parts)


def _began(pid: int) -> str:
  """Returns when a process started, in ticks since its machine did; "" where that is not told."""
  try:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
  except OSError:
    return ""
