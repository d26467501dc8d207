"""The properties of an experiment that follow from a config and its source."""

from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from tests import runs
from tests.training.test_loop import resolved
from vitx.config.errors import ConfigError
from vitx.config.fields import find
from vitx.config.loader import load_config
from vitx.data import sources
from vitx.data.dataset import ArraySpec, DatasetInfo, Source
from vitx.models import create
from vitx.ops.implementation import choosing_by, lowering_for
from vitx.ops.rule import FAMILIES, Rule
from vitx.tasks import settle
from vitx.tasks.settle import open_data
from vitx.training import compilation
from vitx.training import experiment as making
from vitx.training.experiment import make_experiment


@pytest.mark.parametrize(
  ("overrides", "seed"),
  [
    ("token_mixer=erdos_renyi", 0),
    ("token_mixer=erdos_renyi,seed=3", 3),
    ("token_mixer=erdos_renyi,seed=3,graph_seed=5", 5),
    ("token_mixer=bigbird,graph_seed=5,token_mixer.seed=7", 7),
    ("token_mixer=softmax,graph_seed=5", None),
  ],
)
def test_the_graph_seed_reaches_mixers_that_draw_a_graph(overrides, seed):
  assert resolved(overrides).model.token_mixer.get("seed") == seed


def test_the_data_seed_or_else_the_seed_chooses_the_examples_of_validation():
  def validation(overrides):
    chosen = open_data(load_config(f"digits.py:{overrides}")).validation
    return [chosen[i]["image"].tobytes() for i in range(len(chosen))]

  assert validation("seed=5,data_seed=1") == validation("seed=1") != validation("seed=5")


def test_implementations_depend_on_the_examples_of_a_device():
  """Each of two devices has 12 examples of 4 heads at once, or 6 with micro-batches."""
  bounds = {"dense": ((1000, 32),)}
  rule = Rule("any", "a test", dict.fromkeys(FAMILIES, ()) | bounds)
  picked = []
  for steps in (1, 2):
    text = f"token_mixer=softmax,model.num_heads=4,batch_size=24,grad_accum_steps={steps}"
    with choosing_by(rule):
      picked += make_experiment(runs.tiny(text)).implementations().values()
  assert picked == ["kernelized", "masked"]


def test_the_task_and_its_network_are_built_once(monkeypatch):
  counted = [(settle, "build_task"), (create, "create_model")]
  for module, name in counted:
    monkeypatch.setattr(module, name, mock.Mock(wraps=getattr(module, name)))
  make_experiment(runs.tiny("task.class_weights=balanced", "min_steps_per_epoch=50"))
  assert [getattr(module, name).call_count for module, name in counted] == [1, 1]


class Given:
  """Examples that are all equal."""

  def __init__(self, **arrays):
    self._arrays = arrays

  labels = np.zeros(60, np.int32)

  def __len__(self):
    return 60

  def __getitem__(self, i):
    return dict(self._arrays)

  def name(self, i):
    return f"example {i}"


IMAGE, LABEL = ArraySpec((8, 8, 1), "uint8"), ArraySpec((), "int32")
ARRAYS = {"image": np.zeros((8, 8, 1), np.uint8), "label": np.int32(1)}


# The arrays of a source's spec, and the message about them.
GIVEN = {
  "uint16": (
    {"image": ArraySpec((8, 8, 1), "uint16"), "label": LABEL},
    "image uint16.*image uint8",
  ),
  "missing": ({"image": IMAGE}, "no array .label.*needs label integer"),
  "lies": ({"image": IMAGE, "label": LABEL}, "a label is float32"),  # as its examples show
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_source_with_arrays_of_another_kind_is_refused(kind, monkeypatch):
  spec, message = GIVEN[kind]
  arrays = ARRAYS | ({"label": np.float32(0.7)} if kind == "lies" else {})
  info, examples = DatasetInfo("mine", spec, class_names=("a", "b")), Given(**arrays)
  source = Source(info, examples, examples, examples)
  monkeypatch.setattr(making.settle, "open_source", lambda *_: source)
  config = runs.tiny("batch_size=8", "data.image_size=8", "data.mean=(0.5,)", "data.std=(0.5,)")
  with pytest.raises(ConfigError, match=rf"data\.source=.*{message}|{message}"):
    making.make_experiment(config).batches()


@pytest.mark.parametrize(
  "field",
  [
    "optimizer.name=optax:adamww",
    "schedule.name=cosin",
    "tracking.name=wb",
    "duration=abc",
    "log_every=5 parsec",
    "batch_size=9,grad_accum_steps=2",
  ],
)
def test_names_and_fields_are_checked_before_data_are_read(field, monkeypatch):
  def fail(*_):
    raise AssertionError("the data set was opened")

  monkeypatch.setattr(sources, "open_dataset", fail)
  config = load_config(f"digits:{field}")
  with pytest.raises(ConfigError, match=rf"^{field.split('=')[0]}"):
    making.make_experiment(config)


# The digits have 1,438 examples outside of test, of which 144 are for validation.
@pytest.mark.parametrize(
  ("overrides", "expected"),
  [
    ((), {"batch_size": 32, "duration": "40 steps", "log_every": "5 steps"}),
    (("batch_size=512", "min_steps_per_epoch=8"), {"batch_size": 128}),
    (("batch_size=96", "min_steps_per_epoch=1000"), {"batch_size": 24}),
    (("duration='1 epochs, at least 64 steps'",), {"duration": "64 steps"}),
    (("duration=0.3 epochs", "log_every=5%"), {"log_every": "1 steps"}),
    (
      (
        "duration=2 epochs",
        "log_every=5%",
        "schedule.warmup='10%, at most 6 steps'",
        "evaluation.every='5%, at least 1 epochs'",
        "stop_after=50%",
      ),
      {
        "duration": "2 epochs",
        "log_every": "4 steps",
        "schedule.warmup": "6 steps",
        "evaluation.every": "40 steps",
        "stop_after": "40 steps",
        "checkpoint.every": "8 steps",
      },
    ),
  ],
)
def test_lengths_follow_from_the_number_of_examples(overrides, expected):
  config = runs.tiny(*overrides)
  experiment = make_experiment(config)
  settled = experiment.settings
  assert {path: find(settled, path) for path in expected} == expected
  assert experiment.steps_per_epoch == Fraction(1294, settled.batch_size)
  # Another resolution, as when the run continues, changes nothing.
  assert make_experiment(settled).settings == settled


def test_pairs_that_are_mixed_are_not_torn_apart():
  with pytest.raises(ConfigError, match=r"batch_size=30 does not split .*; take a multiple of 4"):
    make_experiment(runs.tiny("batch_size=30"))  # 15 images for each of two devices


def test_a_batch_is_halved_while_it_has_all_micro_batches():
  few = ("batch_size=96", "min_steps_per_epoch=1000")
  assert making.halve_batch(runs.tiny(*few, "grad_accum_steps=32"), 1294) == 96
  with pytest.raises(ConfigError, match=r"^batch_size=48 does not split.*a multiple of 32"):
    make_experiment(runs.tiny(*few, "grad_accum_steps=16", "augment.mixup=0.0"))


@pytest.mark.parametrize(
  ("mixer", "implementation", "count"),
  [("axial", "kernelized", 1), ("axial", "masked", 0), ("softmax", "kernelized", 0)],
)
def test_a_gpu_without_its_kernel_says_so(mixer, implementation, count, monkeypatch):
  monkeypatch.setattr(compilation, "find_obstacle", lambda: "jax-triton is missing")
  chosen = f"model.token_mixer.implementation={implementation}"
  experiment = make_experiment(runs.tiny("duration=100 steps", f"token_mixer={mixer}", chosen))
  with lowering_for("gpu"):
    header = compilation.make_header(experiment, 1, 1, "")
  assert header.count("\nwarning: attention along patterns") == count
  assert header.count("jax-triton is missing") == count
