"""The lock on a workdir, which ensures that only one training at a time writes there.

The lock is a file that describes its holder, the process that trains. The holder creates the file
exclusively: creation fails if the file exists. The holder touches the file twice a minute, as a
sign of life, and removes it at the end.

A process that finds a lock checks whether the holder is alive: by the process table if the holder
runs on this machine, otherwise by the age of the file. A lock whose holder is dead is stale. To
replace a stale lock, in one rename, a process must hold a second lock, named after the stale one;
so of several processes that try this, one succeeds.

On an object store vitx cannot create a file exclusively. There it writes the file and reads it
back. If two trainings start at the same moment, one of them ends at its first save; the log warns
of this.
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
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import psutil
from absl import logging
from etils import epath

from vitx.checkpoints import processes
from vitx.checkpoints.workdir import write_json
from vitx.config.errors import ConfigError

TRAIN = "train.lock"  # the lock of a training
POINT = "point.lock"  # the lock of a process that is about to train one point of a sweep
BEAT = 30.0  # seconds between two signs of life
STALE = 300.0  # seconds without a sign of life after which a holder elsewhere counts as dead
POLL = 1.0  # seconds between two looks at the lock of a machine that may have stopped
TORN = 10.0  # seconds after which an empty lock file counts as left by a killed process
# The errors of a file system that cannot create a file exclusively.
UNABLE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK)

_TOKEN = re.compile(r"\w+")


class WorkdirInUseError(ConfigError):
  """Another training has locked the workdir; the message names its host and process."""


@dataclasses.dataclass(frozen=True)
class Holder:
  """The process that holds a lock, as the lock's file describes it.

  Attributes:
    host: The name of the computer.
    pid: The number of the process.
    began: The start time of the process, in ticks since the machine's start; "" if it is unknown.
    machine: A text that identifies the computer, its last start and the container; within these,
      `pid` is unique.
    token: A random text that only this lock has.
    since: The local time at which the lock was made, for people to read.
  """

  host: str
  pid: int
  began: str
  machine: str
  token: str
  since: str

  @classmethod
  def here(cls) -> "Holder":
    """Returns a new holder for this process and this moment."""
    pid, since = os.getpid(), datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    return cls(socket.gethostname(), pid, _began(pid), _machine(), uuid.uuid4().hex[:16], since)

  @classmethod
  def from_json(cls, stored: Any) -> "Holder":
    """Returns the holder in the JSON of a lock; raises TypeError or ValueError if it is invalid."""
    holder = cls(**stored)
    for field in dataclasses.fields(cls):
      if type(value := getattr(holder, field.name)) is not field.type:
        raise TypeError(f"{field.name}={value!r}")
    if not _TOKEN.fullmatch(holder.token):  # the token becomes part of a file's name
      raise ValueError(f"token={holder.token!r}")
    return holder

  def is_alive(self) -> bool:
    """Returns whether the process still runs on this machine; `machine` must be this machine."""
    try:
      if psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE:
        return False
    except psutil.NoSuchProcess:
      return False
    except psutil.AccessDenied:
      return True
    return _began(self.pid) == self.began  # the number may belong to another process by now


TORN_HOLDER = Holder("?", 0, "", "", "torn", "?")  # for a file without content


class Lock:
  """A lock file in an existing directory, with `acquire`, `check` and `release`."""

  def __init__(self, directory: str | Path, name: str = TRAIN):
    """Stores the arguments; nothing is written yet."""
    self._directory, self._name = str(directory), name
    self._path = epath.Path(directory) / name
    self._remote = "://" in self._directory
    self._holder = Holder.here()
    self._held, self._ended = False, threading.Event()

  def acquire(self, *, waits: bool = False, ends: Callable[[], bool] = lambda: False) -> None:
    """Takes the lock, and starts a thread that gives signs of life.

    Args:
      waits: Whether to wait for a holder on another machine: until it gives a sign of life, which
        refuses this process, or for `STALE` seconds without one.
      ends: A function that returns whether to wait no longer.

    Raises:
      WorkdirInUseError: Another process holds the lock.
    """
    try:
      if waits:
        self._wait(ends)
      self._take()
    except OSError as error:
      if error.errno not in UNABLE:
        raise
      logging.warning(
        "%s: this file system cannot lock (%s); start only one training there",
        self._directory,
        error.strerror,
      )
      return
    self._held = True
    for leftover in self._path.parent.glob(f"{self._name}.*"):  # second locks that a kill left
      leftover.unlink(missing_ok=True)
    threading.Thread(target=self._beat, daemon=True).start()

  def check(self) -> None:
    """Checks that this process still holds the lock; if its file was deleted, writes it again.

    Raises:
      WorkdirInUseError: Another process has taken the lock over meanwhile.
    """
    if not self._held:
      return
    holder = self._read()
    if holder is None:
      if self._create():
        return
      holder = self._read() or TORN_HOLDER
    if holder.token != self._holder.token:
      raise self._refusal(holder)

  def release(self) -> None:
    """Gives the lock back, if it was taken."""
    self._ended.set()
    if self._holds_lock():
      self._path.unlink(missing_ok=True)

  def _wait(self, ends: Callable[[], bool]) -> None:
    """Waits while a holder on another machine neither ends nor lives, as far as can be seen."""
    holder = self._read()
    if holder in (None, TORN_HOLDER) or holder.machine == self._holder.machine:
      return
    before, age = -1.0, self._age()
    if age <= STALE:
      logging.warning(
        "%s: process %d on host %r had the lock %.0f s ago; waiting until it is %.0f s, or until"
        " that process gives a sign of life",
        *(self._directory, holder.pid, holder.host, age, STALE),
      )
    while before <= age <= STALE and not ends():  # a sign of life makes the file younger
      time.sleep(POLL)
      before, age = age, self._age()

  def _take(self) -> None:
    if not self._create():
      holder = self._read()
      # The file may have been removed between the two lines: then try to create it again.
      if holder is not None or not self._create():
        self._replace(holder or TORN_HOLDER)
    # Another process may have taken the lock: in an object store, or while this process paused.
    if not self._holds_lock():
      raise self._refusal(self._read() or TORN_HOLDER)

  def _create(self) -> bool:
    """Creates the file of the lock and returns True; returns False if the file exists already."""
    if self._remote:
      if self._path.exists():
        return False
      logging.warning(
        "%s: locks of an object store are not safe; start only one training there", self._directory
      )
      self._write()
      return True
    try:
      with open(self._path, "x", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(self._holder), file)
    except FileExistsError:
      return False
    return True

  def _write(self) -> None:
    write_json(self._directory, self._name, dataclasses.asdict(self._holder))

  def _replace(self, holder: Holder) -> None:
    """Replaces a stale lock; raises WorkdirInUseError if the lock is not stale."""
    if not self._is_stale(holder):
      raise self._refusal(holder)
    second = Lock(self._directory, f"{self._name}.{holder.token}")
    second._take()
    try:
      successor = self._read()
      if successor is not None and successor.token != holder.token:
        raise self._refusal(successor)
      logging.warning(
        "%s: took over the lock of process %d on host %r, which has ended",
        self._directory,
        holder.pid,
        holder.host,
      )
      self._write()
    finally:
      second.release()

  def _is_stale(self, holder: Holder) -> bool:
    if holder == TORN_HOLDER:
      return self._age() > TORN
    if holder.machine == self._holder.machine:
      return not holder.is_alive()
    return self._age() > STALE

  def _age(self) -> float:
    """Returns the seconds since the holder's last sign of life, by the file system's clock."""
    probe = self._path.parent / f"{self._name}.probe-{self._holder.token}"
    try:
      probe.write_text("")
      return probe.stat().mtime - self._path.stat().mtime
    except FileNotFoundError:  # another process removed the file
      return 0.0
    finally:
      probe.unlink(missing_ok=True)

  def _read(self) -> Holder | None:
    """Returns the holder of the lock; None if there is no lock."""
    try:
      return Holder.from_json(json.loads(self._path.read_bytes()))
    except FileNotFoundError:
      return None
    except (ValueError, TypeError):
      return TORN_HOLDER

  def _holds_lock(self) -> bool:
    holder = self._read()
    return holder is not None and holder.token == self._holder.token

  def _beat(self) -> None:
    """Touches the file twice a minute as a sign of life, while this process holds the lock."""
    while not self._ended.wait(BEAT):
      with contextlib.suppress(OSError):  # the next attempt may succeed
        if not self._holds_lock():
          continue
        if self._remote:
          self._write()
        else:
          os.utime(self._path)

  def _refusal(self, holder: Holder) -> WorkdirInUseError:
    sign = ""
    if holder.machine != self._holder.machine:
      sign = f" (last sign of life {self._age():.0f} s ago, expires after {STALE:.0f} s)"
    return WorkdirInUseError(
      f"workdir={self._directory!r} is in use: process {holder.pid} on host {holder.host!r}"
      f" has held {self._name} since {holder.since}{sign}. Wait for it, stop it or choose"
      " another --workdir."
    )


@contextlib.contextmanager
def hold(directory: str | Path, name: str = TRAIN, **waiting: Any) -> Iterator[Lock]:
  """Holds the lock of a workdir while a `with` block trains there.

  Every process of a run calls this function, and process 0 takes the lock. If process 0 cannot take
  it, every process raises the error.

  Args:
    directory: The workdir, which must exist.
    name: The name of the lock's file.
    **waiting: Arguments of `Lock.acquire`.

  Yields:
    The lock; call `check` before each write that only one training may make.

  Raises:
    WorkdirInUseError: Another training holds the lock.
  """
  lock = Lock(directory, name)
  refusal = None
  try:
    if jax.process_index() == 0:
      lock.acquire(**waiting)
  except WorkdirInUseError as error:
    refusal = error
  if not processes.broadcast_first(refusal is None):
    raise refusal or WorkdirInUseError(
      f"workdir={str(directory)!r} is in use by another training, which the message"
      " of process 0 names. Wait for it, stop it or choose another --workdir."
    )
  try:
    yield lock
  finally:
    lock.release()


def _machine() -> str:
  """Returns a text that identifies the machine, its last start and its container, if known."""
  parts = [socket.gethostname()]
  with contextlib.suppress(OSError):
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    parts.append(os.readlink("/proc/self/ns/pid"))
  return " ".join(parts)


def _began(pid: int) -> str:
  """Returns the start time of a process, in ticks since the machine's start; "" if unknown."""
  try:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
  except OSError:
    return ""
