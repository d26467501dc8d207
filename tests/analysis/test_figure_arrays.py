"""The arrays behind the figures of models agree with their definitions."""

import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.drawn import draw_variables
from vitx.analysis.figures import approximation, attention, posemb, projections, receptive_field
from vitx.analysis.figures import shaped_scalars as scalars
from vitx.analysis.figures.capture import MixerCapture, capture
from vitx.analysis.figures.graph import compute_graph
from vitx.analysis.figures.landmarks import attend_from_landmarks, compute_landmarks
from vitx.analysis.figures.sparsifiner import draw_sparsifiner
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
  given = {"name": "vit", "num_classes": 3, "token_mixer": mixer, **FIELDS, **fields}
  model = model_from_config(given)
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
def test_rows_of_maps_sum_to_one(mixer):
  check_maps(capture(*make(mixer)))


def test_captured_queries_and_keys_make_the_map():
  layers = capture(*make({"name": "softmax", "rotary": "axial"}))
  check_maps(layers)
  for layer in layers:
    logits = np.einsum("bnhd,bmhd->bhnm", layer.q, layer.k) * layer.scale
    weights = np.exp(logits)
    np.testing.assert_allclose(layer.map, weights / weights.sum(-1, keepdims=True), rtol=1e-4)


def test_of_shaped_attention_the_map_is_its_softmax_part():
  subject = make_subject({"name": "shaped"}, block="simplified")
  found = scalars.compute_scalars(subject)
  assert {name: x.shape for name, x in found.items()} == dict.fromkeys(
    ("alpha", "beta", "gamma"), (2, 2)
  )
  layers = capture(subject.model, subject.variables(), subject.inputs(2))
  for number, layer in enumerate(layers):
    np.testing.assert_allclose(layer.map.sum(-1), 1, rtol=1e-5)
    alpha, beta, gamma = (found[name][number][:, None, None] for name in found)
    whole = alpha * np.eye(10) + beta * layer.map - gamma / 10
    np.testing.assert_allclose(layer.matrix, whole, atol=1e-5)


def test_rollout_is_the_product_written_out():
  random = np.random.default_rng(0)
  layers = [random.dirichlet(np.ones(5), (2, 3, 5)) for _ in range(3)]
  steps = [0.5 * np.eye(5) + 0.5 * layer.mean(1) for layer in layers]
  found = attention.rollout(layers)
  np.testing.assert_allclose(found, steps[2] @ steps[1] @ steps[0])
  np.testing.assert_allclose(found.sum(-1), 1)
  np.testing.assert_allclose(attention.rollout(layers[:1], skip=0), layers[0].mean(1))
  with pytest.raises(ConfigError, match=r"layers have \[4, 5\] tokens"):
    attention.rollout([layers[0], layers[0][:, :, :4, :4]])


def test_a_query_of_several_grids_is_one_place_of_the_image():
  layouts = (TokenLayout((4, 6), 1), TokenLayout((2, 3), 1))
  maps = attention.Maps("", "", np.zeros((1, 8, 12, 1)), layouts, ())
  # Patch 16 is in row 2, column 4 of the first grid, and so in row 1, column 2 of the second.
  assert [maps.find_query(query, 1) for query in (None, 0, 16, 23)] == [None, 0, 5, 5]
  matrix = np.arange(49.0).reshape(7, 7)
  np.testing.assert_array_equal(maps.read_row(matrix, 1, 16), matrix[6, 1:].reshape(2, 3))
  with pytest.raises(ConfigError, match="queries=24 is not a place on the grid; choose from 0 to"):
    maps.read_row(matrix, 1, 24)


def test_a_row_lies_on_the_grid():
  matrix = np.arange(49.0).reshape(7, 7)
  with_class, without = TokenLayout((2, 3), 1), TokenLayout((1, 7))
  np.testing.assert_array_equal(attention.read_row(matrix, with_class), [[1, 2, 3], [4, 5, 6]])
  row = attention.read_row(matrix, with_class, 2)
  np.testing.assert_array_equal(row, matrix[3, 1:].reshape(2, 3))
  np.testing.assert_array_equal(attention.read_row(matrix, without), matrix.mean(0)[None])
  with pytest.raises(ConfigError, match="queries=6 is not a place on the grid; choose from 0 to 5"):
    attention.read_row(matrix, with_class, 6)


def mask_of(pattern, layout, heads=1):
  places = np.arange(layout.length)
  each = [pattern.allows(layout, places[:, None], places, np.int64(h)) for h in range(heads)]
  return np.any([np.broadcast_to(x, (places.size,) * 2) for x in each], axis=0)


def test_receptive_fields_are_boolean_powers_of_the_mask():
  layout = TokenLayout((5, 4), 1)
  edges = receptive_field.LayerPattern(0, Neighborhood(3) & Causal(), layout, 2)
  step = mask_of(edges.pattern, layout) | np.eye(21, dtype=bool)
  seen = receptive_field.receptive_fields([edges] * 3, np.arange(21))
  for power in range(1, 4):
    wanted = np.linalg.matrix_power(step.astype(int), power) > 0
    np.testing.assert_array_equal(seen[power - 1], wanted)


def test_layers_that_differ_act_in_their_order():
  layout = TokenLayout((12,))
  patterns = (Window(1), Window(3))
  edges = [receptive_field.LayerPattern(i, each, layout, 1) for i, each in enumerate(patterns)]
  one, two = receptive_field.receptive_fields(edges, np.arange(12))
  masks = [mask_of(pattern, layout).astype(int) for pattern in patterns]
  np.testing.assert_array_equal(one, masks[1] > 0)
  np.testing.assert_array_equal(two, masks[1] @ masks[0] > 0)


def test_layers_until_all_is_read_are_those_of_the_graph():
  layout, pattern = TokenLayout((4, 4)), Neighborhood(3)
  edges = [receptive_field.LayerPattern(i, pattern, layout, 1) for i in range(4)]
  seen = receptive_field.receptive_fields(edges, np.arange(16)).all(axis=(1, 2))
  assert 1 + seen.argmax() == graph_figures(pattern, layout).layers_to_mixing == 2


@pytest.mark.parametrize(
  ("matrix", "mass"), [([[1.0, -2], [3, -4]], 0.5), (np.eye(3), 1), (np.zeros((2, 2)), 0)]
)
def test_diagonal_mass_by_hand(matrix, mass):
  assert projections.diagonal_mass(np.array(matrix)) == pytest.approx(mass)


@pytest.mark.parametrize("mixer", ["softmax", "one_kv_head"])
def test_products_of_projections_head_by_head(mixer):
  one = {"name": "linformer", "slots": 4, "one_kv_head": True}
  subject = make_subject(one if mixer == "one_kv_head" else {"name": mixer})
  found = projections.compute_products(subject)
  for layer, head in np.ndindex(2, 2):
    mixer = subject.variables()["params"][f"block_{layer}"]["token_mixer"]
    kernels = (np.asarray(mixer[name]["kernel"]) for name in ("query", "key", "value"))
    q, k, v = (x[:, head % x.shape[1]] for x in kernels)  # One head of keys serves all.
    out = np.asarray(mixer["out"]["kernel"])[head]
    np.testing.assert_allclose(found["query_key"][layer, head], q @ k.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["value_out"][layer, head], v @ out, rtol=1e-4, atol=1e-6)


def test_products_of_projections_include_the_identity():
  mixer = {"name": "shaped", "values": "identity", "output": "identity"}
  subject = make_subject(mixer, depth=1)
  own = subject.variables()["params"]["block_0"]["token_mixer"]
  value, out = (
    own[f"{name}_skip_gain"] * np.eye(16)
    + own[f"{name}_residual_gain"] * np.reshape(own[name]["kernel"], (16, 16))
    for name in ("value", "out")
  )
  (found,) = projections.compute_products(subject)["value_out"]
  np.testing.assert_allclose(found.sum(axis=0), value @ out, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(found[1], value[:, 8:] @ out[8:], rtol=1e-4, atol=1e-5)


def test_positions_are_what_is_added():
  found = posemb.compute_positions(make_subject({"name": "softmax"}, posemb="sincos"))
  np.testing.assert_allclose(found.table, sine_cosine_table(found.layout, 16), atol=1e-5)
  subject = make_subject({"name": "softmax"})
  found = posemb.compute_positions(subject)
  table = np.asarray(subject.variables()["params"]["posemb"]["table"])[0]
  np.testing.assert_allclose(found.table, table, atol=1e-5)
  grid = table[1:]
  cosine = grid[2] @ grid[7] / np.linalg.norm(grid[2]) / np.linalg.norm(grid[7])
  assert found.similarity()[2, 7] == pytest.approx(cosine, abs=1e-4)
  np.testing.assert_allclose(np.diagonal(found.similarity()), 1)


def make_layer():
  q, k = np.random.default_rng(0).normal(0, 0.5, (2, 1, 12, 2, 4)).astype(np.float32)
  return MixerCapture("block_0/token_mixer", "Softmax", TokenLayout((12,)), None, q, k, 0.5)


@pytest.mark.slow
def test_errors_of_features_fall_with_their_number():
  errors = approximation.measure_errors([make_layer()], approximation.PERFORMER, (4, 1024), 4)
  for values in errors.values.values():
    assert values.shape == (1, 2, 4)
    few, many = values.mean(axis=(0, 2))
    assert few > 4 * many and many < 0.1


@pytest.mark.parametrize(("factor", "error"), [(1.0, 0.0), (2.0, 1.0)])
def test_errors_are_relative(factor, error):
  def attend(q, k, count, key):
    return factor * jax.nn.softmax(jax.numpy.einsum("bnhd,bmhd->bhnm", q, k) * 0.5)

  found = approximation.measure_errors([make_layer()], {"it": attend}, (1,), 1).values["it"]
  np.testing.assert_allclose(found, np.full((1, 1, 1), error), atol=1e-6)


def test_as_many_landmarks_as_tokens_lose_little():
  kinds = {"landmarks": approximation.landmarks}
  found = approximation.measure_errors([make_layer()], kinds, (2, 12), 1).values["landmarks"]
  assert found[0, 1, 0] < 0.05 < found[0, 0, 0]


def test_landmarks_of_padded_tokens_are_refused():
  """The padding shifts the segments, which the captured queries do not show."""
  subject = make_subject({"name": "nystromformer", "landmarks": 4, "padding": "front"}, depth=1)
  with pytest.raises(ConfigError, match="small pads tokens"):
    compute_landmarks(dataclasses.replace(subject, layout=TokenLayout((3, 3), 1)))


STAGES = dict(name="pit", width=(16, 32), depth=(1, 1), num_heads=(1, 2), pool="mean")


def test_stages_that_differ_are_refused(tmp_path):
  layout = TokenLayout((3, 3))
  subject = make_subject({"name": "nystromformer", "landmarks": 4}, **STAGES)
  with pytest.raises(ConfigError, match="landmarks: small has several grids"):
    compute_landmarks(dataclasses.replace(subject, layout=layout))
  subject = make_subject({"name": "sparsifiner", "slots": 2}, **STAGES)
  with pytest.raises(ConfigError, match="sparsifiner: small has several grids"):
    draw_sparsifiner(dataclasses.replace(subject, layout=layout), tmp_path)
  with pytest.raises(ConfigError, match="receptive_field: small has several grids"):
    receptive_field.compute_fields(make_subject({"name": "neighborhood", "size": 1}, **STAGES))
  with pytest.raises(ConfigError, match="number of heads of small differs by stage"):
    scalars.compute_scalars(make_subject({"name": "shaped"}, **STAGES))


def test_landmarks_attend_by_the_mean_of_their_queries():
  layer = make_layer()
  found = attend_from_landmarks(layer, 4)
  assert found.shape == (1, 2, 4, 12)
  mean = layer.q[0, 3:6, 1].mean(0)
  weights = np.exp(layer.k[0, :, 1] @ mean * 0.5)
  np.testing.assert_allclose(found[0, 1, 1], weights / weights.sum(), rtol=1e-4)


def test_the_graph_of_a_subject_is_that_of_its_pattern():
  (row,) = compute_graph(open_subject(config="digits:full"))
  found = graph_figures(Full(), TokenLayout((8, 8)))
  assert row["layers"] == "0 1 2 3" and row["density"] == found.density == 1
  assert row["path_length"] == found.path_length and row["spectral_gap"] == found.spectral_gap


def test_a_network_without_mixers_has_no_graph():
  model = model_from_config({"name": "convmixer", "num_classes": 2, "width": 4, "depth": 1})
  spec = jax.ShapeDtypeStruct((1, 16, 16, 3), np.float32)
  subject = Subject("plain", model, spec, None, None, dict, lambda count: None)
  with pytest.raises(ConfigError, match="plain has no token mixers"):
    compute_graph(subject)


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


def test_more_than_ten_layers_are_captured_in_their_order():
  with registry.trusting(True):
    layers = capture(*make({"name": f"{__name__}:Mean"}, depth=11))
  assert [layer.path for layer in layers] == [f"block_{i}/token_mixer" for i in range(11)]


def test_a_register_is_no_class_token():
  subject = make_subject({"name": "softmax"}, pool="mean", extra_tokens=1)
  maps = attention.compute_maps(dataclasses.replace(subject, layout=TokenLayout((3, 3), 1)))
  expected = maps.layers[-1].mean(axis=-2)[..., 1:].reshape(2, 2, 3, 3)
  np.testing.assert_array_equal(maps.read_row(maps.layers[-1], -1), expected)
