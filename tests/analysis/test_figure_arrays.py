"""The arrays behind the figures of models agree with their definitions."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.drawn import draw_variables
from vitx.analysis.figures import attention, posemb, receptive_field
from vitx.analysis.figures.capture import MixerCapture, capture
from vitx.analysis.figures.graph import compute_graph
from vitx.analysis.figures.papers import approximation, landmarks, performer_error, projections
from vitx.analysis.figures.papers import shaped_scalars as scalars
from vitx.analysis.figures.subject import Subject
from vitx.analysis.graph import graph_figures
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.inference.visualize import open_subject
from vitx.layers.posemb import sine_cosine_table
from vitx.models import model_from_config
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Causal, Full, Neighborhood, Window

FIELDS = dict(width=16, depth=2, num_heads=2, mlp_dim=16, stem=dict(name="linear", patch=2))


def make(mixer, **fields):
  """Returns a small classifier of 6 x 6 pixels, random variables for it, and two images."""
  mixer = {"implementation": "masked", **mixer}
  config = {"name": "vit", "num_classes": 3, "token_mixer": mixer, **FIELDS, **fields}
  model = model_from_config(config)
  images = np.random.default_rng(1).normal(size=(2, 6, 6, 1)).astype(np.float32)
  return model, draw_variables(model.init, images, scale=0.4), images


def make_subject(mixer, **fields):
  """Returns the `Subject` of a small classifier, from which a figure is drawn."""
  model, variables, images = make(mixer, **fields)
  spec = jax.ShapeDtypeStruct(images[:1].shape, images.dtype)
  return Subject("small", model, spec, None, None, lambda: variables, lambda count: images)


def check_maps(layers):
  assert [layer.path for layer in layers] == ["block_0/token_mixer", "block_1/token_mixer"]
  for layer in layers:
    assert layer.layout == TokenLayout((3, 3), 1) and layer.map.shape == (2, 2, 10, 10)
    np.testing.assert_allclose(layer.map.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("mixer", [{"name": "performer"}, {"name": "neighborhood", "size": 3}])
def test_rows_of_captured_maps_sum_to_one(mixer):
  check_maps(capture(*make(mixer)))


def test_captured_queries_and_keys_make_the_map():
  layers = capture(*make({"name": "softmax", "rotary": "axial"}))
  check_maps(layers)
  for layer in layers:
    logits = np.einsum("bnhd,bmhd->bhnm", layer.q, layer.k) * layer.scale
    weights = np.exp(logits)
    np.testing.assert_allclose(layer.map, weights / weights.sum(-1, keepdims=True), rtol=1e-4)


def test_the_map_of_shaped_attention_is_its_softmax_part():
  subject = make_subject({"name": "shaped"}, block="simplified")
  factors = scalars.compute_scalars(subject)
  assert {name: x.shape for name, x in factors.items()} == dict.fromkeys(
    ("alpha", "beta", "gamma"), (2, 2)
  )
  layers = capture(subject.model, subject.variables(), subject.inputs(2))
  for number, layer in enumerate(layers):
    np.testing.assert_allclose(layer.map.sum(-1), 1, rtol=1e-5)
    alpha, beta, gamma = (factors[name][number][:, None, None] for name in factors)
    whole = alpha * np.eye(10) + beta * layer.map - gamma / 10
    np.testing.assert_allclose(layer.matrix, whole, atol=1e-5)


def test_rollout_is_the_product_written_out():
  random = np.random.default_rng(0)
  layers = [random.dirichlet(np.ones(5), (2, 3, 5)) for _ in range(3)]
  steps = [0.5 * np.eye(5) + 0.5 * layer.mean(1) for layer in layers]
  rollout = attention.rollout(layers)
  np.testing.assert_allclose(rollout, steps[2] @ steps[1] @ steps[0])
  np.testing.assert_allclose(rollout.sum(-1), 1)
  np.testing.assert_allclose(attention.rollout(layers[:1], skip=0), layers[0].mean(1))


def make_maps(*layouts, has_class=True):
  return attention.Maps("", "", np.zeros((1, 8, 12, 1)), layouts, (), has_class)


def test_a_query_is_one_place_of_the_image_on_every_grid():
  maps = make_maps(TokenLayout((4, 6), 1), TokenLayout((2, 3), 1))
  # Patch 16 is in row 2, column 4 of the first grid, and so in row 1, column 2 of the second.
  assert [maps.find_query(query, 1) for query in (None, 0, 16, 23)] == [None, 0, 5, 5]
  matrix = np.arange(49.0).reshape(7, 7)
  np.testing.assert_array_equal(maps.read_row(matrix, 1, 16), matrix[6, 1:].reshape(2, 3))


def test_a_row_of_attention_has_the_shape_of_the_grid():
  matrix = np.arange(49.0).reshape(7, 7)
  with_class, without = make_maps(TokenLayout((2, 3), 1)), make_maps(TokenLayout((1, 7)))
  np.testing.assert_array_equal(with_class.read_row(matrix, 0), [[1, 2, 3], [4, 5, 6]])
  np.testing.assert_array_equal(without.read_row(matrix, 0), matrix.mean(0)[None])


def test_every_head_of_every_layer_has_a_panel():
  layout = TokenLayout((2, 3), 1)
  layers = tuple(np.full((1, heads, 7, 7), 1 / 7) for heads in (2, 1))
  maps = dataclasses.replace(make_maps(layout, layout), layers=layers)
  canvas = attention.plot_heads(maps, query=1)
  planes = [[plane.get_array().shape for plane in axes.images] for axes in canvas.axes]
  assert planes == [[(8, 12)], [(2, 3)], [(2, 3)], [], [(2, 3)], []]


def mask_of(pattern, layout, heads=1):
  places = np.arange(layout.length)
  masks = [pattern.allows(layout, places[:, None], places, np.int64(h)) for h in range(heads)]
  return np.any([np.broadcast_to(x, (places.size,) * 2) for x in masks], axis=0)


def test_receptive_fields_are_boolean_products_of_the_masks():
  layout = TokenLayout((5, 4), 1)
  patterns = (Window(1), Neighborhood(3) & Causal(), Window(3))
  edges = [receptive_field.LayerPattern(i, p, layout, 2) for i, p in enumerate(patterns)]
  masks = [mask_of(pattern, layout) | np.eye(21, dtype=bool) for pattern in patterns]
  product = np.eye(21, dtype=int)
  for seen, mask in zip(
    receptive_field.receptive_fields(edges, np.arange(21)), masks[::-1], strict=True
  ):
    product = product @ mask.astype(int)
    np.testing.assert_array_equal(seen, product > 0)


@pytest.mark.parametrize(
  ("matrix", "mass"), [([[1.0, -2], [3, -4]], 0.5), (np.eye(3), 1), (np.zeros((2, 2)), 0)]
)
def test_diagonal_mass_agrees_with_values_by_hand(matrix, mass):
  assert projections.diagonal_mass(np.array(matrix)) == pytest.approx(mass)


@pytest.mark.parametrize("mixer", ["softmax", "one_kv_head"])
def test_products_of_projections_belong_to_heads(mixer):
  one = {"name": "linformer", "slots": 4, "one_kv_head": True}
  subject = make_subject(one if mixer == "one_kv_head" else {"name": mixer})
  products = projections.compute_products(subject)
  for layer, head in np.ndindex(2, 2):
    mixer = subject.variables()["params"][f"block_{layer}"]["token_mixer"]
    kernels = (np.asarray(mixer[name]["kernel"]) for name in ("query", "key", "value"))
    q, k, v = (x[:, head % x.shape[1]] for x in kernels)  # One head of keys serves all.
    out = np.asarray(mixer["out"]["kernel"])[head]
    np.testing.assert_allclose(products["query_key"][layer, head], q @ k.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(products["value_out"][layer, head], v @ out, rtol=1e-4, atol=1e-6)


def test_products_of_projections_include_the_identity():
  mixer = {"name": "shaped", "values": "identity", "output": "identity"}
  subject = make_subject(mixer, depth=1)
  params = subject.variables()["params"]["block_0"]["token_mixer"]
  value, out = (
    params[f"{name}_skip_gain"] * np.eye(16)
    + params[f"{name}_residual_gain"] * np.reshape(params[name]["kernel"], (16, 16))
    for name in ("value", "out")
  )
  (products,) = projections.compute_products(subject)["value_out"]
  np.testing.assert_allclose(products.sum(axis=0), value @ out, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(products[1], value[:, 8:] @ out[8:], rtol=1e-4, atol=1e-5)


def test_positions_are_the_added_embeddings():
  positions = posemb.compute_positions(make_subject({"name": "softmax"}, posemb="sincos"))
  np.testing.assert_allclose(positions.table, sine_cosine_table(positions.layout, 16), atol=1e-5)
  subject = make_subject({"name": "softmax"})
  positions = posemb.compute_positions(subject)
  table = np.asarray(subject.variables()["params"]["posemb"]["table"])[0]
  np.testing.assert_allclose(positions.table, table, atol=1e-5)
  grid = table[1:]
  cosine = grid[2] @ grid[7] / np.linalg.norm(grid[2]) / np.linalg.norm(grid[7])
  assert positions.similarity()[2, 7] == pytest.approx(cosine, abs=1e-4)
  np.testing.assert_allclose(np.diagonal(positions.similarity()), 1)


def make_layer():
  q, k = np.random.default_rng(0).normal(0, 0.5, (2, 1, 12, 2, 4)).astype(np.float32)
  return MixerCapture("block_0/token_mixer", "Softmax", TokenLayout((12,)), None, q, k, 0.5)


@pytest.mark.slow
def test_errors_of_features_fall_with_their_number():
  for approximate in performer_error.KINDS.values():
    errors = approximation.measure_errors([make_layer()], approximate, (4, 1024), 4)
    assert errors.shape == (1, 2, 4)
    few, many = errors.mean(axis=(0, 2))
    assert few > 4 * many and many < 0.1


@pytest.mark.parametrize(("factor", "error"), [(1.0, 0.0), (2.0, 1.0)])
def test_errors_are_relative(factor, error):
  def attend(q, k, count, key):
    return factor * jax.nn.softmax(jax.numpy.einsum("bnhd,bmhd->bhnm", q, k) * 0.5)

  errors = approximation.measure_errors([make_layer()], attend, (1,), 1)
  np.testing.assert_allclose(errors, np.full((1, 1, 1), error), atol=1e-6)


def test_as_many_landmarks_as_tokens_lose_little():
  errors = approximation.measure_errors([make_layer()], landmarks.approximate, (2, 12), 1)
  assert errors[0, 1, 0] < 0.05 < errors[0, 0, 0]


def test_landmarks_of_padded_tokens_are_refused(tmp_path):
  """The padding shifts the segments, which the captured queries do not show."""
  subject = make_subject({"name": "nystromformer", "landmarks": 4, "padding": "front"}, depth=1)
  with pytest.raises(ConfigError, match="small pads tokens"):
    landmarks.draw(dataclasses.replace(subject, layout=TokenLayout((3, 3), 1)), tmp_path)


def test_landmarks_attend_by_the_mean_of_their_queries():
  layer = make_layer()
  probabilities = landmarks.attend_from_landmarks(layer, 4)
  assert probabilities.shape == (1, 2, 4, 12)
  mean = layer.q[0, 3:6, 1].mean(0)
  weights = np.exp(layer.k[0, :, 1] @ mean * 0.5)
  np.testing.assert_allclose(probabilities[0, 1, 1], weights / weights.sum(), rtol=1e-4)


def test_a_subject_has_the_graph_of_its_pattern():
  (row,) = compute_graph(open_subject(config="digits:full"))
  figures = graph_figures(Full(), TokenLayout((8, 8)))
  assert row["layers"] == "0 1 2 3" and row["density"] == figures.density == 1
  assert row["path_length"] == figures.path_length and row["spectral_gap"] == figures.spectral_gap
  wide = "digits:softmax,model.num_heads=8,token_mixer={'name':'bigbird','block':4,'random':1}"
  heads = [row["head"] for row in compute_graph(open_subject(config=wide)) if row["layers"] == "0"]
  assert heads == [*range(8)]


class Mean(nn.Module):
  """A mixer that is no `TokenMixer`."""

  implementation: str
  num_heads: int = 1
  dtype: str = "float32"
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    self.sow("intermediates", "attention", np.full((len(x), 1, *[x.shape[1]] * 2), 1 / x.shape[1]))
    return x.mean(axis=1, keepdims=True) + 0 * x


def test_a_mixer_that_is_any_module_is_captured():
  with registry.trusting(True):
    layers = capture(*make({"name": f"{__name__}:Mean"}))
  assert [(layer.mixer, layer.q, layer.map.shape) for layer in layers] == [
    ("Mean", None, (2, 1, 10, 10))
  ] * 2


def test_a_register_is_no_class_token():
  subject = make_subject({"name": "softmax"}, pool="mean", extra_tokens=1)
  maps = attention.compute_maps(dataclasses.replace(subject, layout=TokenLayout((3, 3), 1)))
  expected = maps.layers[-1].mean(axis=-2)[..., 1:].reshape(2, 2, 3, 3)
  np.testing.assert_array_equal(maps.read_row(maps.layers[-1], -1), expected)
