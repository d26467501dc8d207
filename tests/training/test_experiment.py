"""The properties of an experiment that follow from a config and its source."""

from fractions import Fraction

import numpy as np
import pytest

from tests import runs
from tests.training.test_loop import resolved
from vitx.analysis.implementations import implementations
from vitx.config.errors import ConfigError
from vitx.config.fields import find
from vitx.config.loader import load_config
from vitx.data import sources
from vitx.data.dataset import ArraySpec, DatasetInfo, Source
from vitx.models import model_from_config
from vitx.ops.implementation import choosing_by, lowering_for
from vitx.ops.rule import FAMILIES, Rule
from vitx.tasks.density import Density
from vitx.training import compilation
from vitx.training import experiment as making
from vitx.training.experiment import make_experiment, open_data


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


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_implementations_are_found_in_the_whole_network(implementation):
  mixer = f"token_mixer=performer,token_mixer.implementation={implementation},model.depth=2"
  found = implementations(model_from_config(resolved(mixer).model), (1, 8, 8, 1))
  assert found == dict.fromkeys(("block_0/token_mixer", "block_1/token_mixer"), implementation)


def test_implementations_are_those_of_the_examples_that_a_device_has_at_once():
  """Each of two devices has 12 examples of 4 heads at once, or 6 with micro-batches."""
  bounds = {"dense": ((1000, 32),)}
  rule = Rule("any", "a test", dict.fromkeys(FAMILIES, ()) | bounds)
  picked = []
  for steps in (1, 2):
    text = f"token_mixer=softmax,model.num_heads=4,batch_size=24,grad_accum_steps={steps}"
    with choosing_by(rule):
      picked += make_experiment(runs.tiny(text)).implementations().values()
  assert picked == ["kernelized", "masked"]


def test_auto_never_holds_the_matrix_of_many_tokens():
  model = model_from_config(resolved("token_mixer=softmax,posemb=none").model)
  found = implementations(model, (1, 256, 256, 1))  # 4,096 tokens
  assert set(found.values()) == {"kernelized"}


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
  "float": ({"image": ArraySpec((8, 8, 1), "float32"), "label": LABEL}, "float32.*image uint8"),
  "soft": (
    {"image": IMAGE, "label": ArraySpec((), "float32")},
    "label float32.*needs label integer",
  ),
  "rank": ({"image": IMAGE, "label": ArraySpec((2,), "int32")}, r"label int32 \(2,\).*with 0 axes"),
  "missing": ({"image": IMAGE}, "no array .label.*needs label integer"),
  "lies": ({"image": IMAGE, "label": LABEL}, "a label is float32"),  # as its examples show
}
SEQUENCES = {
  "wide": ({"tokens": ArraySpec((None,), "int32")}, "tokens int32.*tokens uint8"),
  "grid": ({"tokens": ArraySpec((4, 4), "uint8")}, r"tokens uint8 \(4, 4\).*with 1 axes"),
  "image": ({"image": ArraySpec((8, 8, 1), "float32")}, r"float32.*uint8 with 3 axes"),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_source_whose_arrays_are_not_the_tasks_is_refused_before_anything(kind, monkeypatch):
  spec, message = GIVEN[kind]
  arrays = ARRAYS | ({"label": np.float32(0.7)} if kind == "lies" else {})
  info, given = DatasetInfo("mine", spec, class_names=("a", "b")), Given(**arrays)
  monkeypatch.setattr(making, "open_source", lambda *_: Source(info, given, given, given))
  config = runs.tiny("batch_size=8", "data.image_size=8", "data.mean=(0.5,)", "data.std=(0.5,)")
  with pytest.raises(ConfigError, match=rf"data\.source=.*{message}|{message}"):
    making.make_experiment(config).batches()


@pytest.mark.parametrize("kind", SEQUENCES)
def test_a_density_model_refuses_arrays_of_another_kind(kind):
  spec, message = SEQUENCES[kind]
  config = load_config("density_digits" if kind == "image" else "density_text")
  with config.unlocked(), pytest.raises(ConfigError, match=message):
    Density.resolve(config, DatasetInfo("mine", spec, vocabulary=256))


@pytest.mark.parametrize(
  "field",
  [
    "optimizer.name=adamww",
    "optimizer.name=optax:adamww",
    "optimizer.b9=1",
    "schedule.name=cosin",
    "schedule.wormup=3",
    "tracking.name=wb",
    "duration=abc",
    "log_every=5 parsec",
    "batch_size=9,grad_accum_steps=2",
    "data.validation_choice=nope",
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
    (("batch_size=75", "min_steps_per_epoch=1000", "grad_accum_steps=1"), None),
    (("duration='1 epochs, at least 64 steps'",), {"duration": "64 steps"}),
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
  if expected is None:
    with pytest.raises(ConfigError, match="batch_size=75 does not split evenly over 2 devices"):
      make_experiment(config)
    return
  experiment = make_experiment(config)
  found = experiment.config
  assert {path: find(found, path) for path in expected} == expected
  assert experiment.steps_per_epoch == Fraction(1294, found.batch_size)
  # Another resolution, as when the run continues, changes nothing.
  assert make_experiment(found).config.to_json() == found.to_json()


def test_a_batch_is_halved_while_it_has_all_micro_batches():
  few = ("batch_size=96", "min_steps_per_epoch=1000")
  assert making.halve_batch(runs.tiny(*few, "grad_accum_steps=32"), 1294) == 96
  with pytest.raises(ConfigError, match=r"^min_steps_per_epoch=1000 halves batch_size=96 to 48 .*"):
    make_experiment(runs.tiny(*few, "grad_accum_steps=16"))


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


@pytest.mark.parametrize(
  ("overrides", "warnings"),
  [
    (("duration=100 steps",), []),
    (("duration=99 steps",), ["warning: 99 steps are too few to learn from random weights"]),
    (("duration=100 steps", "log_every=3 epochs"), ["warning: log_every='3 epochs' is longer"]),
  ],
)
def test_a_run_too_short_to_learn_or_to_log_says_so(overrides, warnings):
  header = compilation.make_header(make_experiment(runs.tiny(*overrides)), 1, 1, "")
  found = [line for line in header.splitlines() if line.startswith("warning")]
  assert len(found) == len(warnings)
  for line, words in zip(found, warnings, strict=True):
    assert line.startswith(words)
