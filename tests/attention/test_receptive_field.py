"""A query's gradient reaches exactly the tokens that it may see, in both implementations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawn import draw_variables
from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.ops import TokenLayout, dense_mask

LAYOUT = TokenLayout((4, 5), prefix=1)
HEADS = 2
# One mixer of each kind of attention, and fields with gaps in the matrix of 21 tokens.
FIELDS = {
  "bigbird": {"block": 3, "random": 1, "variant": "R+W"},
  "strided": {},
  "longformer": {"window": 2, "dilation": (1, 2)},
  "axial": {},
  "shifted_window": {"size": 2, "relative_bias": "window"},
}


@pytest.mark.parametrize("name", all_but("bigbird", of=FIELDS))
def test_a_gradient_reaches_exactly_the_edges(name):
  module = MIXERS[name](HEADS, layer=1, depth=2, tile=8, **FIELDS[name])
  index = np.arange(LAYOUT.length)
  edges = dense_mask(module.full_pattern(LAYOUT), LAYOUT, HEADS).any(axis=0)
  assert not edges.all()
  x = np.random.default_rng(0).normal(size=(1, LAYOUT.length, 8)).astype(np.float32)
  variables = draw_variables(module.init, x, layout=LAYOUT, train=False)

  def reach(query, x):
    """Returns the gradient of one query's output by each token, in both implementations."""

    def out(x, implementation):
      mixer = module.clone(implementation=implementation)
      return jnp.sum(jnp.sin(mixer.apply(variables, x, LAYOUT, train=False)[0, query]))

    grads = [jax.grad(out)(x, name) for name in ("masked", "kernelized")]
    return jnp.stack(grads)[:, 0]  # (2, N, C)

  run = jax.jit(reach, compiler_options={"xla_backend_optimization_level": 0})
  for query in index:
    seen = np.any(np.asarray(run(query, x)) != 0, axis=-1)
    others = index != query  # the query itself moves its own logits
    for implementation in seen:
      np.testing.assert_array_equal(implementation[others], edges[query, others], str(query))
      assert implementation[query] >= edges[query, query]
      assert implementation[query] <= edges[query].any()
