"""Properties of single mixers: state, initial values, published parameter counts."""

import itertools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.attention.fnet import FNet
from vitx.attention.linformer import Linformer
from vitx.attention.mlp_mixing import MLPMixing
from vitx.attention.nystromformer import Nystromformer
from vitx.attention.performer import Performer
from vitx.attention.shaped import ShapedAttention
from vitx.ops.layout import TokenLayout

X = np.random.default_rng(0).normal(size=(2, 12, 8)).astype(np.float32)
LAYOUT = TokenLayout((3, 4))
QUICK = {"xla_backend_optimization_level": 0}


def init(module, x=X, layout=LAYOUT):
  run = jax.jit(lambda key: module.init(key, x, layout, train=False), compiler_options=QUICK)
  return dict(run(jax.random.key(1)))


def shapes(module, length, width):
  x = jax.ShapeDtypeStruct((1, length, width), jnp.float32)
  layout = TokenLayout((length,))
  return jax.eval_shape(lambda k, x: module.init(k, x, layout, train=False), jax.random.key(0), x)


def size(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
  ("module", "count"),
  [
    (Performer(4), 66_048),
    (Linformer(4, slots=64, share_kv=True, one_kv_head=True, use_bias=False), 36_992 + 65_600),
    (Linformer(4, slots=64, share_kv=True, use_bias=False), 49_280 + 65_600),
    (Nystromformer(4, use_bias=False), 65_796),
    (FNet(4), 0),
    (MLPMixing(4), 2 * (1025 * 1025 + 1025)),
    (ShapedAttention(4, one_map=True, per_head=False, center=False), 2 * (128 * 32 + 32) + 2),
  ],
)
def test_parameters_have_published_counts(module, count):
  variables = shapes(module, 1025, 128)
  assert size(variables.get("params", {})) == count


def test_training_redraws_the_features_of_a_performer():
  module = Performer(2, features=6, redraw=3)
  variables = init(module)
  assert variables["features"]["projection"].shape == (6, 4)
  params, state = variables.pop("params"), variables
  step = jax.jit(
    lambda s: module.apply({"params": params, **s}, X, LAYOUT, train=True, mutable=list(s))[1],
    compiler_options=QUICK,
  )
  seen = []
  for _ in range(7):
    state = step(state)
    seen.append(np.asarray(state["features"]["projection"]))
  np.testing.assert_array_equal(seen[0], variables["features"]["projection"])
  same = [np.array_equal(a, b) for a, b in itertools.pairwise(seen)]
  assert same == [True, True, False, True, True, False]
  # A run that is resumed from this state continues with equal draws.
  resumed = variables["features"] | {"calls": jnp.int32(6)}
  again = step({"features": resumed})["features"]["projection"]
  np.testing.assert_array_equal(again, seen[6])
  evaluate = jax.jit(
    lambda s: module.apply({"params": params, **s}, X, LAYOUT, train=False, mutable=list(s))[1],
    compiler_options=QUICK,
  )
  np.testing.assert_array_equal(evaluate(state)["features"]["projection"], seen[6])


@pytest.mark.slow  # compiles modules
def test_layers_of_a_performer_draw_different_features():
  class Two(nn.Module):
    @nn.compact
    def __call__(self, x):
      for layer in range(2):
        x = Performer(2, layer=layer, name=f"layer_{layer}")(x, LAYOUT, train=False)
      return x

  features = jax.jit(Two().init, compiler_options=QUICK)(jax.random.key(0), X)["features"]
  a, b = (features[f"layer_{layer}"]["projection"] for layer in range(2))
  assert not np.array_equal(a, b)


@pytest.mark.slow  # compiles modules
def test_the_published_stabilizer_lets_examples_touch():
  variables = init(Performer(2))
  for stabilizer, touched in (("example", False), ("batch", True)):
    module = Performer(2, stabilizer=stabilizer)
    apply = partial(module.apply, layout=LAYOUT, train=False)
    run = jax.jit(apply, compiler_options=QUICK)
    a, b = (run(variables, x)[0] for x in (X, X * np.array([[[1.0]], [[30.0]]], np.float32)))
    assert np.array_equal(a, b) != touched


STARTS = {
  ("ones", 0): (1, 1),
  ("equal", 3): (0.5, 0.5),
  ("identity", 1): (1, 0),
  ("inverse", 1): (0, 1),
  ("dynamic", 0): (1, 0),
  ("dynamic", 3): (0.25, 0.75),
  ("inverse_dynamic", 3): (0.75, 0.25),
}


def test_shaped_attention_starts_with_the_named_values():
  @jax.jit
  def make(key):
    modules = [ShapedAttention(2, start=start, layer=layer, depth=4) for start, layer in STARTS]
    return [module.init_with_output(key, X, LAYOUT, train=False) for module in modules]

  results = make(jax.random.key(1))
  for (out, variables), (where, expected) in zip(results, STARTS.items(), strict=True):
    for name, value in zip(("alpha", "beta", "gamma"), (*expected, expected[1]), strict=True):
      np.testing.assert_allclose(variables["params"][name], np.full(2, value), err_msg=str(where))
    # At the start A equals C, so that only the identity remains.
    np.testing.assert_allclose(out, expected[0] * X, atol=1e-6, err_msg=str(where))


def test_identity_projections_of_shaped_attention_start_as_the_identity():
  module = ShapedAttention(2, values="identity", output="identity", center=False)
  bare = ShapedAttention(2, center=False)

  def run(key):
    out, variables = module.init_with_output(key, X, LAYOUT, train=False)
    rest = {name: variables["params"][name] for name in ("query", "key", "alpha", "beta")}
    return out, bare.apply({"params": rest}, X, LAYOUT, train=False)

  np.testing.assert_allclose(*jax.jit(run, compiler_options=QUICK)(jax.random.key(1)), atol=1e-6)


@pytest.mark.slow  # compiles modules
def test_linformer_dropout_belongs_to_the_example():
  module = Linformer(2, slots=3, dropout=0.5)

  @partial(jax.jit, compiler_options=QUICK)
  def run(key):
    variables = module.init(key, X, LAYOUT, train=False)
    rngs = {"dropout": jax.random.key(4)}
    calls = ((X, True), (X[:1], True), (X, False))
    return [module.apply(variables, x, LAYOUT, train=train, rngs=rngs) for x, train in calls]

  both, first, whole = run(jax.random.key(1))
  np.testing.assert_allclose(both[:1], first, rtol=1e-5, atol=1e-6)
  assert not np.allclose(both, whole)
