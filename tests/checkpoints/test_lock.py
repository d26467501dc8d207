"""One training at a time writes into a workdir; others may take over the lock of a dead one."""

import contextlib
import dataclasses
import errno
import json
import os
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from tests import runs
from vitx.checkpoints import lock
from vitx.checkpoints.lock import Holder, Lock, WorkdirInUseError
from vitx.runtime.signals import Interrupted
from vitx.training import loop
from vitx.training.experiment import Experiment, make_experiment


def write(directory, holder, age=0.0):
  path = directory / lock.TRAIN
  path.write_text(json.dumps(dataclasses.asdict(holder)))
  os.utime(path, (time.time() - age,) * 2)


def gone() -> int:
  """Returns the id of a process that has ended."""
  process = subprocess.Popen([sys.executable, "-c", ""])
  process.wait()
  return process.pid


@pytest.fixture
def elsewhere():
  """The holder of a lock, a process on another machine."""
  return dataclasses.replace(Holder.here(), host="far", pid=7, machine="far", token="f" * 16)


def test_a_refused_training_learns_the_host_and_process_of_the_holder(tmp_path):
  with lock.hold(tmp_path), pytest.raises(WorkdirInUseError) as refused, lock.hold(tmp_path):
    raise AssertionError("held twice")
  assert f"process {os.getpid()} on host {Holder.here().host!r}" in str(refused.value)
  assert not list(tmp_path.iterdir())
  with lock.hold(tmp_path):  # the first lock was released
    assert [path.name for path in tmp_path.iterdir()] == [lock.TRAIN]


def test_a_dead_process_of_this_machine_loses_its_lock_at_once(tmp_path):
  write(tmp_path, dataclasses.replace(Holder.here(), pid=gone()))
  with lock.hold(tmp_path) as held:
    held.check()
    assert json.loads((tmp_path / lock.TRAIN).read_text())["pid"] == os.getpid()
  assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Holder.here().began, reason="the system does not tell when processes began")
def test_a_reused_process_number_counts_as_dead(tmp_path):
  write(tmp_path, dataclasses.replace(Holder.here(), began="1"))
  with lock.hold(tmp_path):
    pass


def test_a_zombie_process_counts_as_dead():
  process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
  holder = dataclasses.replace(Holder.here(), pid=process.pid, began=lock._began(process.pid))
  assert holder.is_alive()
  process.kill()
  os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, but not yet waited for
  assert not holder.is_alive()
  process.communicate()


def test_another_machine_keeps_its_lock_until_its_signs_of_life_are_old(tmp_path, elsewhere):
  write(tmp_path, elsewhere, age=lock.STALE - 200)  # this test may take 100 s and more
  with pytest.raises(WorkdirInUseError, match=r"process 7 on host 'far'.*sign of life 1\d\d s"):
    Lock(tmp_path).acquire()
  write(tmp_path, elsewhere, age=lock.STALE + 60)
  with lock.hold(tmp_path):
    pass
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("ages", "is_taken"),
  [([295, 299, 301], True), ([290, 10], False), ([10, 11, 12, 0.5], False), ([301], True)],
)
def test_a_training_waits_until_another_machine_is_dead_or_alive(
  tmp_path, elsewhere, monkeypatch, caplog, ages, is_taken
):
  write(tmp_path, elsewhere)
  rest = iter(ages)
  monkeypatch.setattr(time, "sleep", lambda _: None)
  monkeypatch.setattr(Lock, "_age", lambda _: next(rest, ages[-1]))
  refused = pytest.raises(WorkdirInUseError, match="host 'far'")
  with contextlib.nullcontext() if is_taken else refused, lock.hold(tmp_path, waits=True):
    pass
  assert next(rest, None) is None
  assert ("gives a sign of life" in caplog.text) == (len(ages) > 1)


def test_a_signal_ends_the_wait_and_so_does_the_end_of_the_holder(tmp_path, elsewhere, monkeypatch):
  write(tmp_path, elsewhere, age=10)
  with pytest.raises(WorkdirInUseError):
    Lock(tmp_path).acquire(waits=True, ends=lambda: True)
  monkeypatch.setattr(time, "sleep", lambda _: (tmp_path / lock.TRAIN).unlink())
  with lock.hold(tmp_path, waits=True):
    pass


def test_the_file_system_s_clock_decides_the_age_of_a_lock(tmp_path, elsewhere, monkeypatch):
  write(tmp_path, elsewhere, age=10)
  monkeypatch.setattr(time, "time", lambda: 2e9)  # this machine's clock is wrong
  with pytest.raises(WorkdirInUseError):
    Lock(tmp_path).acquire()


def test_a_holder_gives_signs_of_life(tmp_path, monkeypatch):
  monkeypatch.setattr(lock, "BEAT", 0.01)
  path = tmp_path / lock.TRAIN
  with lock.hold(tmp_path):
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 240
    while path.stat().st_mtime == 0:
      assert time.monotonic() < deadline
      time.sleep(0.01)


def test_a_training_that_lost_its_lock_stops_before_the_next_save(tmp_path, elsewhere):
  with lock.hold(tmp_path) as held:
    held.check()
    write(tmp_path, elsewhere)
    with pytest.raises(WorkdirInUseError, match="host 'far'"):
      held.check()
  assert json.loads((tmp_path / lock.TRAIN).read_text())["host"] == "far"


def test_an_empty_lock_expires_after_a_while(tmp_path):
  path = tmp_path / lock.TRAIN
  path.write_text('{"host"')
  os.utime(path, (time.time() + 3600,) * 2)  # young, however long this test takes
  with pytest.raises(WorkdirInUseError):
    Lock(tmp_path).acquire()
  os.utime(path, (0, 0))
  with lock.hold(tmp_path):
    pass


def test_a_takeover_that_was_killed_stops_nobody(tmp_path):
  dead = dataclasses.replace(Holder.here(), pid=gone(), token="a" * 16)
  write(tmp_path, dead)
  second = tmp_path / f"{lock.TRAIN}.{dead.token}"
  second.write_text(json.dumps(dataclasses.asdict(dead) | {"token": "b" * 16}))
  with lock.hold(tmp_path):
    assert [path.name for path in tmp_path.iterdir()] == [lock.TRAIN]


@pytest.mark.parametrize("stale", [True, False])
def test_one_of_many_simultaneous_processes_gets_the_lock(tmp_path, stale):
  dead = dataclasses.replace(Holder.here(), pid=gone())
  for attempt in range(10):
    directory = tmp_path / str(attempt)
    directory.mkdir()
    if stale:
      write(directory, dead)
    barrier, won = threading.Barrier(8), []

    def compete(directory=directory, barrier=barrier, won=won):
      contender = Lock(directory)
      barrier.wait()
      with contextlib.suppress(WorkdirInUseError):
        contender.acquire()
        won.append(contender)

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    assert len(won) == 1
    won[0].check()
    won[0].release()
    assert not list(directory.iterdir())


def test_a_slow_takeover_does_not_take_the_lock_of_the_next_holder(tmp_path, monkeypatch):
  """The slow process reads a stale lock, and then the quick one takes it over."""
  write(tmp_path, dataclasses.replace(Holder.here(), pid=gone()))
  slow, quick = Lock(tmp_path), Lock(tmp_path)
  judge = slow._is_stale

  def judge_and_wait(holder):
    verdict = judge(holder)
    quick.acquire()
    return verdict

  monkeypatch.setattr(slow, "_is_stale", judge_and_wait)
  with pytest.raises(WorkdirInUseError):
    slow.acquire()
  quick.check()
  quick.release()


def test_a_file_system_that_cannot_lock_causes_a_warning(tmp_path, monkeypatch, caplog):
  def refuse(path, mode="r", *arguments, **named):
    if mode == "x":
      raise OSError(errno.ENOTSUP, "Operation not supported")
    return open_file(path, mode, *arguments, **named)

  open_file = open
  monkeypatch.setattr("builtins.open", refuse)
  with lock.hold(tmp_path) as held:
    held.check()
  assert "this file system cannot lock (Operation not supported)" in caplog.text


def test_an_object_store_is_locked_by_writing_and_reading_back(tmp_path, caplog):
  first, second = Lock(tmp_path), Lock(tmp_path)
  first._remote = second._remote = True
  first.acquire()
  assert "locks of an object store are not safe" in caplog.text
  with pytest.raises(WorkdirInUseError):
    second.acquire()
  second._holder, holder = first._holder, first._holder
  lock.write_json(tmp_path, lock.TRAIN, dataclasses.asdict(holder) | {"token": "c" * 16})
  with pytest.raises(WorkdirInUseError):  # both wrote, the other last
    first.check()


@pytest.fixture(scope="module")
def prepared(data_dir):
  """A tiny experiment that is ready to train, and a state of zeros; nothing is compiled."""
  experiment = make_experiment(runs.tiny())
  state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), experiment.named_shapes())
  return experiment, state


def test_training_in_a_workdir_in_use_is_refused_before_anything_is_written(
  tmp_path, monkeypatch, prepared
):
  monkeypatch.setattr(loop, "make_experiment", lambda *_, **__: prepared[0])
  with lock.hold(tmp_path):
    before = runs.contents(tmp_path)
    with pytest.raises(WorkdirInUseError, match=f"process {os.getpid()} on host"):
      loop.train(runs.tiny(), tmp_path)
    assert runs.contents(tmp_path) == before


@pytest.mark.parametrize("ended", ["stopped", "interrupted", "finished", "failed"])
def test_a_training_holds_the_lock_until_it_ends(tmp_path, monkeypatch, prepared, ended):
  experiment, state = prepared
  monkeypatch.setattr(loop, "make_experiment", lambda *_, **__: experiment)
  monkeypatch.setattr(Experiment, "start_init", lambda *_: lambda: state)
  ends = {"interrupted": Interrupted, "failed": ZeroDivisionError}

  def end(run):
    assert json.loads((tmp_path / lock.TRAIN).read_text())["pid"] == os.getpid()
    if ended in ends:
      raise ends[ended]
    return loop.Result(run.workdir, run.start.step, ended == "finished")

  monkeypatch.setattr(loop, "_train", end)
  with contextlib.suppress(ZeroDivisionError):
    assert loop.train(experiment.settings, tmp_path).finished == (ended == "finished")
    assert ended != "failed"
  assert not (tmp_path / lock.TRAIN).exists()


def test_a_deleted_lock_is_taken_again_unless_another_process_holds_it(tmp_path):
  workdir = tmp_path / "run"
  workdir.mkdir()
  ours, theirs = lock.Lock(workdir), lock.Lock(workdir)
  ours.acquire()
  (workdir / lock.TRAIN).unlink()
  ours.check()
  with pytest.raises(lock.WorkdirInUseError):
    theirs.acquire()
  (workdir / lock.TRAIN).unlink()
  theirs.acquire()
  with pytest.raises(lock.WorkdirInUseError, match="is in use"):
    ours.check()
  theirs.release()
