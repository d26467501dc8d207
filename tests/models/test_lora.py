"""Adapters of low rank: their product with a kernel, and the parameters that are trained."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.golden import HEADS, close, inward, load, outward
from vitx.attention.softmax import SoftmaxAttention
from vitx.checkpoints.tree import name_leaves
from vitx.config.errors import ConfigError
from vitx.config.fields import LoraSettings
from vitx.models import lora
from vitx.ops.layout import TokenLayout

ADAPTED = ("query", "value", "out")


def to_heads(factors):
  """Returns peft's A (rank, in) and B (out, rank) as `lora_a` and `lora_b`, by module."""
  pairs = {}
  for name in ADAPTED:
    a, b = factors[f"{name}.lora_A"].T, factors[f"{name}.lora_B"].T
    a, b = (a.reshape(HEADS, -1, len(b)), b) if name == "out" else (a, b.reshape(len(b), HEADS, -1))
    pairs[name] = {"lora_a": a, "lora_b": b}
  return pairs


def test_outputs_and_gradients_equal_those_of_peft():
  g = load("lora")
  base = {
    name: (outward if name == "out" else inward)(g[f"{name}.weight"], g[f"{name}.bias"])
    for name in ("query", "key", "value", "out")
  }
  constants = lora.make_constants(LoraSettings(rank=3, alpha=6.0, names=ADAPTED), base)
  module, layout = SoftmaxAttention(HEADS), TokenLayout((7,))

  @jax.jit
  def run(trained):
    params = lora.merge(trained, constants)
    out = module.apply({"params": params}, g["x"], layout, train=False)
    return jnp.sum(out * g["loss"]), out

  trained = to_heads(g)
  grads, out = jax.grad(run, has_aux=True)(trained)
  close(out, g["out"])
  expected = to_heads({name.removeprefix("grad."): x for name, x in g.items() if "grad" in name})
  jax.tree.map(lambda x, y: close(np.asarray(x), y), grads, expected)


class Small(nn.Module):
  """A convolution and a projection to heads, beside a hidden layer of the head."""

  @nn.compact
  def __call__(self, x):
    x = nn.Conv(4, (3, 3), name="stem")(x)
    x = nn.DenseGeneral((2, 3), name="query")(x)
    x = nn.DenseGeneral(5, axis=(-2, -1), name="out")(x)
    return nn.Dense(2, name="head")(nn.Dense(4, name="head_hidden")(x))


def adapt(*patterns, excepted=()):
  """Returns the trained parameters of `Small`, and all of its parameters."""
  variables = jax.jit(Small().init)(jax.random.key(0), np.zeros((1, 4, 4, 3)))
  settings = LoraSettings(rank=2, alpha=6.0, names=patterns)
  return lora.adapt(variables, settings, excepted, jax.random.key(1)), variables


def test_adapters_follow_the_axes_of_their_kernels_and_change_nothing_at_first():
  adapted, variables = adapt("stem", "query", "o.t", excepted=("params/head_hidden/.*",))
  trained = adapted["params"]
  assert {name: x.shape for name, x in name_leaves(trained).items() if "lora" in name} == {
    **{"stem/lora_a": (3, 3, 3, 2), "stem/lora_b": (2, 4)},
    **{"query/lora_a": (4, 2), "query/lora_b": (2, 2, 3)},
    **{"out/lora_a": (2, 3, 2), "out/lora_b": (2, 5)},
  }
  assert trained.keys() == {"stem", "query", "out", "head", "head_hidden"}
  for name, inputs in (("stem", 27), ("query", 4), ("out", 6)):
    largest = np.abs(trained[name]["lora_a"]).max() * np.sqrt(inputs)
    assert 0.5 < largest <= 1 and not np.any(trained[name]["lora_b"])
  constants = lora.make_constants(LoraSettings(rank=2, alpha=6.0), variables["params"])
  jax.tree.map(np.testing.assert_array_equal, lora.merge(trained, constants), variables["params"])
  trained["out"]["lora_b"] = np.ones((2, 5))
  merged = lora.merge(trained, constants)["out"]["kernel"] - variables["params"]["out"]["kernel"]
  product = 3 * np.sum(trained["out"]["lora_a"], -1)[..., None] * np.ones(5)
  np.testing.assert_allclose(merged, product, rtol=1e-5, atol=1e-6)


def test_a_pattern_that_names_no_kernel_of_the_base_is_refused():
  for pattern in ("key", "head", "uery"):
    with pytest.raises(
      ConfigError, match=rf"names='{pattern}' names no kernel.* are head_hidden, out, query, stem"
    ):
      adapt("query", pattern)
