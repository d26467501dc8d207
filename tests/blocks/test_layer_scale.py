"""LayerScale: a learned factor for each channel of each branch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.blocks.small import LAYOUT, TOKENS, C, H, M, close, run
from vitx.attention.softmax import SoftmaxAttention
from vitx.blocks.pre_norm import NormalizedStreamBlock, PreNormBlock


def make_block(kind=PreNormBlock, dtype=jnp.float32, **fields):
  mixer = partial(SoftmaxAttention, H, dtype=dtype)
  return kind(token_mixer=mixer, mlp_dim=M, dtype=dtype, **fields)


def make(kind=PreNormBlock, **fields):
  block = make_block(kind, **fields)
  init = jax.jit(partial(block.init, train=False), static_argnums=2)
  return block, init(jax.random.key(0), TOKENS, LAYOUT)["params"]


def test_without_it_there_are_no_factors():
  params = jax.eval_shape(lambda: make()[1])
  assert not {"mixer_scale", "mlp_scale"} & set(params)


def test_factors_begin_alike_and_zeros_leave_the_stream():
  _, params = make(layer_scale=1e-5)
  for name in ("mixer_scale", "mlp_scale"):
    np.testing.assert_array_equal(params[name], np.full(C, 1e-5, np.float32))
  np.testing.assert_array_equal(run(*make(layer_scale=0.0)), TOKENS)


@pytest.mark.parametrize("kind", [PreNormBlock, NormalizedStreamBlock])
def test_factors_multiply_the_channels_that_a_branch_adds(kind):
  """The factors have the effect of scaling the last linear map of each branch."""
  random = np.random.default_rng(0)
  factors = {name: random.normal(size=C).astype(np.float32) for name in "ab"}
  block, params = make(kind, layer_scale=1.0)
  found = run(block, params | {"mixer_scale": factors["a"], "mlp_scale": factors["b"]})
  plain, other = make(kind)
  for part, last, name in (("token_mixer", "out", "a"), ("mlp", "down", "b")):
    linear = {key: x * factors[name] for key, x in params[part][last].items()}
    other[part] = params[part] | {last: linear}
  close(found, run(plain, other))


def test_it_computes_in_the_compute_type():
  _, params = make(layer_scale=0.1)
  block = make_block(layer_scale=0.1, dtype=jnp.bfloat16)
  assert params["mixer_scale"].dtype == jnp.float32
  with jax.numpy_dtype_promotion("standard"):  # flax's normalization promotes implicitly
    found = run(block, params, jnp.asarray(TOKENS, jnp.bfloat16))
  assert found.dtype == jnp.bfloat16
  wanted = run(make_block(layer_scale=0.1), params)
  np.testing.assert_allclose(np.asarray(found, np.float32), wanted, atol=0.05)
