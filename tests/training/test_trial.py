"""Steps without data: facts from a set's name, the memory of a step, and repeated steps."""

import dataclasses
import types

import pytest

from configs import cifar10, digits
from vitx.analysis import cost
from vitx.config.loader import load_config
from vitx.data import sources
from vitx.data.dataset import DatasetInfo
from vitx.data.images.settings import image_spec
from vitx.tasks.settle import complete_config
from vitx.training import trial

TINY = "model.depth=1,model.width=8,model.num_heads=1,model.mlp_dim=8,stem=linear,stem.patch=4"


def complete(*overrides):
  return complete_config(load_config(",".join([f"digits:softmax,{TINY}", *overrides])))


def test_an_unknown_data_set_is_opened_for_its_classes(monkeypatch):
  info = DatasetInfo("folder:x", image_spec(1, (28, 28)), class_names=("a", "b", "c"))
  dataset = types.SimpleNamespace(info=info)
  monkeypatch.setattr(sources, "open_dataset", lambda data: dataset)
  config = complete_config(cifar10.get_config("vit,dataset=folder:x"))
  assert (config.model.num_classes, config.data.image_size, config.data.channels) == (3, 28, 1)


KNOWN = {  # from each set's own paper or page
  "mnist": ((28, 28, 1), 10),
  "cifar100": ((32, 32, 3), 100),
  "stl10": ((96, 96, 3), 10),
  "imagenette/320px-v2": ((None, None, 3), 10),
  "imagenet2012:5.1.0": ((None, None, 3), 1000),
  "tiny_imagenet": ((64, 64, 3), 200),
}


def test_the_description_of_a_data_set_agrees_with_its_files(data_dir):
  data = digits.get_config().data
  known, opened = sources.find_info(data), sources.open_dataset(data).info
  assert dataclasses.replace(opened, fingerprint="") == known


@pytest.mark.slow  # compiles two steps
def test_memory_holds_the_state_and_grows_with_the_batch():
  small, large = (trial.split_training_bytes(complete(f"batch_size={b}")) for b in (4, 256))
  # Two moments of Adam and the average of the parameters, and a few counters.
  assert 3 <= small["optimizer"] / small["parameters"] < 3.1
  assert {**small, "activations": 0} == {**large, "activations": 0}
  assert large["activations"] - small["activations"] > 252 * 4 * 4 * 8  # at the least the tokens


@pytest.mark.slow
def test_a_step_goes_on_from_its_own_state():
  config = complete("batch_size=2")
  step, needed = trial.prepare_training(config, lambda: trial.begin(config))
  step()
  step()  # the first state was donated: it would be refused
  _, state, _ = trial.make_training_step(config)
  assert needed > cost.tree_bytes(state)
