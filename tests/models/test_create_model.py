"""Models by name: shapes, options, and errors that name the fix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vitx
from vitx.errors import ConfigError
from vitx.models.trunk import drop_rate

TINY = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}


def images(size=8, channels=3, batch=2, seed=0):
  return np.random.default_rng(seed).normal(size=(batch, size, size, channels)).astype(np.float32)


def build(**fields):
  model = vitx.create_model("vit", num_classes=5, **{**TINY, **fields})
  return model, jax.jit(model.init)(jax.random.key(0), images())


def shapes(**fields):
  """Model and the shapes of its variables: traced, not compiled."""
  model = vitx.create_model("vit", num_classes=5, **{**TINY, **fields})
  return model, jax.eval_shape(model.init, jax.random.key(0), images())


def perturbed(variables):
  """The head starts at zero: move every parameter, so that outputs depend on all of them."""
  leaves, tree = jax.tree.flatten(variables)
  keys = jax.random.split(jax.random.key(9), len(leaves))
  moved = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
  return jax.tree.unflatten(tree, moved)


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("posemb", ["learned", "none"])
@pytest.mark.parametrize(
  ("stem", "tokens"),
  [
    ({"name": "linear", "patch": 4}, 4),
    ({"name": "conv", "channels": (4, 8), "strides": (2, 1), "patch": 2}, 4),
    ("conv", 64),
  ],
)
def test_shapes_and_tokens(stem, tokens, posemb, pool):
  model, variables = shapes(stem=stem, posemb=posemb, pool=pool)
  apply = lambda v: model.apply(v, images(), mutable="intermediates")  # noqa: E731
  logits, sown = jax.eval_shape(apply, variables)
  assert logits.shape == (2, 5) and logits.dtype == jnp.float32
  expected = tokens + (pool == "cls")
  assert sown["intermediates"]["tokens"][0].shape == (2, expected, 16)
  assert ("posemb" in variables["params"]) == (posemb == "learned")


def test_parameter_count_by_hand():
  _, variables = shapes(stem={"name": "linear", "patch": 4})
  c, mlp, tokens = 16, 32, 5
  block = 4 * (c * c + c) + 2 * c * mlp + mlp + c + 4 * c
  stem = 4 * 4 * 3 * c + c
  expected = stem + c + tokens * c + 2 * block + 2 * c + c * 5 + 5
  assert sum(x.size for x in jax.tree.leaves(variables)) == expected


@pytest.mark.slow
def test_first_loss_is_log_of_classes():
  model, variables = build()
  np.testing.assert_array_equal(model.apply(variables, images()), np.zeros((2, 5)))


@pytest.mark.slow
def test_every_parameter_matters():
  model, variables = build(stem={"name": "linear", "patch": 4})
  loss = lambda v: jnp.sum(jnp.sin(model.apply(v, images())) ** 2)  # noqa: E731
  grads = jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(perturbed(variables)))
  largest = max(jnp.max(jnp.abs(g)) for _, g in grads)
  for path, grad in grads:
    # Softmax does not see a shift of all logits of a query: the key bias has no gradient.
    if "'key'" in str(path) and "bias" in str(path):
      continue
    assert jnp.max(jnp.abs(grad)) > 1e-6 * largest, path


@pytest.mark.slow
def test_remat_changes_nothing_but_memory():
  plain, variables = build()
  remat, _ = build(remat=True)
  x, variables = images(), perturbed(variables)
  rngs = {"dropout": jax.random.key(3)}

  def gradient(model):
    model = model.clone(dropout=0.2, stochastic_depth=0.3)
    loss = lambda v: model.apply(v, x, train=True, rngs=rngs).sum()  # noqa: E731
    return jax.jit(jax.grad(loss))(variables)

  for a, b in zip(*(jax.tree.leaves(gradient(m)) for m in (plain, remat)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_computes_close_to_float32_and_keeps_parameters(dtype):
  full, variables = build()
  half, half_variables = build(dtype=dtype)
  assert {x.dtype for x in jax.tree.leaves(half_variables)} == {jnp.dtype("float32")}
  variables = perturbed(variables)
  a, b = full.apply(variables, images()), half.apply(variables, images())
  assert b.dtype == jnp.float32
  np.testing.assert_allclose(a, b, atol=0.06 * float(jnp.abs(a).max()))


def test_stochastic_depth_grows_to_the_last_block():
  assert [drop_rate(0.4, layer, 3) for layer in range(3)] == [0, 0.2, 0.4]
  assert drop_rate(0.4, 0, 1) == 0


@pytest.mark.parametrize(
  ("fields", "parts"),
  [
    ({"token_mixer": "softmx"}, ["model.token_mixer", "softmx", "Did you mean 'softmax'?"]),
    ({"token_mixer": {"name": "softmax", "landmarks": 3}}, ["landmarks", "SoftmaxAttention"]),
    ({"token_mixer": {"name": "softmax", "num_heads": 3}}, ["model.token_mixer.num_heads=3"]),
    ({"token_mixer": "nowhere.at_all:Mixer"}, ["nowhere.at_all", "cannot be imported"]),
    ({"widht": 3}, ["model.widht=3", "Did you mean 'width'?"]),
    ({"dtype": "bf16"}, ["model.dtype='bf16'", "bfloat16"]),
    ({"pool": "max"}, ["model.pool", "cls, mean"]),
    ({"stem": {"patch": 4}}, ["model.stem needs a name"]),
  ],
)
def test_bad_fields_are_named(fields, parts):
  with pytest.raises(ConfigError) as error:
    vitx.create_model("vit", num_classes=5, **fields)
  for part in parts:
    assert part in str(error.value)


@pytest.mark.parametrize(
  ("fields", "parts"),
  [
    ({"stem": {"name": "linear", "patch": 3}}, ["patch=3", "8 x 8", "6 or 9"]),
    ({"num_heads": 3}, ["num_heads=3", "width=16"]),
    ({"stem": {"name": "conv", "channels": (4, 8), "strides": (1,)}}, ["strides=(1,)"]),
    (
      {"token_mixer": {"name": "softmax", "implementation": "kernelized", "dropout": 0.1}},
      ["kernelized", "token_mixer.dropout=0.1"],
    ),
  ],
)
def test_impossible_sizes_are_named(fields, parts):
  with pytest.raises(ConfigError) as error:
    shapes(**fields)
  for part in parts:
    assert part in str(error.value)


def test_unknown_model():
  with pytest.raises(ConfigError, match="Did you mean 'vit'"):
    vitx.create_model("vits", num_classes=3)
  assert "vit" in vitx.list_models()


@pytest.mark.parametrize("number", [-1, 0, 2.5, None, "ten", True])
def test_a_number_of_classes_that_cannot_be(number):
  with pytest.raises(ConfigError, match=rf"model\.num_classes={number!r}"):
    vitx.create_model("vit", num_classes=number)
