"""Pre-norm blocks with fewer normalizations, and blocks without skips."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.blocks.small import TOKENS, H, M, close, draw, run
from vitx.attention.softmax import SoftmaxAttention
from vitx.blocks.pre_norm import PreNormBlock
from vitx.blocks.registry import BLOCKS
from vitx.blocks.vanilla import VanillaBlock
from vitx.config.errors import ConfigError
from vitx.layers.mlp import MLP


def make(kind, **fields):
  block = kind(token_mixer=partial(SoftmaxAttention, H), mlp_dim=M, **fields)
  return block, draw(block)


@partial(jax.jit, static_argnums=0)
def slope(block, params):
  return jax.grad(lambda x: jnp.sum(run(block, params, x) ** 2 + run(block, params, x)))(TOKENS)


def norms(params):
  return {name for name in params if "norm" in name}


@pytest.mark.parametrize(
  ("fields", "names"), [({"norms": "two"}, {"mixer_norm", "mlp_norm"}), ({}, {"norm"})]
)
def test_a_vanilla_block_is_the_pre_norm_block_also_with_a_shared_norm(fields, names):
  block, params = make(VanillaBlock, **fields)
  assert norms(params) == names
  shared = dict.fromkeys(("mixer_norm", "mlp_norm"), params.get("norm"))
  close(run(block, params), run(make(PreNormBlock)[0], shared | params))


def test_a_norm_of_the_mlp_does_not_normalize_the_mixers_tokens():
  block, params = make(VanillaBlock, norms="mlp")
  assert norms(params) == {"norm"}

  @jax.jit
  def definition(params):
    x = TOKENS + run(SoftmaxAttention(H), params["token_mixer"])
    y = nn.LayerNorm().apply({"params": params["norm"]}, x)
    return x + MLP(M).apply({"params": params["mlp"]}, y, False)

  close(run(block, params), definition(params))


@pytest.mark.parametrize("norms", ["shared", "two", "mlp"])
def test_a_skipless_block_passes_nothing_around_its_branches(norms):
  block, params = make(VanillaBlock, norms=norms, skips=False)
  for module, last in (("token_mixer", "out"), ("mlp", "down")):
    zero = jax.tree.map(np.zeros_like, params[module][last])
    cut = {**params, module: {**params[module], last: zero}}
    np.testing.assert_array_equal(slope(block, cut), 0)
  assert np.abs(slope(block, params)).max() > 1e-3


@pytest.mark.parametrize("kind", ["sas", "sas_p", "simplified", "vanilla"])
def test_stochastic_depth_without_skips_is_refused(kind):
  is_vanilla = kind == "vanilla"
  setting = "block.skips=False" if is_vanilla else f"block='{kind}'"
  with pytest.raises(ConfigError, match=rf"stochastic_depth=0.1 .*model.{setting} has no skip"):
    make(BLOCKS[kind], stochastic_depth=0.1, **({"skips": False} if is_vanilla else {}))
