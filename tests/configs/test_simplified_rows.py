"""The rows of the blog post on simplified blocks: exact counts, starts, and differences."""

import jax
import numpy as np
import pytest

from configs.simplified_cifar10 import PUBLISHED, ROWS, get_config
from tests.configs.test_vix_rows import check_step, count, count_by_layers, info_of
from tests.runs import replace
from tests.slow import all_but
from vitx.config.settings import change
from vitx.models import initialize, model_from_config
from vitx.tasks.settle import resolve

# Counts of all parameters, as the blog prints them.
COUNTS = {
  row: figures["parameters"] for row, figures in PUBLISHED.items() if "parameters" in figures
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
  config = change(config, {"data.image_size": 16, "data.decode_size": 16})
  zeros = {".*token_mixer/key/bias": "softmax sees no shift of a query's logits"}
  check_step(config, zeros)


def test_rows_decay_the_parameters_of_their_sources():
  assert get_config("simplified_w96_d8").weight_decay_mask == "all"
  assert get_config("sas_p_w128_d8").weight_decay_mask == "matrices"
