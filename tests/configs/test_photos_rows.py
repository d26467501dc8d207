"""Rows of configs/photos.py on a folder of images."""

import jax
import numpy as np
import pytest

from configs import photos
from tests.configs.test_vix_rows import count_by_layers
from tests.slow import all_but
from tests.test_folder_end_to_end import draw
from vitx.config.errors import ConfigError
from vitx.interop.transfer import transfer
from vitx.tasks.settle import complete_config
from vitx.training import phases
from vitx.training.experiment import make_experiment
from vitx.training.parameters import parameter_names


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """72 images in three classes, of which training keeps 51."""
  return draw(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize(
  ("row", "parameters", "shown"),
  all_but(
    "from_scratch",
    of=[
      ("from_scratch", 658_243, 400),
      ("pretrain", 2_707_203, 400),
      ("finetune", 21_629_955, 200),
      ("lora", 21_629_955, 200),
      ("frozen", 21_629_955, 200),
    ],
  ),
)
def test_a_small_folder_gets_enough_steps_and_log_lines(folder, row, parameters, shown):
  config = photos.get_config(f"{row},dataset=folder:{folder}")
  assert count_by_layers(complete_config(config)) == parameters
  shallow = f"{row},dataset=folder:{folder},model.depth=1,data.memory=never"
  experiment = make_experiment(photos.get_config(shallow), is_trial=True)
  config, steps = experiment.settings, experiment.total_steps
  assert (config.batch_size, steps) == (16, shown)
  assert 3 <= experiment.steps_per_epoch < 4  # the batch has the smallest size
  assert sum(experiment.is_due(step, "log_every") for step in range(1, steps + 1)) >= 20
  assert sum(experiment.is_due(step, "evaluation.every") for step in range(1, steps + 1)) == 20
  names = set(parameter_names(experiment.named_shapes().params))
  learned = {name.split("/")[0] for name in names - experiment.step.frozen}
  assert (learned == {"head"}) == (row == "frozen")


@pytest.mark.usefixtures("whole_runs")
@pytest.mark.slow  # makes two experiments
def test_pretraining_takes_all_training_images_and_fills_the_body(folder):
  """Phase 2 learns from half of the labels; neither phase trains on a test image."""
  text = f"pretrain,dataset=folder:{folder},model.depth=1,data.fraction=0.5"
  before, after = phases.check(photos.get_config(text), "runs/photos")
  assert (before.settings.task.name, after.settings.task.name) == (
    "masked_autoencoder",
    "classification",
  )
  assert after.settings.init_from == "runs/photos/phase1" and not before.settings.init_from
  assert (len(before.examples.train), len(after.examples.train)) == (51, 27)
  held_out = {after.source.test.name(i) for i in range(len(after.source.test))}
  trained = {before.source.train.name(i) for i in range(len(before.source.train))}
  assert held_out and not held_out & trained
  source, target = (
    jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), dict(e.named_shapes().params))
    for e in (before, after)
  )
  report = transfer({"params": target}, {"params": source})[1]
  assert set(report.new) == {"params/head/bias", "params/head/kernel"}
  assert all(name.startswith("params/decoder/") for name in report.unused) and report.unused
  assert not report.head and not report.skipped and not report.resized


@pytest.mark.slow  # makes three experiments
def test_pretraining_works_on_images_without_labels(folder, tmp_path):
  for i, path in enumerate(sorted(folder.rglob("*.jpg"))):
    (tmp_path / f"{i}.jpg").write_bytes(path.read_bytes())
  text = f"pretrain,dataset=folder:{folder},model.depth=1,batch_size=8"
  config = photos.get_config(f"{text},phases.phase1.data.source=folder:{tmp_path}")
  before, after = phases.check(config, "runs/photos")
  assert before.source.info.class_names is None and set(before.task.element_spec) == {"image"}
  assert before.settings.model.num_classes == 1 and after.settings.model.num_classes == 3
  with pytest.raises(
    ConfigError, match=r"phases\.phase2: .* no array 'label', but the task 'classification'"
  ):
    phases.check(photos.get_config(text.replace(str(folder), str(tmp_path))), "runs/photos")


def test_an_existing_phase_1_is_used_instead():
  config = photos.get_config("pretrain,pretrained=runs/a/phase1")
  assert config.init_from == "runs/a/phase1" and not config.phases
  config = photos.get_config("pretrain,pretrained=none")
  assert not config.init_from and not config.phases and config.layer_decay == 1.0
  for changes in ("phases.phase1.duration=3 steps", "phases.phase2.duration=3 steps"):
    with pytest.raises(ValueError, match=rf"one phase; leave out {changes[:13]}"):
      photos.get_config(f"pretrain,pretrained=runs/a/phase1,{changes}")
