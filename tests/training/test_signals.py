"""Signals, which end a long part of a run without changing its bits, and too little memory."""

import os
import signal
import threading

import jax
import jax.numpy as jnp
import pytest

from tests import runs
from tests.training.test_loop import same
from vitx.checkpoints.workdir import list_steps
from vitx.cli import main as front
from vitx.cli.main import main
from vitx.runtime import evaluation, signals
from vitx.training import compilation, failures, loop

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
COMMAND = ["train", "--config", f"configs/digits.py:{runs.TINY}", "--workdir"]


def signal_in(role, at, monkeypatch):
  """Sends SIGTERM to this process before the second batch of the `at`-th evaluation of a role."""
  split, seen = evaluation.split_batches, []

  def batches(config, task, examples):
    seen.append(len(examples))
    mine = (
      seen.count(len(examples)) == at and len(examples) == {"validation": 144, "test": 359}[role]
    )
    for number, batch in enumerate(split(config, task, examples)):
      if mine and number == 1:
        os.kill(os.getpid(), signal.SIGTERM)
      assert not mine or number < 3, "it went on"
      yield batch

  monkeypatch.setattr(evaluation, "split_batches", batches)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("role", "at", "step"),
  [
    ("validation", 2, 20),  # where a checkpoint of the evaluated state would be saved as the best
    ("test", 1, 40),
  ],
)
def test_an_interrupted_evaluation_is_repeated(
  role, at, step, finished_run, tmp_path, monkeypatch, capsys
):
  with monkeypatch.context() as patch:
    signal_in(role, at, patch)
    assert main([*COMMAND, str(tmp_path)]) == 75
  assert f"stopped at step {step}; run the same command again to resume" in capsys.readouterr().out
  assert list_steps(tmp_path)[-1] == step
  resumed = loop.train(runs.tiny(), tmp_path)
  assert resumed.test == finished_run[1].test
  assert runs.rows(tmp_path) == runs.rows(finished_run[0])
  same(runs.final_state(tmp_path), runs.final_state(finished_run[0]))


def test_an_abandoned_compilation_does_not_hold_the_process(tmp_path, monkeypatch):
  end, compile_program = threading.Event(), compilation.compile_program

  def compile_long(*arguments, **options):
    signals.wait(signals.start(lambda: (os.kill(os.getpid(), signal.SIGINT), end.wait(600))))
    return compile_program(*arguments, **options)

  statuses = []
  try:
    with monkeypatch.context() as patch:
      patch.setattr(compilation, "compile_program", compile_long)
      stopped = loop.train(runs.tiny("batch_size=16"), tmp_path)
    assert not stopped.finished and stopped.step == 0
    monkeypatch.setattr(signals.os, "_exit", statuses.append)
    signals.leave(75)
  finally:
    end.set()
  assert statuses == [75]  # the interpreter does not wait for it


def test_an_error_of_breakable_work_is_raised():
  def fail():
    raise TimeoutError("of its own")

  with signals.StopRequest(), pytest.raises(TimeoutError, match="of its own"):
    signals.wait(signals.start(fail))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_second_one_if_it_comes_a_second_later(number, monkeypatch):
  now, ended = [0.0], []
  monkeypatch.setattr(signal, "valid_signals", lambda: {number})
  before = signal.signal(number, lambda *args: ended.append(args[0]))
  try:
    with signals.StopRequest(lambda: now[0]) as request:
      signal.raise_signal(number)
      now[0] = 0.9
      signal.raise_signal(number)  # delivered again
    assert request.is_received()
    signal.raise_signal(number)  # and again, while the process ends
    assert not ended
    now[0] = 1.0
    signal.raise_signal(number)
    assert ended == [number]
    front._keep_status()
    signal.raise_signal(number)  # while the interpreter closes
  finally:
    signal.signal(number, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_anything_is_compiled_ends_with_status_75(
  number, tmp_path, monkeypatch, capsys
):
  """The signal comes while data are opened and networks are traced; the process ends at once."""

  def open_data(*_, **__):
    os.kill(os.getpid(), number)
    pytest.fail("it went on")

  monkeypatch.setattr(loop, "make_experiment", open_data)
  workdir = tmp_path / "run"
  assert main([*COMMAND, str(workdir)]) == 75
  assert "stopped at step 0; run the same command again to resume" in capsys.readouterr().out
  assert not workdir.exists()


def test_evaluate_is_interrupted_without_a_traceback(monkeypatch, capsys):
  def press(*_, **__):
    raise KeyboardInterrupt

  monkeypatch.setattr("vitx.checkpoints.load.load", press)
  assert main(["evaluate", "--workdir", "run"]) == 130
  assert capsys.readouterr().err == "interrupted\n"


def test_out_of_memory_names_a_command_that_helps():
  message = r"batch_size=32.* 4 tokens.*token_mixer=softmax.*plan --config runs/big/config\.json"
  with (
    pytest.raises(failures.OutOfMemoryError, match=message),
    failures.explain_out_of_memory(runs.tiny(), tokens=lambda: 4, workdir="runs/big/"),
  ):
    jnp.zeros((1 << 46,), jnp.uint8).block_until_ready()  # a real one: 64 TiB


def test_other_runtime_errors_pass_through():
  with (
    pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
    failures.explain_out_of_memory(runs.tiny(), tokens=lambda: None),
  ):
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")
