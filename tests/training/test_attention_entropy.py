"""What rows of kind "train" tell of attention is what the state after their step attends."""

import jax
import numpy as np
import pytest

from tests import runs
from vitx.analysis.matrices import attention_entropies, hold_matrices
from vitx.checkpoints.load import load
from vitx.data.dataset import spread
from vitx.models import model_from_config
from vitx.training import loop
from vitx.training.setup import make_experiment

SHORT = ("duration=6 steps", "evaluation.every=6 steps", "checkpoint.every=3 steps")
NAME = "attention_entropy/block_00"


def entropy(config, workdir, step, count):
  """That of the trained weights, not their average, by a model that holds its matrices."""
  experiment = make_experiment(config)
  images = spread(experiment.keep("validation"), count)
  batch = {"image": np.stack([images[i]["image"] for i in range(count)])}
  model = model_from_config(hold_matrices(experiment.config.model))
  variables = load(workdir, step, weights="raw").variables
  found = attention_entropies(model, variables, experiment.task.model_inputs(batch))[NAME]
  return float(np.mean(np.asarray(found)))


def test_each_row_tells_it_of_the_state_after_its_step(tmp_path):
  config = runs.tiny(
    *SHORT, "evaluation.attention_entropy=5", "log_every=3 steps", "learning_rate=0.1"
  )
  loop.train(config, tmp_path)
  told = {row["step"]: row[NAME] for row in runs.rows(tmp_path) if row["kind"] == "train"}
  assert sorted(told) == [3, 6] and abs(told[3] - told[6]) > 1e-4
  for step, value in told.items():
    assert value == pytest.approx(entropy(config, tmp_path, step, 5), rel=1e-5)


def test_it_changes_nothing_of_the_run(tmp_path):
  rows, states = [], []
  for count in (0, 5):
    workdir = tmp_path / f"{count}"
    loop.train(runs.tiny(*SHORT, f"evaluation.attention_entropy={count}"), workdir)
    rows.append([{k: v for k, v in row.items() if k != NAME} for row in runs.rows(workdir)])
    states.append(jax.tree.leaves(runs.final_state(workdir)))
  assert rows[0] == rows[1]
  for x, y in zip(*states, strict=True):
    np.testing.assert_array_equal(x, y)


def test_a_run_that_is_shorter_than_a_row_tells_it_at_its_end(tmp_path):
  config = runs.tiny(*SHORT, "evaluation.attention_entropy=5", "log_every=50 steps")
  loop.train(config, tmp_path)
  (row,) = (row for row in runs.rows(tmp_path) if row["kind"] == "train")
  assert row["step"] == 6 and row[NAME] > 0
