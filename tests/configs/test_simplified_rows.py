"""The rows of the blog post on simplified blocks: exact, and what they say they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import simplified_cifar10
from configs.simplified_cifar10 import OWN, PUBLISHED, ROWS, SIZES, STARTS, get_config
from tests.configs.test_vix_rows import (
  Trial,
  check_gradients,
  check_implementations,
  check_restore,
  info_of,
)
from tests.runs import replace
from tests.slow import all_but
from vitx.models import count, initialize, model_from_config
from vitx.training.setup import resolve

# Every parameter included, as the blog prints them.
COUNTS = {
  "vanilla_w96_d8": 358_186,
  "simplified_w96_d8": 209_210,
  "vanilla_w128_d8": 629_130,
  "simplified_w128_d8": 364_954,
  "vanilla_w128_d12": 927_370,
  "simplified_w128_d12": 531_106,
}


@pytest.mark.parametrize("row", all_but(*list(ROWS)[::3], of=ROWS))
def test_parameters(row):
  expected = COUNTS | {f"simplified_w128_d8_{start}": 364_954 for start in STARTS}
  expected |= {
    "skipless_w128_d8": 629_130,
    "with_skips_w128_d8": 629_130,
    "parallel_w128_d8": 629_130,
    "multi_head_w128_d8": 563_146,
    "sas_p_w128_d8": 579_580,
    "mimetic_vanilla_w128_d8": 629_130 - 64 * 128,  # positions are not learned
    "mimetic_simplified_w128_d8": 364_954,
  }
  assert count(get_config(row)).total == expected[row]


def test_published_figures_belong_to_rows():
  assert set(PUBLISHED) == set(ROWS) - {f"{kind}_w128_d8" for kind in OWN}
  assert {
    row: figures["parameters"] for row, figures in PUBLISHED.items() if row in COUNTS
  } == COUNTS
  for row, figures in PUBLISHED.items():
    accuracy = list(figures["train_top1"].values())
    assert all(0 < x < 100 for x in accuracy)
    assert len(accuracy) == (4 if row.startswith(("skipless", "with_skips")) else 7)
    assert row.startswith("skipless") or accuracy == sorted(accuracy)


@pytest.mark.parametrize("size", all_but(*list(SIZES)[:1], of=SIZES))
def test_a_layer_costs_what_the_blocks_formulas_say(size):
  width, depth = SIZES[size]
  layer = {"vanilla": 4.5 * width**2 + 6.5 * width, "simplified": 2.5 * width**2 + 4.5 * width + 2}
  for kind, each in layer.items():
    outside = count(get_config(f"{kind}_{size}")).total - depth * each
    assert outside == width**2 + 127 * width + 10


@pytest.mark.slow
@pytest.mark.parametrize(
  "reading", ["model.block.norms=mlp", "model.block.norms=two,token_mixer.value_bias=False"]
)
def test_other_readings_of_vanilla_have_the_same_count(reading):
  config = get_config(f"vanilla_w96_d8,{reading}")
  assert count(config).total == COUNTS["vanilla_w96_d8"]
  _, params = params_of(small("vanilla_w96_d8", reading))
  mixer = params["block_0"]["token_mixer"]
  biases = {name for name, module in mixer.items() if "bias" in module}
  assert biases == ({"query", "key"} if "value_bias" in reading else set(mixer))


def small(row, overrides=""):
  """A row at a size of seconds."""
  sizes = "model.width=16,model.depth=3,model.mlp_dim=16,model.head_hidden=16"
  arg = f"{row},{replace(sizes, *filter(None, (overrides,)))}"
  config = get_config(arg)
  with config.unlocked():
    if "value_dim" in config.model.token_mixer:
      config.model.token_mixer.update(value_dim=16, head_dim=4)
  return config


IMAGES = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))


def params_of(config):
  model = model_from_config(config.model)
  return model, initialize(model, jax.random.key(0), IMAGES)["params"]


@pytest.mark.parametrize(
  ("start", "alpha", "beta"),
  all_but(
    "equal",
    "inverse_dynamic",
    of=[
      ("equal", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
      ("identity", (1, 1, 1), (0, 0, 0)),
      ("inverse", (0, 0, 0), (1, 1, 1)),
      ("dynamic", (1, 1 / 2, 1 / 3), (0, 1 / 2, 2 / 3)),
      ("inverse_dynamic", (0, 1 / 2, 2 / 3), (1, 1 / 2, 1 / 3)),
    ],
  ),
)
def test_starts(start, alpha, beta):
  _, params = params_of(small(f"simplified_w128_d8_{start}"))
  for name, expected in (("alpha", alpha), ("beta", beta)):
    values = [params[f"block_{i}"]["token_mixer"][name] for i in range(3)]
    np.testing.assert_allclose(np.concatenate(values), expected, rtol=1e-6)


def test_simplified_starts_equal_where_the_row_does_not_say():
  config = get_config("simplified_w128_d12")
  assert config.model.token_mixer.start == "equal"
  assert (
    get_config("simplified_w128_d8").to_dict() == get_config("simplified_w128_d8_equal").to_dict()
  )


def test_what_differs_between_vanilla_and_skipless():
  (vanilla, params), (skipless, same) = (
    params_of(small(f"{kind}_w128_d8")) for kind in ("vanilla", "skipless")
  )
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, same)
  for block in (f"block_{i}" for i in range(3)):
    for module, last in (("token_mixer", "out"), ("mlp", "down")):
      params[block][module][last] = jax.tree.map(jnp.zeros_like, params[block][module][last])
  # With all branches cut, only skips bring anything to the last tokens.
  for model, something in ((vanilla, True), (skipless, False)):
    _, kept = model.apply({"params": params}, IMAGES, mutable="intermediates")
    assert bool(jnp.any(kept["intermediates"]["tokens"][-1])) == something


def test_with_skips_is_vanilla_over_the_epochs_of_skipless():
  vanilla, short = get_config("vanilla_w128_d8"), get_config("with_skips_w128_d8")
  assert short.duration == get_config("skipless_w128_d8").duration == "20 epochs"
  assert vanilla.to_dict() == short.to_dict() | {"duration": vanilla.duration}


def test_parallel_is_vanilla_side_by_side():
  """From the same normalized tokens: the MLP does not see what attention brings."""
  vanilla, parallel = get_config("vanilla_w128_d8"), get_config("parallel_w128_d8")
  assert vanilla.model.to_dict() == parallel.model.to_dict() | {
    "block": vanilla.model.block.to_dict()
  }


def trial(row):
  # Without skips the tokens of a second layer are alike, and its queries hardly matter.
  depth = 1 if row.startswith("skipless") else 2
  config = resolve(small(row, f"model.depth={depth}"), info_of("cifar10", 10, (32, 32), 3))
  with config.unlocked():
    config.data.image_size = config.data.decode_size = 16
  return Trial(config)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_one_step_of_every_row(row, tmp_path):
  attempt = trial(row)
  check_gradients(attempt, {".*token_mixer/key/bias": "softmax sees no shift of a query's logits"})
  check_implementations(attempt)
  check_restore(attempt, tmp_path)


def test_decay_touches_what_the_sources_let_it():
  assert get_config("simplified_w96_d8").weight_decay_mask == "all"
  assert get_config("sas_p_w128_d8").weight_decay_mask == "matrices"


def test_another_data_set_and_overrides():
  config = get_config("simplified_w96_d8,dataset=imagenette/160px-v2,token_mixer=performer,seed=3")
  assert config.model.token_mixer.to_dict() == {"name": "performer"}
  assert config.data.default_image_size == 32 and config.data.image_size is None
  assert "num_classes" not in config.model
  assert "python train.py --config configs/simplified_cifar10.py" in simplified_cifar10.__doc__
