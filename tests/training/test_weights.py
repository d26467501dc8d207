"""Raw weights and their moving average are evaluated side by side; one chooses the best."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import vitx
from tests import runs
from vitx.inference.evaluate import evaluate
from vitx.runtime.evaluation import describe_figures, join_figures
from vitx.tasks.figures import Figure
from vitx.training import loop

FIGURES = ("top1", "top5", "nll", "ece")
# The average is so long that it is far from the weights.
SLOW = ("ema_decay=0.98", "ema_warmup=False", "learning_rate=0.01", *runs.PLAIN)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """A run that evaluates both kinds of weights; the raw weights choose the best."""
  workdir = tmp_path_factory.mktemp("both")
  return workdir, loop.train(runs.tiny("evaluation.weights=('raw','ema')", *SLOW), workdir)


def of(workdir, kind):
  return [row for row in runs.rows(workdir) if row["kind"] == kind]


@pytest.mark.slow  # reads a whole run
def test_the_first_weights_have_the_figures_and_choose_the_best(both):
  workdir, result = both
  rows = of(workdir, "validation")
  for row in (*rows, *of(workdir, "test")):
    assert {*FIGURES, *(f"ema_{name}" for name in FIGURES)} <= row.keys()
    assert not any(name.startswith("raw_") for name in row)
    assert row["nll"] < row["ema_nll"]  # the average is worse, since it lags behind
  best = max(rows, key=lambda row: (row["top1"], row["step"]))
  assert result.test["step"] == best["step"]


@pytest.mark.slow  # reads a whole run
def test_both_weights_agree_with_the_checkpoint(both):
  """`load` returns the weights that chose the best, and `evaluate` repeats training's metrics."""
  workdir, result = both
  state = runs.final_state(workdir)
  for weights, tree in ((None, "params"), ("raw", "params"), ("ema", "ema")):
    loaded = vitx.load(workdir, "latest", weights=weights)
    jax.tree.map(np.testing.assert_array_equal, loaded.variables["params"], state[tree])
  for weights, prefix in ((None, ""), ("ema", "ema_")):
    figures = evaluate(workdir, weights=weights)
    for name in FIGURES:
      assert figures[name] == pytest.approx(result.test[f"{prefix}{name}"], rel=1e-6)


@pytest.mark.slow  # trains once more
def test_evaluating_both_changes_nothing_of_the_run(both, tmp_path):
  loop.train(runs.tiny(*SLOW), tmp_path)
  for plain, row in zip(of(tmp_path, "validation"), of(both[0], "validation"), strict=True):
    for name in FIGURES:
      assert plain[name] == row[f"ema_{name}"]
  loaded = vitx.load(tmp_path, "latest")
  jax.tree.map(
    np.testing.assert_array_equal, loaded.variables["params"], runs.final_state(both[0])["ema"]
  )


def test_the_console_names_the_other_weights():
  task = SimpleNamespace(figures=(Figure("top1", "max", "{}", "top-1"),))
  figures = join_figures({"raw": {"top1": 1, "nll": 3.0}, "ema": {"top1": 2, "nll": 4.0}})
  assert figures == {"top1": 1, "nll": 3.0, "ema_top1": 2, "ema_nll": 4.0}
  assert describe_figures(task, figures, ("raw", "ema")) == "top-1 1; ema: top-1 2"
