"""A mixer's FLOPs and memory grow with the number of tokens N as its `properties` state.

The programs are compiled, never run.
"""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.analysis import cost
from vitx.attention import MIXERS
from vitx.benchmark.mixers import make_grid
from vitx.ops.kernels import tiling

SIZES = (2048, 8192)
HEADS = 2
# The program of a pattern with drawn edges contains N x N bits, which the compiler copies.
DRAWN = {"erdos_renyi": (256, 1024)}
# Wide tokens would hide the growth of attention behind the projections, which are linear. Narrow
# tokens would hide it behind constant costs: Nystromformer's inverse and the plans of windows.
NARROW = 8
WIDER = {"nystromformer": 128} | dict.fromkeys(
  ("longformer", "neighborhood", "shifted_window", "watts_strogatz"), 32
)
SLACK = 0.15


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
  """Makes the arrays of a loop's step small, since a constant megabyte would hide the growth."""
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 16)


def costs(name, n):
  """Returns the FLOPs and the temporary bytes of a mixer's forward and backward pass.

  The backward pass computes the gradients by the input of N tokens and by the parameters.
  """
  cls = MIXERS[name]
  fields = {"implementation": "kernelized"} if cls.properties.implementations else {}
  module, layout = cls(num_heads=HEADS, **fields), make_grid(n)
  x = jax.ShapeDtypeStruct((1, n, WIDER.get(name, NARROW)), jnp.float32)
  init = lambda key, x: module.init(key, x, layout, train=False)  # noqa: E731
  state = dict(jax.eval_shape(init, jax.random.key(0), x))
  params = state.pop("params", {})

  def forward_and_backward(params, x, weight, state):
    apply = lambda p, x: module.apply({"params": p, **state}, x, layout, train=False)  # noqa: E731
    out, pull = jax.vjp(apply, params, x)
    return out, pull(weight)

  args = (params, x, x, state)
  traced = jax.jit(forward_and_backward).trace(*args)
  count = cost.flops(jax.extend.core.jaxpr_as_fun(traced.jaxpr), *jax.tree.leaves(args))
  return count, traced.lower().compile().memory_analysis().temp_size_in_bytes


# Mixers along a pattern share BigBird's program; the neighborhood stands for those on a grid.
LIKE_BIGBIRD = {"axial", "fixed", "longformer", "shifted_window", "strided", "watts_strogatz"}


@pytest.mark.parametrize("name", all_but("softmax", "fnet", of=sorted({*MIXERS} - LIKE_BIGBIRD)))
def test_costs_grow_as_the_properties_state(name):
  sizes, properties = DRAWN.get(name, SIZES), MIXERS[name].properties
  smaller, larger = (np.array(costs(name, n)) for n in sizes)
  powers = np.log(larger / smaller) / np.log(sizes[1] / sizes[0])
  stated = properties.flops_exponent, 1.0  # memory is linear
  assert np.all(np.abs(powers - stated) <= SLACK), f"costs of {name} grow with N to the {powers}"
