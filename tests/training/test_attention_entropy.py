"""The attention entropy in a row of kind "train" is that of the state after the row's step."""

import jax
import numpy as np
import pytest

from tests import runs
from tests.training.test_loop import same
from vitx.analysis.matrices import attention_entropies, expose_matrices
from vitx.checkpoints.load import load
from vitx.data.dataset import spread
from vitx.models import model_from_config
from vitx.training import loop

NAME = "attention_entropy/block_00"


@pytest.fixture(scope="module")
def logged_run(tmp_path_factory):
  """The finished run, with the entropy in its rows."""
  workdir = tmp_path_factory.mktemp("entropy")
  saves = ("checkpoint.every=5 steps", "checkpoint.keep=8")
  config = runs.tiny("evaluation.attention_entropy=5", *saves)
  loop.train(config, workdir)
  return config, workdir


@pytest.mark.slow  # a whole run; `test_loop.short_run` checks this too
def test_each_row_has_the_entropy_after_its_step(logged_run):
  """The entropy is that of the trained weights, not of their average.

  A model that computes its matrices has an equal entropy.
  """
  config, workdir = logged_run
  rows = {row["step"]: row[NAME] for row in runs.rows(workdir) if row["kind"] == "train"}
  assert sorted(rows) == list(range(5, 41, 5)) and abs(rows[5] - rows[40]) > 1e-4
  experiment = loop.make_experiment(config)
  images = spread(experiment.load_examples("validation"), 5)
  batch = {"image": np.stack([images[i]["image"] for i in range(5)])}
  inputs = experiment.task.model_inputs(batch)
  model = model_from_config(expose_matrices(experiment.settings.model))
  entropies = jax.jit(lambda variables: attention_entropies(model, variables, inputs))
  for step in (5, 40):
    entropy = entropies(load(workdir, step, weights="raw").variables)[NAME]
    assert rows[step] == pytest.approx(float(np.mean(np.asarray(entropy))), rel=1e-5)


@pytest.mark.slow  # a whole run
def test_the_entropy_changes_nothing_of_the_run(logged_run, finished_run):
  rows = [{k: v for k, v in row.items() if k != NAME} for row in runs.rows(logged_run[1])]
  assert rows == runs.rows(finished_run[0])
  same(runs.final_state(finished_run[0]), runs.final_state(logged_run[1]))
