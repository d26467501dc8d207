"""Points of one process share programs, and each ends with the bits that it has alone."""

import jax
import numpy as np
import pytest

import vitx
from tests import runs
from vitx.runtime import sharing

SHORT = ("duration=9 steps", "evaluation.every=3 steps", "checkpoint.every=9 steps")
SHORT += ("schedule.warmup=2 steps", "log_every=3 steps", "steps_per_dispatch=3")
PLAIN = (*SHORT, *runs.PLAIN)
SIMPLE = (*PLAIN, "ema_decay=0.0")
# Several properties in one run, where each decides the result.
CASES = {
  "graphs_and_dropout_and_mixup": (
    *(*SHORT, "augment.rotate=0.0", "augment.pad_crop=0"),
    *("token_mixer=bigbird", "token_mixer.block=2"),
  ),
  "plateau_and_average_in_float16": (
    *PLAIN,
    *("model.dtype=float16", "ema_decay=0.9"),
    *("schedule=plateau", "schedule.patience=0", "schedule.threshold=0.5"),
  ),
  "balanced_folds_and_early_stop": (
    *(*SIMPLE, "evaluation.stop_early=1", "learning_rate=0.0"),
    *("data.folds=5", "data.fold=0", "data.fraction=0.3", "task.class_weights=balanced"),
  ),
  "autoencoder": (
    *SIMPLE,
    "task=masked_autoencoder",
    *("task.decoder_width=16", "task.decoder_depth=1"),
  ),
}


def compiled(monkeypatch) -> list:
  """Returns a list that grows by the name of each program that is compiled from now on."""
  names, compile_lowered = [], jax.stages.Lowered.compile

  def compile_and_count(self, *arguments, **options):
    names.append(self)
    return compile_lowered(self, *arguments, **options)

  monkeypatch.setattr(jax.stages.Lowered, "compile", compile_and_count)
  return names


def train(name, number, directory):
  """Trains a point whose seed, learning rate and fold depend on its number."""
  changes = [f"seed={number}"]
  stops = name.endswith("early_stop")
  changes += [f"data.fold={number}" if stops else f"learning_rate={1e-3 * (1 + number)}"]
  result = vitx.train(runs.tiny(*CASES[name], *changes), directory)
  assert result.finished and (result.step < 9) == stops
  return runs.rows(directory), runs.final_state(directory)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_point_has_the_bits_that_it_has_alone(name, tmp_path, monkeypatch):
  programs = compiled(monkeypatch)
  with sharing.sharing():
    train(name, 0, tmp_path / "first")
    before = len(programs)
    rows, state = train(name, 1, tmp_path / "shared")
    assert len(programs) == before > 2
  alone, expected = train(name, 1, tmp_path / "alone")
  assert len(programs) == 2 * before
  assert rows == alone
  jax.tree.map(np.testing.assert_array_equal, state, expected)


def test_results_are_shared_by_key_and_freed_when_there_are_many(monkeypatch):
  monkeypatch.setattr(sharing, "MOST", 4)
  calls = []

  def use(keys):
    return [sharing.once(lambda k=key: k, lambda k=key: calls.append(k) or k) for key in keys]

  assert use("aa") == ["a", "a"] == calls  # outside `sharing` each call makes its result
  calls.clear()
  with sharing.sharing():
    assert use("abcabd") == [*"abcabd"] and calls == [*"abcd"]
    use("e")  # of five results, c and a were not used for the longest time
    use("bdeca")
  assert calls == [*"abcdeca"]
