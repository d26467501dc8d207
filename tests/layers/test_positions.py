"""Positions and pooling against their definitions."""

import jax
import numpy as np
import pytest

import vitx
from vitx.blocks.pooling import POOLS
from vitx.checkpoints.tree import name_leaves
from vitx.layers.mlp import gelu
from vitx.layers.posemb import POSITIONS, sine_cosine_table
from vitx.models import initialize
from vitx.ops.layout import TokenLayout

LAYOUT = TokenLayout((3, 4), prefix=1)
TOKENS = np.random.default_rng(0).normal(size=(2, 13, 8)).astype(np.float32)


def test_products_of_sines_and_cosines_depend_on_differences():
  """The product of two rows of the table depends only on the difference of their positions."""
  table = sine_cosine_table(LAYOUT, 8)
  np.testing.assert_array_equal(table[0], 0)
  grid = table[1:].reshape(3, 4, 8)
  a = np.einsum("c,c", grid[0, 0], grid[1, 2])
  np.testing.assert_allclose(a, np.einsum("c,c", grid[1, 1], grid[2, 3]), rtol=1e-5)
  assert abs(a - np.einsum("c,c", grid[0, 0], grid[2, 2])) > 1e-2
  np.testing.assert_allclose(np.linalg.norm(table[1:], axis=1), 2, rtol=1e-6)


@pytest.mark.parametrize("prefix", [True, False])
def test_the_class_token_has_a_position_or_none(prefix):
  module = POSITIONS["learned"](stddev=1.0, prefix=prefix)
  init = jax.jit(lambda key: module.init_with_output(key, TOKENS, LAYOUT))
  out, variables = jax.device_get(init(jax.random.key(0)))
  assert variables["params"]["table"].shape == (1, 13 if prefix else 12, 8)
  assert np.array_equal(out[:, 0], TOKENS[:, 0]) != prefix
  assert np.all(np.any(out[:, 1:] != TOKENS[:, 1:], axis=2))


PIXELS = {"name": "linear", "patch": 1}


def model(**fields):
  config = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16, "stem": PIXELS} | fields
  return vitx.create_model("vit", num_classes=3, initialization="pytorch", **config)


@pytest.mark.slow
def test_rope_sets_the_fields_of_the_mixers():
  images = np.random.default_rng(1).normal(size=(2, 4, 4, 3)).astype(np.float32)
  turned = model(posemb={"name": "rope", "kind": "axial", "base": 100.0})
  fields = {"name": "softmax", "rotary": "axial", "rotary_base": 100.0}
  same = model(posemb="none", token_mixer=fields)

  @jax.jit
  def run(key):
    variables = initialize(turned, key, images)
    return [network.apply(variables, images) for network in (turned, same, model(posemb="none"))]

  out, expected, without = jax.device_get(run(jax.random.key(0)))
  np.testing.assert_array_equal(out, expected)
  assert np.abs(out - without).max() > 1e-4


def test_attention_pooling_is_a_block_with_one_query():
  """The pool leaves out prefix tokens; equal values give that value, whatever the attention is."""
  assert POOLS["map"]().resolve_sizes(768) == (12, 3072)
  pool = POOLS["map"](num_heads=2, mlp_dim=4)
  variables = jax.jit(lambda key: pool.init(key, TOKENS, LAYOUT))(jax.random.key(0))
  shapes = {name: x.shape for name, x in name_leaves(variables["params"]).items()}
  assert shapes["probe"] == (1, 1, 8) and shapes["mlp/up/kernel"] == (8, 4)
  assert shapes["attention/query/kernel"] == (8, 2, 4)
  apply = jax.jit(lambda x: pool.apply(variables, x, LAYOUT))
  other = np.concatenate([TOKENS[:, :1] + 1, np.flip(TOKENS[:, 1:], 1)], axis=1)
  np.testing.assert_allclose(apply(TOKENS), apply(other), atol=1e-5)
  equal = np.broadcast_to(TOKENS[:, 1:2], TOKENS.shape)
  p = jax.tree.map(np.asarray, variables["params"])
  y = np.einsum("bc,chd->bhd", equal[:, 0], p["attention"]["value"]["kernel"])
  y = np.einsum("bhd,hdc->bc", y, p["attention"]["out"]["kernel"])
  z = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-6)
  z = np.asarray(jax.jit(gelu)(z @ p["mlp"]["up"]["kernel"]))
  np.testing.assert_allclose(apply(equal), y + z @ p["mlp"]["down"]["kernel"], atol=1e-5)


def test_pools_equal_their_definitions():
  first, mean, sequence = (POOLS[name]() for name in ("cls", "mean", "sequence"))
  np.testing.assert_array_equal(first.apply({}, TOKENS, LAYOUT), TOKENS[:, 0])
  np.testing.assert_allclose(mean.apply({}, TOKENS, LAYOUT), TOKENS[:, 1:].mean(1), atol=1e-6)
  score = {"kernel": np.zeros((8, 1), np.float32), "bias": np.ones(1, np.float32)}
  pool = jax.jit(lambda s: sequence.apply({"params": {"score": s}}, TOKENS, LAYOUT))
  np.testing.assert_allclose(pool(score), TOKENS[:, 1:].mean(1), atol=1e-6)
  # With steep scores the result is the token with the largest first channel.
  steep = pool(score | {"kernel": np.eye(8, 1, dtype=np.float32) * np.float32(1e4)})
  winners = TOKENS[:, 1:][np.arange(2), TOKENS[:, 1:, 0].argmax(1)]
  np.testing.assert_allclose(steep, winners, atol=1e-5)
