"""The rows of the blog post on simplified blocks: exact counts, starts, and differences."""

import jax
import numpy as np
import pytest

from configs import simplified_cifar10
from configs.simplified_cifar10 import OWN, PUBLISHED, ROWS, SIZES, get_config
from tests.configs.test_vix_rows import check_step, count_by_layers, info_of
from tests.runs import replace
from tests.slow import all_but
from vitx.analysis.counting import count
from vitx.models import initialize, model_from_config
from vitx.training.experiment import resolve

# Counts of all parameters, as the blog prints them.
COUNTS = {
  "vanilla_w96_d8": 358_186,
  "simplified_w96_d8": 209_210,
  "vanilla_w128_d8": 629_130,
  "simplified_w128_d8": 364_954,
  "vanilla_w128_d12": 927_370,
  "simplified_w128_d12": 531_106,
}


ONE_MAP = ("one_map_vanilla_w96_d8", "one_map_vanilla_w128_d8")
# Rows of other starts differ in two numbers per layer; `with_skips` has the counts of vanilla.
COUNTED = [row for row in ROWS if not row.startswith(("simplified_w128_d8_", "with_skips"))]


@pytest.mark.parametrize("row", all_but("vanilla_w96_d8", "simplified_w128_d8", of=COUNTED))
def test_rows_have_these_numbers_of_parameters(row):
  expected = COUNTS | {row: COUNTS[row.removeprefix("one_map_")] for row in ONE_MAP}
  expected |= {
    "skipless_w128_d8": 629_130,
    "parallel_w128_d8": 629_130,
    "multi_head_w128_d8": 563_146,
    "sas_p_w128_d8": 579_580,
    "mimetic_vanilla_w128_d8": 629_130 - 64 * 128,  # positions are not learned
    "mimetic_simplified_w128_d8": 364_954,
  }
  assert count_by_layers(get_config(row)) == expected[row]


def test_published_figures_belong_to_rows():
  assert set(PUBLISHED) == set(ROWS) - {f"{kind}_w128_d8" for kind in OWN} - set(ONE_MAP)
  assert {
    row: figures["parameters"] for row, figures in PUBLISHED.items() if row in COUNTS
  } == COUNTS
  for row, figures in PUBLISHED.items():
    accuracy = list(figures["train_top1"].values())
    assert all(0 < x < 100 for x in accuracy)
    assert len(accuracy) == (4 if row.startswith(("skipless", "with_skips")) else 7)
    assert row.startswith("skipless") or accuracy == sorted(accuracy)


def test_a_layer_has_the_parameters_of_the_formulas():
  for size, (width, depth) in SIZES.items():
    vanilla, simplified = 4.5 * width**2 + 6.5 * width, 2.5 * width**2 + 4.5 * width + 2
    for kind, each in (("vanilla", vanilla), ("simplified", simplified)):
      outside = COUNTS[f"{kind}_{size}"] - depth * each
      assert outside == width**2 + 127 * width + 10, (kind, size)


@pytest.mark.parametrize("norms", ["two", "shared", "mlp"])
def test_other_readings_of_vanilla_have_the_same_count(norms):
  reading = "" if norms == "two" else f"model.block.norms={norms},token_mixer.value_bias=True"
  config = get_config(",".join(filter(None, ("vanilla_w96_d8", reading))))
  assert count(config).total == COUNTS["vanilla_w96_d8"]
  _, params = shapes_of(small("vanilla_w96_d8", reading))
  mixer = params["block_0"]["token_mixer"]
  biases = {name for name, module in mixer.items() if "bias" in module}
  assert biases == (set(mixer) if reading else {"query", "key"})


def small(row, overrides=""):
  """Returns a row so small that it runs in seconds."""
  sizes = "model.width=16,model.depth=3,model.mlp_dim=16,model.head_hidden=16"
  arg = f"{row},{replace(sizes, *filter(None, (overrides,)))}"
  config = get_config(arg)
  with config.unlocked():
    if "value_dim" in config.model.token_mixer:
      heads = config.model.num_heads
      config.model.token_mixer.update(value_dim=16 // heads, head_dim=4 // heads)
  return config


IMAGES = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)


def init(model):
  return initialize(model, jax.random.key(0), IMAGES)["params"]


def shapes_of(config):
  model = model_from_config(config.model)
  return model, jax.eval_shape(lambda: init(model))


def test_rows_are_named_after_their_starts():
  for start in ("equal", "identity", "inverse", "dynamic", "inverse_dynamic"):
    assert get_config(f"simplified_w128_d8_{start}").model.token_mixer.start == start


def test_the_start_is_equal_by_default():
  config = get_config("simplified_w128_d12")
  assert config.model.token_mixer.start == "equal"
  assert (
    get_config("simplified_w128_d8").to_dict() == get_config("simplified_w128_d8_equal").to_dict()
  )


def test_the_row_with_skips_has_the_epochs_of_skipless():
  vanilla, short = get_config("vanilla_w128_d8"), get_config("with_skips_w128_d8")
  assert short.duration == get_config("skipless_w128_d8").duration == "20 epochs"
  assert vanilla.to_dict() == short.to_dict() | {"duration": vanilla.duration}


def test_the_parallel_row_differs_in_the_block_alone():
  """In the parallel row, attention and MLP read tokens of one normalization; the maps are equal."""
  vanilla, parallel = (get_config(f"{kind}_w128_d8").model for kind in ("vanilla", "parallel"))
  mixer = parallel.token_mixer.to_dict() | {"value_bias": False}
  other = {"block": vanilla.block.to_dict(), "token_mixer": mixer}
  assert vanilla.to_dict() == parallel.to_dict() | other


# One row of each block and mixer.
STEPPED = ["vanilla_w96_d8", "simplified_w96_d8"]
STEPPED += [f"{kind}_w128_d8" for kind in ("skipless", "parallel", "sas_p")]


@pytest.mark.slow  # compiles a network for each row
@pytest.mark.parametrize("row", STEPPED)
def test_a_step_has_the_expected_gradients(row):
  # Without skips the tokens of a second layer are alike, and its queries hardly matter.
  depth = 1 if row.startswith("skipless") else 2
  config = resolve(small(row, f"model.depth={depth}"), info_of("cifar10", 10, (32, 32), 3))
  with config.unlocked():
    config.data.image_size = config.data.decode_size = 16
  zeros = {".*token_mixer/key/bias": "softmax sees no shift of a query's logits"}
  check_step(config, zeros, whole=row == "simplified_w96_d8")


def test_rows_decay_the_parameters_of_their_sources():
  assert get_config("simplified_w96_d8").weight_decay_mask == "all"
  assert get_config("sas_p_w128_d8").weight_decay_mask == "matrices"


def test_a_row_takes_another_data_set_and_overrides():
  config = get_config("simplified_w96_d8,dataset=imagenette/160px-v2,token_mixer=performer,seed=3")
  assert config.model.token_mixer.to_dict() == {"name": "performer"}
  assert config.data.default_image_size == 32 and config.data.image_size is None
  assert "num_classes" not in config.model
  assert "python train.py --config configs/simplified_cifar10.py" in simplified_cifar10.__doc__
