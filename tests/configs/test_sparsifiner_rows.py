"""Sparsifiner's rows: published sizes, phases that can be built, and one recipe for all."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import sparsifiner_imagenet, sparsifiner_small
from tests.configs.test_vix_rows import count_by_layers
from tests.slow import all_but
from vitx.attention.sparsifiner import count_kept
from vitx.checkpoints import tree
from vitx.config.overrides import split
from vitx.interop.transfer import transfer
from vitx.models import initialize, model_from_config
from vitx.training import durations
from vitx.training.optim import optimizers
from vitx.training.phases import split_phases

PARAMETERS = {
  "deit_s_keep_0.25": 22_251_880,
  "deit_s_l1": 22_251_880,
  "lvvit_s_keep_0.25": 26_420_112,
}
# Attended keys of 197, Wei et al. 2023, table of keep rates.
KEPT = {0.9: 178, 0.8: 158, 0.7: 138, 0.6: 119, 0.5: 99, 0.4: 79, 0.3: 60, 0.2: 40, 0.1: 20}
KEPT |= {0.05: 10, 0.01: 2}


@pytest.mark.parametrize("row", all_but("deit_s_keep_0.25", of=PARAMETERS))
def test_rows_have_these_numbers_of_parameters(row):
  parameters = count_by_layers(sparsifiner_imagenet.get_config(row))
  assert parameters == PARAMETERS[row] == sparsifiner_imagenet.PUBLISHED[row]["parameters"]


@pytest.mark.parametrize("row", sparsifiner_imagenet.ROWS)
def test_the_mixer_keeps_the_share_of_the_row(row):
  keep = sparsifiner_imagenet.get_config(row).model.token_mixer.keep
  assert row.endswith(f"keep_{keep}") or (row, keep) == ("deit_s_l1", 0.25)
  assert count_kept(keep, 197) == KEPT.get(keep, 50)


@pytest.mark.parametrize(("recipe", "weight"), [("supplement", 168.0), ("yaml", 1.68)])
def test_a_recipe_has_two_phases(recipe, weight):
  config = sparsifiner_imagenet.get_config(f"deit_s_keep_0.25,recipe={recipe}")
  one, two = split_phases(config, "w").values()
  assert one.init_from == one.task.teacher == two.task.teacher == config.init_from
  assert two.init_from == "w/phase1"
  assert (one.task.attention_weight, two.task.get("attention_weight", 0)) == (weight, 0)
  assert one.task.class_weight == one.task.logits_weight == one.task.token_weight == 0
  weights = two.task.class_weight, two.task.logits_weight, two.task.token_weight
  assert weights == (1.0, 0.5, 0.5)
  assert not one.model.token_mixer.sparse and two.model.token_mixer.get("sparse", True)
  mixer = two.model.token_mixer
  thresholds = mixer.coefficient_threshold, mixer.get("coefficient_top"), mixer.basis_threshold
  assert thresholds == {"supplement": (0.05, None, 0.01), "yaml": (None, 8, 0.02)}[recipe]
  assert (one.duration, two.duration) == ("5 epochs", f"{40 + 5 * (recipe == 'yaml')} epochs")
  assert one.batch_size == two.batch_size == 1344


# Numbers of training examples, from which the steps of a phase follow.
EXAMPLES = {"digits": 1294, "cifar10": 45_000, "imagenette/160px-v2": 8522, "imagenet2012": 1.27e6}
CONFIGS_WITH_PHASES = {sparsifiner_imagenet: ("imagenet2012",), sparsifiner_small: ()}


def test_every_config_with_phases_is_tested():
  names = {
    path.stem
    for path in Path(sparsifiner_small.__file__).parent.glob("*.py")
    if "config.phases" in path.read_text()
  }
  names -= {"common", "photos", "finetune"}  # tests of the last two are beside this file
  assert names == {module.__name__.split(".")[-1] for module in CONFIGS_WITH_PHASES}


@pytest.mark.parametrize(
  ("module", "row"), [(module, row) for module in CONFIGS_WITH_PHASES for row in module.ROWS]
)
def test_no_phase_begins_with_weights_that_are_still_random(module, row):
  """A phase passes on a moving average only if less than 1 % of it is initial weights.

  The next phase begins with the weights that chose the best checkpoint.
  """
  config = module.get_config(row)
  phases = split_phases(config, "w") if config.phases else {}
  for name, phase in phases.items():
    if not any(other.init_from == f"w/{name}" for other in phases.values()):
      continue
    steps = durations.to_steps(phase.duration, EXAMPLES[phase.data.source] / phase.batch_size)
    share = 1.0
    for n in range(steps if phase.evaluation.weights[0] == "ema" else 0):
      decay = phase.ema_decay
      share *= min(decay, (1 + n) / (10 + n)) if phase.ema_warmup else decay
    assert phase.evaluation.weights[0] == "raw" or share < 0.01, (name, share)


@pytest.mark.parametrize("row", ["deit_s_l1", "deit_s_keep_0.25", "lvvit_m_keep_0.1"])
def test_bases_alone_are_exempt_from_decay_under_an_l1_norm(row):
  phase = split_phases(sparsifiner_imagenet.get_config(row), "w")["phase1"]
  mixer = "block_0/token_mixer"
  shapes = {
    "down": (7, 3),
    "basis": (3, 7),
    "reduce_query/kernel": (4, 2),
    "reduce_query/bias": (2,),
  }
  params = tree.nest({f"{mixer}/{name}": np.zeros(shape) for name, shape in shapes.items()})
  mask = tree.name_leaves(optimizers.DECAY_MASKS[phase.weight_decay_mask](params))
  decayed = {name.removeprefix(f"{mixer}/") for name, decays in mask.items() if decays}
  assert decayed == {"down", "reduce_query/kernel"} | ({"basis"} if row != "deit_s_l1" else set())
  assert (phase.task.basis_l1 > 0) == (row == "deit_s_l1")


def test_another_backbone_is_also_the_teacher():
  config = sparsifiner_imagenet.get_config("lvvit_s_keep_0.5,init_from=mine.pth")
  assert config.task.teacher == "mine.pth" and config.task.teacher_model.name == "lv_vit"


@pytest.mark.parametrize("row", ["cifar10_keep_0.1", "digits_random_0.25", "digits_evit_0.7"])
def test_a_small_row_takes_the_weights_of_its_dense_network(row):
  config = sparsifiner_small.get_config(row)
  phases = split_phases(config, "w")
  assert list(phases) == ["phase0", *(["phase1"] if "keep" in row else []), "phase2"]
  params = []
  for phase in (phases["phase0"], phases["phase2"]):
    model = model_from_config({**phase.model, "num_classes": 10})
    images = jnp.zeros((1, 8 if "digits" in row else 32, 8 if "digits" in row else 32, 3))
    init = lambda key, model=model, x=images: initialize(model, key, x, train=False)  # noqa: E731
    shapes = jax.eval_shape(init, jax.random.key(0))["params"]
    params.append(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes))
  assert phases["phase0"].model.get("token_reduction", {"name": "none"}) == {"name": "none"}
  _, report = transfer(params[1], params[0])
  assert not report.unused and not report.skipped
  assert len(report.new) == (0 if "keep" not in row else 6 * config.model.depth)


def test_an_existing_backbone_replaces_the_first_phase():
  config = sparsifiner_small.get_config("digits_keep_0.25,backbone=runs/dense")
  phases = split_phases(config, "w")
  assert list(phases) == ["phase1", "phase2"]
  assert [x.init_from for x in phases.values()] == ["runs/dense", "w/phase1"]
  assert {x.task.teacher for x in phases.values()} == {"runs/dense"}
  config = sparsifiner_small.get_config("digits_random_0.25,backbone=runs/dense")
  assert [x.init_from for x in split_phases(config, "w").values()] == ["runs/dense"]
  config = sparsifiner_small.get_config("digits_keep_0.1,backbone=runs/dense,predictors=runs/p")
  assert [x.init_from for x in split_phases(config, "w").values()] == ["runs/p"]
  assert config.task.teacher == "runs/dense"
  config = sparsifiner_small.get_config("digits_predictors,backbone=runs/dense")
  assert list(split_phases(config, "w")) == ["phase1"]


def test_rows_are_named_after_data_and_method():
  assert split(",".join(sparsifiner_small.ROWS)) == list(sparsifiner_small.ROWS)
  assert len(set(sparsifiner_small.ROWS)) == 3 * 14
