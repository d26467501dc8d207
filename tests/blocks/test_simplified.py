"""Simplified blocks: SAS, SAS-P and the block without gains."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.blocks.small import LAYOUT, TOKENS, H, M, close, run
from vitx.attention.shaped import ShapedAttention
from vitx.blocks.registry import BLOCKS
from vitx.layers.mlp import MLP
from vitx.training.optim.optimizers import DECAY_MASKS

# The mixer is (α I + β A) x, with one A for all channels.
ONE_MAP = {"one_map": True, "per_head": False, "center": False, "start": "equal"}


def build(kind, mixer=None, layer=0, mlp_dim=M, **fields):
  mixer = partial(ShapedAttention, H, layer=layer, **({"values": "first"} | (mixer or {})))
  return BLOCKS[kind](token_mixer=mixer, mlp_dim=mlp_dim, **fields)


@partial(jax.jit, static_argnums=0)
def start(block):
  return block.init(jax.random.key(0), TOKENS, LAYOUT, train=False)["params"]


def make(*args, **fields):
  block = build(*args, **fields)
  return block, start(block)


def shapes(*args, **fields):
  return jax.eval_shape(partial(start, build(*args, **fields)))


@jax.jit
def mlp(params, x):
  return MLP(M).apply({"params": params["mlp"]}, x, False)


def normed(x):
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("layer", [0, 3])
def test_sas_p_starts_as_the_identity_beside_a_small_mlp(layer):
  block, params = make("sas_p", layer=layer)
  y = normed(TOKENS)
  close(run(block, params), y + 0.1 * mlp(params, y))


@pytest.mark.parametrize("layer", [0, 3])
def test_sas_starts_as_the_identity_with_the_skip_of_its_mlp(layer):
  block, params = make("sas", layer=layer)
  y = normed(TOKENS)
  added = 0.1 * mlp(params, normed(y))
  close(run(block, params), y + added)
  close(run(block, {**params, "mixer_gain": jnp.array(3.0)}), 3 * y + added)


def test_zero_gains_let_no_signal_through():
  for kind, names in (("sas_p", {"mixer_gain", "mlp_gain"}), ("sas", {"skip_gain", "mlp_gain"})):
    block, params = make(kind)
    assert {name for name in params if "gain" in name} == names | {"mixer_gain"}
    np.testing.assert_array_equal(run(block, params | dict.fromkeys(names, jnp.array(0.0))), 0)


def test_only_the_first_layer_has_a_value_projection():
  first, later = (shapes("sas_p", layer=layer)["token_mixer"] for layer in (0, 1))
  assert set(first) - set(later) == {"value", "value_skip_gain", "value_residual_gain"}
  assert set(later) == {"query", "key", "alpha", "beta", "gamma"}
  assert set(first["value"]) == {"kernel"}


def test_gains_and_scalars_have_no_weight_decay():
  decays = DECAY_MASKS["matrices"](shapes("sas"))
  free = {name: value for name, value in decays.items() if name.endswith("gain")}
  free |= {n: x for n, x in decays["token_mixer"].items() if not isinstance(x, dict)}
  assert len(free) == 3 + 3 + 2 and not any(free.values())
  assert decays["mlp"]["up"]["kernel"]


def test_the_block_without_gains_adds_attention_and_the_mlp():
  dropped = ONE_MAP | {"values": "dropped"}
  block, params = make("simplified", dropped)
  y = normed(TOKENS)
  mixer = ShapedAttention(H, **ONE_MAP)
  mixed = run(mixer, params["token_mixer"], y)
  close(run(block, params), mixed + mlp(params, y))
  close(run(build("simplified", dropped, serial=True), params), mlp(params, mixed))
