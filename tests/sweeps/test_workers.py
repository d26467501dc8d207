"""Several processes train one sweep, with the threads and devices with which it began."""

import signal
import subprocess
import sys

import pytest

from tests.cli.sweeps import points
from vitx.checkpoints import workdir as wd
from vitx.runtime.parallel import count_cores
from vitx.runtime.signals import EXIT_INTERRUPTED
from vitx.sweeps import workers
from vitx.sweeps.sweep import State


@pytest.fixture
def environment(monkeypatch):
  """The environment, without the variables of a sweep."""
  for name in (*workers.NUMBERS, workers.SHARE, "XLA_PYTHON_CLIENT_PREALLOCATE"):
    monkeypatch.setenv(name, "")
    monkeypatch.delenv(name)
  return workers.os.environ


def test_a_sweep_keeps_the_cores_of_its_beginning(tmp_path, environment):
  environment["JAX_NUM_CPU_DEVICES"] = "3"
  workers.record_cores(str(tmp_path))
  stored = wd.read_json(tmp_path, workers.CORES)
  assert stored == {"NPROC": str(count_cores()), "JAX_NUM_CPU_DEVICES": "3"}
  del environment["JAX_NUM_CPU_DEVICES"]
  wd.write_json(tmp_path, workers.CORES, stored | {"NPROC": "7", "LD_PRELOAD": "theirs.so"})
  workers.restore_cores(str(tmp_path), 1)
  assert environment["JAX_NUM_CPU_DEVICES"] == "3" and count_cores() == 7
  assert environment.get("LD_PRELOAD") != "theirs.so"
  workers.record_cores(str(tmp_path))
  assert wd.read_json(tmp_path, workers.CORES)["NPROC"] == "7"
  environment["NPROC"] = "1"
  workers.restore_cores(str(tmp_path), 2)
  assert count_cores() == 1 and environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


IMPORTS = """
import sys
from vitx.sweeps import workers
workers.restore_cores = lambda *_: sys.exit(3 if "jax" in sys.modules else 4)
from vitx.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("more", [(), ("--search=2", "--over=learning_rate=[1e-3..1e-2]")])
def test_the_cores_are_restored_before_jax_is_imported(tmp_path, more):
  command = ["sweep", "--config=digits", f"--workdir={tmp_path}/sweep", *more]
  status = subprocess.run([sys.executable, "-c", IMPORTS, *command], check=False).returncode
  assert status == 4


class Worker:
  """A process that runs until a signal."""

  def __init__(self, environment):
    self.environment, self.received, self.returncode = environment, [], None

  def poll(self):
    return self.returncode

  def send_signal(self, number):
    self.received.append(number)
    self.returncode = EXIT_INTERRUPTED


@pytest.fixture
def begun(monkeypatch, environment):
  """The processes that a sweep has started, which are not real."""
  processes = []

  def start(command, env, **_):
    processes.append(Worker(env))
    return processes[-1]

  monkeypatch.setattr(subprocess, "Popen", start)
  return processes


def test_a_signal_is_passed_on_once_to_every_process(tmp_path, begun, monkeypatch):
  monkeypatch.setattr(workers.time, "sleep", lambda _: signal.raise_signal(signal.SIGUSR1))
  rest, status = workers.train_in_workers(3, points(), str(tmp_path), None, "top1")
  assert rest == points() and status == EXIT_INTERRUPTED
  assert [worker.received for worker in begun] == [[signal.SIGUSR1]] * 3


def test_points_are_shown_when_a_process_has_ended_them(tmp_path, begun, monkeypatch):
  listed, shown = points(), []

  def progress(_):
    if len(shown) < 2:
      wd.write_json(tmp_path / listed[len(shown)].name, wd.FAILED, {"error": "loss is nan"})
    else:
      begun[0].returncode, begun[1].returncode = -signal.SIGKILL, 1

  show = lambda point, state: shown.append(point) if state is State.DONE else None  # noqa: E731
  monkeypatch.setattr(workers.time, "sleep", progress)
  rest, status = workers.train_in_workers(2, listed, str(tmp_path), show, "top1")
  assert (shown, rest, status) == (listed[:2], listed[2:], signal.SIGKILL)
  assert [worker.environment[workers.SHARE] for worker in begun] == ["0.45", "0.45"]
  assert begun[0].environment[workers.WORKER] == "top1"
