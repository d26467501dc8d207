"""What a run begins with: weights of another run, of a teacher, or from its training images."""

import jax
import numpy as np
import pytest

from tests import runs
from tests.training.test_loop import same
from vitx.checkpoints.load import load
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.data.dataset import DatasetInfo
from vitx.data.images.statistics import whiten
from vitx.interop.init_from import initial_variables
from vitx.runtime.weights import load_constants, make_fit
from vitx.training import loop
from vitx.training.experiment import make_experiment


@pytest.mark.slow
def test_init_from_starts_a_new_run_from_weights(finished_run, tmp_path, capsys):
  short = ("duration=6 steps", "learning_rate=0.0", *runs.PLAIN)
  config = runs.tiny(f"init_from='{finished_run[0]}'", *short)
  loop.train(config, tmp_path)
  printed = capsys.readouterr().out
  assert "init_from" in printed and "loaded" in printed
  # At learning rate 0 the weights are those of the other run's best checkpoint (its average).
  state = runs.final_state(tmp_path)
  same(state["params"], load(finished_run[0]).variables["params"])
  for x, y in zip(*(jax.tree.leaves(state[name]) for name in ("params", "ema")), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8)
  assert runs.final_state(tmp_path)["step"] == 6


@pytest.mark.slow  # compiles a network
def test_a_frozen_whitening_comes_from_the_training_images_and_is_saved(tmp_path):
  stem = "stem=normalized", "stem.channels=()", "stem.kernels=()", "stem.strides=()"
  whitening = "stem.whitening=2", "stem.patch=3", "freeze=('stem/whitening/kernel',)"
  small = "data.image_size=7", "duration=2 steps", "data.fraction=0.2", "schedule.warmup=0 steps"
  config = runs.tiny(*stem, *whitening, *small, *runs.PLAIN)
  loop.train(config, tmp_path)
  experiment = make_experiment(config)
  transform, train = experiment.task.transform(train=False), experiment.source.train
  assert len(train) <= 500  # so that every image counts
  images = np.stack([transform(train[i], None)["image"] for i in range(len(train))])
  kernel = whiten(np.asarray(experiment.task.preprocess(images)), 2)
  state = runs.final_state(tmp_path)
  for params in (state["params"], state["ema"], load(tmp_path).variables["params"]):
    np.testing.assert_allclose(params["stem"]["whitening"]["kernel"], kernel, rtol=1e-3, atol=1e-3)


def test_weights_that_have_seen_validation_are_reported(finished_run, caplog):
  loaded = load(finished_run[0])

  def report(fingerprint=loaded.fingerprint, **data):
    caplog.clear()
    config = loaded.config.copy_and_resolve_references().unlock()
    config.update(data)
    task, info = loaded.task, DatasetInfo("digits", {}, fingerprint=fingerprint)
    initial_variables(str(finished_run[0]), loaded.variables, make_fit(task, config, info))
    return caplog.text

  assert report() == report("another", data_seed=1) == report(data={"fraction": 0.5}) == ""
  assert "(data_seed=0, here 1): validation of this run may have" in report(data_seed=1)
  with_folds = report(data={"folds": 3, "fold": 0})
  assert "data.folds=None, here 3" in with_folds and "validation and test of this" in with_folds
  # Examples that are left out change the fingerprint, and not the division of the others.
  assert report("another", data={"exclude": "left_out.csv"}) == ""
  excluded = report("another", data={"exclude": "left_out.csv", "folds": 3, "fold": 0})
  assert "data.folds=None, here 3" in excluded


def test_a_teacher_that_has_seen_validation_is_reported(finished_run, caplog):
  """The config of the run describes its network as the teacher of another run."""
  place = str(finished_run[0])
  data = load(place).settings.data
  pixels = f"data.mean={data.mean}", f"data.std={data.std}"
  taught = "task=distillation", f"task.teacher={place}", "task.logits_weight=1.0", *pixels
  for seed, is_reported in {0: False, 1: True}.items():
    caplog.clear()
    experiment = make_experiment(runs.tiny(*taught, f"data_seed={seed}"))
    load_constants(experiment.task, experiment.settings, experiment.source.info)
    text = f"task.teacher={place!r} was trained on the same data, divided in another way"
    assert (text in caplog.text) == is_reported


@pytest.mark.slow  # compiles a training step
def test_an_optimizer_that_keeps_the_start_keeps_the_given_weights(finished_run, tmp_path):
  """Distance over gradients takes a first step of 1e-6 of the distance from its start."""
  fields = f"init_from={finished_run[0]}", "optimizer=optax:contrib.dog", "learning_rate=1.0"
  short = "duration=1 steps", "schedule=constant", *runs.PLAIN
  loop.train(runs.tiny(*fields, *short), tmp_path)
  before, after = load(finished_run[0]).variables["params"], load(tmp_path).variables["params"]
  for x, y in zip(*map(jax.tree.leaves, (before, after)), strict=True):
    np.testing.assert_allclose(x, y, atol=1e-3)


def test_an_average_without_statistics_of_its_batches_is_refused():
  with pytest.raises(ConfigError, match="schedule_free is evaluated at an average"):
    make_experiment(load_config("digits:cvt,optimizer=schedule_free,ema_decay=0.0"))
