"""Redrawn graphs, locality, Longformer's global projections, ETC's tokens, and ragged windows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention import small
from tests.drawn import draw_variables
from vitx.attention.bigbird import BigBirdAttention
from vitx.attention.grid import ShiftedWindowAttention
from vitx.attention.locality import LocalityAttention
from vitx.attention.longformer import LongformerAttention
from vitx.ops import TokenLayout, dense_mask
from vitx.runtime.parallel import AXIS
from vitx.tasks.classification import Classification

LAYOUT = TokenLayout((4, 8), prefix=1)
X = np.random.default_rng(0).normal(size=(2, LAYOUT.length, 8)).astype(np.float32)
QUICK = {"xla_backend_optimization_level": 0}


def drawn(key, variables, module):
  """Returns (output, gradient) of both implementations, the matrix, and the evaluation's output."""

  def loss(x, name):
    out, sown = module.clone(implementation=name).apply(
      variables, x, LAYOUT, train=True, rngs={"graph": key}, mutable=["intermediates"]
    )
    return jnp.sum(jnp.sin(out)), (out, sown)

  (masked, (out, sown)), (kernelized, (same, _)) = (
    jax.grad(loss, has_aux=True)(X, name) for name in ("masked", "kernelized")
  )
  fixed = module.apply(variables, X, LAYOUT, train=False)
  return (out, masked), (same, kernelized), sown["intermediates"]["attention"][0], fixed


@pytest.mark.slow
@pytest.mark.parametrize(
  "fields",
  [
    {"random": 2, "block": 5, "variant": "R", "keep_self": False},
    {"random": 1, "block": 4, "window": 5, "plan": "bigbird", "query_parts": ("window", "global")},
    {"random": 2, "block": 4, "variant": "R+W", "prefix_global": True},
  ],
)
def test_both_implementations_draw_the_same_graph(fields):
  module = BigBirdAttention(2, redraw="step", **fields)
  variables = draw_variables(module.init, X, layout=LAYOUT, train=False)
  run = jax.jit(partial(drawn, module=module), compiler_options=QUICK)
  results = [run(jax.random.key(seed), variables) for seed in (0, 1, 0)]
  for masked, kernelized, _, _ in results:
    for a, b in zip(masked, kernelized, strict=True):
      np.testing.assert_allclose(a, b, atol=2e-6)
  first, second, again = (np.asarray(matrix) != 0 for _, _, matrix, _ in results)
  np.testing.assert_array_equal(first, again)
  assert (first != second).any(), "another key draws the same graph"
  assert (first[:, 0] != first[:, 1]).any(), "heads draw the same graph"
  np.testing.assert_array_equal(first[0], first[1])  # all examples have one graph
  np.testing.assert_array_equal(results[0][3], results[1][3])  # evaluation keeps the fixed graph
  if module.plan == "bigbird":  # This plan may draw blocks of the window.
    return
  # Both graphs have equally many keys, but a drawn block may be the short last one.
  fixed = dense_mask(module.full_pattern(LAYOUT), LAYOUT, module.num_heads)
  fewer = np.abs(first[0].sum(axis=-1) - fixed.sum(axis=-1)).max()
  assert fewer <= (-LAYOUT.length % module.block) * module.random


@pytest.mark.parametrize(
  "fields", [{}, {"temperature": "fixed"}, {"self_edge": True}, {"edges": "axial_rows"}]
)
def test_locality_attention_equals_its_formula(fields):
  """Lee et al. 2021: softmax of temperature · q kᵀ over all keys but the query's own."""
  module = LocalityAttention(2, implementation="masked", **fields)
  variables = draw_variables(module.init, X, layout=LAYOUT, train=False)
  apply = jax.jit(partial(module.apply, layout=LAYOUT, train=False, mutable=["intermediates"]))
  out, sown = apply(variables, X)
  p = variables["params"]
  kernels = {name: p[name] for name in ("query", "key", "value")}
  q, k, v = (
    np.einsum("bnc,chd->bhnd", X, x["kernel"]) + x["bias"][:, None] for x in kernels.values()
  )
  learned = fields.get("temperature") != "fixed"
  assert ("temperature" in p) == learned
  factor = np.asarray(p["temperature"]) if learned else np.full(2, 4**-0.5)
  logits = factor[:, None, None] * (q @ k.swapaxes(2, 3))
  if not fields.get("self_edge"):
    logits = np.where(np.eye(LAYOUT.length, dtype=bool), -np.inf, logits)
  if "edges" in fields:  # the class token and the query's own row of 8
    place = np.arange(LAYOUT.length) - 1
    apart = (place[:, None] // 8 != place // 8) & (place >= 0) & (place[:, None] >= 0)
    logits = np.where(apart, -np.inf, logits)
  weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
  weights = weights / weights.sum(axis=-1, keepdims=True)
  np.testing.assert_allclose(sown["intermediates"]["attention"][0], weights, atol=2e-6)
  expected = np.einsum("bhnd,hdc->bnc", weights @ v, p["out"]["kernel"]) + p["out"]["bias"]
  np.testing.assert_allclose(out, expected, atol=5e-6)


def test_the_temperature_starts_as_the_root_of_the_width():
  module = LocalityAttention(2, head_dim=9)
  params = jax.jit(partial(module.init, layout=LAYOUT, train=False))(jax.random.key(0), X)["params"]
  np.testing.assert_allclose(params["temperature"], [1 / 3, 1 / 3], rtol=1e-6)


REDRAWN = {"name": "bigbird", "block": 2, "random": 2, "variant": "R", "redraw": "step"}
REDRAWN["implementation"] = "masked"


def test_every_layer_and_every_step_draws_another_graph():
  model = small.vit(REDRAWN, num_heads=1)
  images = np.zeros((1, 4, 4, 3), np.float32)

  variables = draw_variables(model.init, images)

  def edges(key):
    _, sown = model.apply(
      variables, images, train=True, rngs={"graph": key}, mutable=["intermediates"]
    )
    blocks = sown["intermediates"]
    return [blocks[f"block_{i}"]["token_mixer"]["attention"][0] != 0 for i in range(2)]

  run = jax.jit(edges, compiler_options=QUICK)
  (a, b), (c, _) = run(jax.random.key(0)), run(jax.random.key(1))
  assert (a != b).any() and (a != c).any()


@pytest.mark.slow
def test_all_devices_draw_the_same_graphs():
  """The training loss computes equal attention matrices of four examples on one and two devices."""
  model = small.vit(REDRAWN)
  images = np.random.default_rng(0).normal(size=(4, 4, 4, 3)).astype(np.float32)
  index = np.arange(4, dtype=np.int32)
  batch = {"image": images, "label": index % 3, "index": index}
  params = draw_variables(model.init, images)["params"]
  plain = lambda key, index, images, labels: (images, jax.nn.one_hot(labels, 3))  # noqa: E731
  sizes = {"num_classes": 3, "decode_size": 4, "image_size": 4, "channels": 3}
  task = Classification(model, plain, lambda images: images, **sizes)

  def matrices(step, batch):
    key = jax.random.fold_in(jax.random.key(0), step)
    _, (sown, _) = task.loss(params, {"intermediates": {}}, {}, batch, key, step)
    blocks = sown["intermediates"]
    return [blocks[f"block_{i}"]["token_mixer"]["attention"][0] for i in range(2)]

  def drawn(devices):
    run = jax.pmap(matrices, AXIS, in_axes=(None, 0), devices=jax.devices()[:devices])
    parts = jax.tree.map(lambda x: x.reshape(devices, -1, *x.shape[1:]), batch)
    return [[np.concatenate(x) for x in run(step, parts)] for step in range(2)]

  one, two = drawn(1), drawn(2)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    np.testing.assert_array_equal(a != 0, b != 0)
    np.testing.assert_allclose(a, b, atol=1e-6)
  assert ((one[0][0] != 0) != (one[1][0] != 0)).any(), "another step draws the same graph"


def test_global_projections_start_as_copies_of_the_local_ones():
  """Their outputs are compared with the published ones in test_golden_transformers.py."""
  module = LongformerAttention(2, window=2, global_projections="separate")
  params = jax.jit(partial(module.init, layout=LAYOUT, train=False))(jax.random.key(0), X)["params"]
  for name in ("query", "key", "value"):
    jax.tree.map(np.testing.assert_array_equal, params[f"{name}_global"], params[name])


def test_without_global_tokens_there_are_no_global_projections():
  module, layout = (
    LongformerAttention(2, window=2, global_projections="separate"),
    TokenLayout((5,)),
  )
  variables = jax.eval_shape(
    partial(module.init, layout=layout, train=False), jax.random.key(0), X[:, :5]
  )
  assert set(variables["params"]) == {"query", "key", "value", "out"}


@pytest.mark.parametrize("layer", [0, 1])
def test_windows_that_do_not_divide_the_grid_have_no_padding_among_their_keys(layer):
  """A grid of 5 x 5 is padded at its end to 6 x 6, then rolled by the shift.

  A window at the border has fewer keys, since the padding is no key.
  """
  module = ShiftedWindowAttention(1, size=3, layer=layer)
  layout = TokenLayout((5, 5))
  shift, rows = layer, np.arange(5)
  window = (rows - shift) % 6 // 3  # the first row of a shifted grid is in the last window
  region = np.where(rows < shift, -1, window)  # apart from the others in that window
  index = np.arange(25)
  row, column = region[index // 5], region[index % 5]
  expected = (row[:, None] == row) & (column[:, None] == column)
  np.testing.assert_array_equal(dense_mask(module.full_pattern(layout), layout, 1)[0], expected)
  assert expected.sum(1).min() == (4 if layer == 0 else 1)
