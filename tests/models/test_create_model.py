"""Models by name: shapes, gradients and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vitx
from tests.drawn import draw_variables
from vitx.models.create import DTYPES
from vitx.models.trunk import drop_rate

TINY = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}


def images(size=8, channels=3, batch=2, seed=0):
  return np.random.default_rng(seed).normal(size=(batch, size, size, channels)).astype(np.float32)


def shapes(**fields):
  """Returns a model and the shapes of its variables, by tracing."""
  model = vitx.create_model("vit", num_classes=5, **{**TINY, **fields})
  return model, jax.eval_shape(model.init, jax.random.key(0), images())


def drawn(**fields):
  """Returns a model and variables of which none is zero, so that outputs depend on all of them."""
  model, _ = shapes(**fields)
  return model, draw_variables(model.init, images())


LINEAR = {"name": "linear", "patch": 4}
CONV = {"name": "conv", "channels": (4, 8), "strides": (2, 1), "patch": 2}


@pytest.mark.parametrize(
  ("stem", "tokens", "posemb", "pool"),
  [
    (LINEAR, 4, "learned", "cls"),
    (LINEAR, 4, "none", "mean"),
    (CONV, 4, "none", "cls"),
    (CONV, 4, "learned", "mean"),
    ("conv", 64, "learned", "cls"),
    ("conv", 64, "none", "mean"),
  ],
)
def test_stems_and_pools_make_these_tokens(stem, tokens, posemb, pool):
  fields = {**TINY, "depth": 1, "stem": stem, "posemb": posemb, "pool": pool}
  model = vitx.create_model("vit", num_classes=5, **fields)
  run = lambda key: model.init_with_output(key, images(), mutable=True)  # noqa: E731
  logits, variables = jax.eval_shape(run, jax.random.key(0))
  assert logits.shape == (2, 5) and logits.dtype == jnp.float32
  expected = tokens + (pool == "cls")
  assert variables["intermediates"]["tokens"][0].shape == (2, expected, 16)
  assert ("posemb" in variables["params"]) == (posemb == "learned")


def test_the_first_logits_are_zero():
  model = vitx.create_model("vit", num_classes=5, **{**TINY, "depth": 1})
  logits, _ = jax.jit(model.init_with_output)(jax.random.key(0), images())
  np.testing.assert_array_equal(logits, np.zeros((2, 5)))


@pytest.mark.slow  # compiles two gradients
def test_every_parameter_has_a_gradient_also_under_remat():
  plain, variables = drawn(depth=1, stem=LINEAR, dropout=0.2, stochastic_depth=0.3)
  rngs = {"dropout": jax.random.key(3)}

  def gradient(model):
    loss = lambda v: jnp.sum(jnp.sin(model.apply(v, images(), train=True, rngs=rngs)) ** 2)  # noqa: E731
    return jax.device_get(jax.jit(jax.grad(loss))(variables))

  grads = gradient(plain)
  for a, b in zip(*map(jax.tree.leaves, (grads, gradient(plain.clone(remat=True)))), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  largest = max(np.max(np.abs(g)) for g in jax.tree.leaves(grads))
  for path, grad in jax.tree_util.tree_leaves_with_path(grads):
    # A key's bias shifts all logits of a query, which changes no softmax, so it has no gradient.
    if "'key'" in str(path) and "bias" in str(path):
      continue
    assert np.max(np.abs(grad)) > 1e-6 * largest, path


@pytest.mark.slow  # compiles three networks
def test_half_precision_computes_close_to_float32():
  full, variables = drawn(depth=1)
  halves = [shapes(depth=1, dtype=dtype) for dtype in ("bfloat16", "float16")]
  for _, half in halves:
    assert {x.dtype for x in jax.tree.leaves(half)} == {jnp.dtype("float32")}
  models = full, *(model for model, _ in halves)
  a, *others = jax.jit(lambda v: [model.apply(v, images()) for model in models])(variables)
  for b in others:
    assert b.dtype == jnp.float32
    np.testing.assert_allclose(a, b, atol=0.06 * np.abs(a).max())
    assert np.any(a != b)


def test_a_dtype_has_a_name_or_is_given():
  for name, dtype in DTYPES.items():
    model, other = (vitx.create_model("vit", num_classes=3, dtype=d) for d in (name, dtype))
    assert model.dtype == other.dtype


def test_stochastic_depth_grows_to_the_last_block():
  assert [drop_rate(0.4, layer, 3) for layer in range(3)] == [0, 0.2, 0.4]
  assert drop_rate(0.4, 0, 1) == 0
