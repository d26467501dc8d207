"""What a mixer costs grows with N as its `properties` say; counted and compiled, never run."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.slow import all_but
from vitx.analysis import cost
from vitx.attention.registry import MIXERS
from vitx.benchmark.mixers import make_grid
from vitx.ops.kernels import tiling

SIZES = (2048, 8192)
HEADS = 2
# What draws every edge has them all, N x N bits, in its program, which the compiler copies around.
DRAWN = {"erdos_renyi": (1024, 4096)}
WIDE, NARROW = 128, 8
SLACK = 0.15


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
  """What a step of a loop holds does not grow with N; the usual megabyte would hide what does."""
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", 1 << 16)


@functools.cache
def step(name, n, width):
  """Forward and backward by input and parameters, and the shapes it takes."""
  cls = MIXERS[name]
  fields = {"implementation": "kernelized"} if cls.properties.implementations else {}
  module, layout = cls(num_heads=HEADS, **fields), make_grid(n)
  x = jax.ShapeDtypeStruct((1, n, width), jnp.float32)
  init = lambda key, x: module.init(key, x, layout, train=False)  # noqa: E731
  state = dict(jax.eval_shape(init, jax.random.key(0), x))
  params = state.pop("params", {})

  def forward_and_backward(params, x, weight, state):
    apply = lambda p, x: module.apply({"params": p, **state}, x, layout, train=False)  # noqa: E731
    out, pull = jax.vjp(apply, params, x)
    return out, pull(weight)

  return forward_and_backward, (params, x, x, state)


@functools.cache
def flops(name, n, width):
  function, args = step(name, n, width)
  return cost.flops(function, *args)


@functools.cache
def temporaries(name, n, width):
  function, args = step(name, n, width)
  return jax.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes


def exponent(count, name, sizes, width):
  """The slope of log cost over log N."""
  costs = [count(name, n, width) for n in sizes]
  return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


QUICK = ("softmax", "performer", "bigbird", "strided", "fnet", "mlp_mixing")


@pytest.mark.parametrize("name", all_but(*QUICK, of=MIXERS))
def test_flops(name):
  # What does not grow like the attention hides it: in wide tokens the projections, which are
  # linear, in narrow ones what is constant. So both stay below the statement, and one reaches it.
  found = max(exponent(flops, name, SIZES, width) for width in (WIDE, NARROW))
  stated = MIXERS[name].properties.flops_exponent
  assert stated - SLACK <= found <= stated + SLACK, f"FLOPs of {name} grow with N^{found:.2f}"


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXERS)
def test_memory(name):
  found = exponent(temporaries, name, DRAWN.get(name, SIZES), WIDE)
  stated = MIXERS[name].properties.memory_exponent
  assert stated - SLACK <= found <= stated + SLACK, f"temporaries of {name} grow with N^{found:.2f}"


def test_every_mixer_states_its_exponents():
  for name, mixer in MIXERS.items():
    properties = mixer.properties
    assert 1 <= properties.memory_exponent <= properties.flops_exponent <= 2, name
