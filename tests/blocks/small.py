"""Sizes, tokens and parameters of one small block."""

from functools import partial

import jax
import numpy as np

from vitx.ops.layout import TokenLayout

B, N, C, H, M = 2, 6, 16, 4, 24
LAYOUT = TokenLayout((N,))
TOKENS = np.random.default_rng(1).normal(1, 2, (B, N, C)).astype(np.float32)


def draw(block):
  """Returns random parameters of a block that is called with TOKENS."""
  shapes = jax.eval_shape(lambda: block.init(jax.random.key(0), TOKENS, LAYOUT, train=False))
  random = np.random.default_rng(0)

  def leaf(path, x):
    noise = random.normal(0, 0.3, x.shape).astype(x.dtype)
    return np.float32(path[-1].key == "scale") + noise

  return jax.tree_util.tree_map_with_path(leaf, shapes["params"])


@partial(jax.jit, static_argnums=0)
def run(block, params, x=TOKENS):
  return block.apply({"params": params}, x, LAYOUT, train=False)


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
