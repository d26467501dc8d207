"""Initializations that draw the projections of attention together."""

import functools

import jax
import numpy as np
import pytest

from vitx.models import create_model, initialize
from vitx.models.initializers import INITIALIZATIONS, mimetic, zero_query

C, H, D = 96, 4, 24
KEY = jax.random.key(0)


def attention(heads=H, dim=D, values=True):
  """Returns the parameters of a network of two blocks of attention, all ones."""
  shapes = {"query": (C, heads, dim), "key": (C, heads, dim)}
  if values:
    shapes |= {"value": (C, heads, dim), "out": (heads, dim, C)}
  ones = functools.partial(np.ones, dtype=np.float32)
  mixer = {
    name: {"kernel": ones(shape), "bias": ones((C,) if name == "out" else shape[1:])}
    for name, shape in shapes.items()
  }
  block = {"token_mixer": mixer, "mlp": {"up": {"kernel": ones((C, C)), "bias": ones(C)}}}
  return {"block_0": block, "block_1": block, "cls": ones((1, 1, C))}


@functools.cache
def draw(initialization=mimetic, sizes=(), **settings):
  """Applies an initialization to the parameters of `attention`."""
  params = attention(*sizes)
  return jax.device_get(jax.jit(lambda key: initialization(key, params, **settings))(KEY))


def mixers(*args, **settings):
  return [draw(*args, **settings)[f"block_{i}"]["token_mixer"] for i in (0, 1)]


def query_key(mixer):
  """Returns W_Q W_Kᵀ of each head, (H, C, C)."""
  return np.einsum("chd,ehd->hce", mixer["query"]["kernel"], mixer["key"]["kernel"])


def value_out(mixer):
  """Returns W_V W_O of all heads together, (C, C)."""
  return np.einsum("chd,hde->ce", mixer["value"]["kernel"], mixer["out"]["kernel"])


def is_noise_and_diagonal(product, noise, diagonal):
  """Asserts that a matrix is noise Z + diagonal I, with normal entries of Z of variance 1 / C."""
  rest = np.asarray(product) - diagonal * np.eye(C)
  np.testing.assert_allclose(np.diag(product).mean(), diagonal, atol=3 * noise / C)
  np.testing.assert_allclose(rest.std(), noise / np.sqrt(C), rtol=0.03)
  np.testing.assert_allclose(rest.mean(), 0, atol=4 * noise / C**1.5)


def test_queries_times_keys_are_the_identity_and_noise():
  for mixer in mixers(sizes=(2, C, False)):
    for product in query_key(mixer):
      is_noise_and_diagonal(product, 0.7, 0.7)


def test_heads_keep_the_largest_singular_values():
  products = query_key(mixers()[0])
  for product in products:
    values = np.linalg.svd(product, compute_uv=False)
    assert values[D - 1] > 0.5 and values[D] < 1e-5
    # The largest directions contain more of the identity than a random quarter of them would.
    assert np.trace(product) / C > 1.3 * 0.7 * D / C
    off = product[~np.eye(C, dtype=bool)]
    assert np.diag(product).mean() > 4 * np.abs(off).mean()


def test_values_times_output_are_the_negative_identity_and_noise():
  for mixer in mixers():
    is_noise_and_diagonal(value_out(mixer), 0.4, -0.4)


@pytest.mark.parametrize("sizes", [(2, 2 * C), (1, D)])
def test_heads_of_any_size_give_the_product_or_its_best_approximation(sizes):
  heads, dim = sizes
  mixer = mixers(sizes=sizes)[0]
  assert mixer["query"]["kernel"].shape == mixer["value"]["kernel"].shape == (C, heads, dim)
  if heads * dim >= C:
    is_noise_and_diagonal(value_out(mixer), 0.4, -0.4)
  values = np.linalg.svd(value_out(mixer), compute_uv=False)
  assert (values > 1e-5).sum() == min(heads * dim, C)


def test_both_factors_of_a_product_have_equal_sizes():
  mixer = mixers()[0]
  value = mixer["value"]["kernel"].reshape(C, C)
  out = mixer["out"]["kernel"].reshape(C, C)
  np.testing.assert_allclose(value.T @ value, out @ out.T, atol=1e-5)
  query, key = (mixer[name]["kernel"][:, 1] for name in ("query", "key"))
  np.testing.assert_allclose(query.T @ query, key.T @ key, atol=1e-5)


def test_every_head_and_layer_has_different_noise():
  first, second = mixers()
  products = [*query_key(first), *query_key(second), value_out(first), value_out(second)]
  products = [product - np.trace(product) / C * np.eye(C) for product in products]
  for i, a in enumerate(products):
    for b in products[:i]:
      assert abs(np.sum(a * b)) < 0.2 * np.linalg.norm(a) * np.linalg.norm(b)


@pytest.mark.slow  # compiles two initializations
def test_the_constants_are_settings():
  mixer = mixers(sizes=(2, C, False), query_key=(0.1, 2.0))[0]
  is_noise_and_diagonal(query_key(mixer)[0], 0.1, 2.0)
  mixer = mixers(value_out=(0.3, 0.0))[0]
  is_noise_and_diagonal(value_out(mixer), 0.3, 0.0)


@pytest.mark.parametrize(
  ("initialization", "drawn"),
  [(mimetic, {"query", "key", "value", "out"}), (zero_query, {"query"})],
)
def test_other_parameters_equal_those_of_the_base(initialization, drawn):
  base, params = draw(INITIALIZATIONS["pytorch"]), draw(initialization, base="pytorch")
  for (path, value), other in zip(
    jax.tree.flatten_with_path(params)[0], jax.tree.leaves(base), strict=True
  ):
    names = {entry.key for entry in path}
    assert np.array_equal(value, other) != bool(names & drawn), path
    if names >= {"bias"} and names & drawn:
      np.testing.assert_array_equal(value, 0)


def vit(**fields):
  """Returns a small network of one block."""
  config = {"num_classes": 3, "width": 16, "depth": 1, "num_heads": 2, "initialization": "mimetic"}
  return create_model("vit", **(config | fields))


@pytest.mark.slow
def test_zero_queries_make_attention_uniform():
  mixer = {"name": "softmax", "implementation": "masked"}
  model = vit(token_mixer=mixer, initialization={"name": "zero_query", "base": "pytorch"})
  images = np.random.default_rng(0).normal(size=(1, 16, 16, 3)).astype(np.float32)

  @jax.jit
  def run(key):
    variables = initialize(model, key, images)
    return variables, model.apply(variables, images, mutable="intermediates")[1]

  variables, sown = run(KEY)
  assert np.any(variables["params"]["block_0"]["token_mixer"]["key"]["kernel"])
  matrix = sown["intermediates"]["block_0"]["token_mixer"]["attention"][0]
  np.testing.assert_allclose(matrix, 1 / 17, rtol=1e-5)


@pytest.mark.slow
def test_a_config_chooses_the_mimetic_initialization():
  model = vit(num_heads=1, token_mixer={"name": "softmax", "head_dim": 4, "value_dim": 16})
  images = np.zeros((1, 8, 8, 3), np.float32)
  params = jax.jit(lambda key: initialize(model, key, images))(KEY)["params"]
  product = value_out(params["block_0"]["token_mixer"])
  np.testing.assert_allclose(np.diag(product).mean(), -0.4, atol=0.1)
