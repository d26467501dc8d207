"""Rows of configs/photos.py on a folder of images."""

import pytest

from configs import photos
from tests.test_folder_end_to_end import draw
from vitx.models import count
from vitx.training.experiment import make_experiment
from vitx.training.parameters import parameter_names
from vitx.training.trial import complete_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """72 images in three classes, of which training keeps 51."""
  return draw(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize(
  ("row", "parameters", "shown"),
  [("from_scratch", 658_243, 400), ("finetune", 21_629_955, 200), ("frozen", 21_629_955, 200)],
)
def test_a_small_folder_gets_enough_steps_and_log_lines(folder, row, parameters, shown):
  config = photos.get_config(f"{row},dataset=folder:{folder}")
  assert count(complete_config(config)).total == parameters
  shallow = f"{row},dataset=folder:{folder},model.depth=1,data.memory=never"
  experiment = make_experiment(photos.get_config(shallow))
  config, steps = experiment.config, experiment.total_steps
  assert (config.batch_size, steps) == (16, shown)
  assert 3 <= experiment.steps_per_epoch < 4  # the batch is as small as it gets
  assert sum(experiment.is_due(step, config.log_every) for step in range(1, steps + 1)) >= 20
  assert sum(experiment.is_due(step, config.evaluation.every) for step in range(1, steps + 1)) == 20
  names = set(parameter_names(experiment.named_shapes().params))
  learned = {name.split("/")[0] for name in names - experiment.step.frozen}
  assert (learned == {"head"}) == (row == "frozen")
