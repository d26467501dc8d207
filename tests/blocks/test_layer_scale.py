"""LayerScale: a learned factor for each channel of each branch."""

from functools import partial

import jax
import numpy as np
import pytest

from tests.blocks.small import LAYOUT, TOKENS, C, H, M, close, run
from tests.slow import all_but
from vitx.attention.softmax import SoftmaxAttention
from vitx.blocks.pre_norm import NormalizedStreamBlock, PreNormBlock


def make(kind=PreNormBlock, **fields):
  block = kind(token_mixer=partial(SoftmaxAttention, H), mlp_dim=M, **fields)
  init = jax.jit(partial(block.init, train=False), static_argnums=2)
  return block, init(jax.random.key(0), TOKENS, LAYOUT)["params"]


def test_factors_start_equal_and_zeros_change_no_token():
  _, params = make(layer_scale=1e-5)
  for name in ("mixer_scale", "mlp_scale"):
    np.testing.assert_array_equal(params[name], np.full(C, 1e-5, np.float32))
  np.testing.assert_array_equal(run(*make(layer_scale=0.0)), TOKENS)


KINDS = (PreNormBlock, NormalizedStreamBlock)


@pytest.mark.parametrize("kind", all_but(NormalizedStreamBlock, of=KINDS))
def test_factors_multiply_the_channels_that_a_branch_adds(kind):
  """The factors have the effect of scaling the last linear map of each branch."""
  random = np.random.default_rng(0)
  factors = {name: random.normal(size=C).astype(np.float32) for name in "ab"}
  block, params = make(kind, layer_scale=1.0)
  scaled = run(block, params | {"mixer_scale": factors["a"], "mlp_scale": factors["b"]})
  plain, other = make(kind)
  for part, last, name in (("token_mixer", "out", "a"), ("mlp", "down", "b")):
    linear = {key: x * factors[name] for key, x in params[part][last].items()}
    other[part] = params[part] | {last: linear}
  close(scaled, run(plain, other))
