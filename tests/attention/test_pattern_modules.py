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
from vitx.tasks.classification import Classification
from vitx.training.parallel import AXIS

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


def separate(**fields):
  return LongformerAttention(
    2, window=2, global_tokens=(5, -2), global_projections="separate", **fields
  )


@pytest.mark.slow
def test_global_tokens_attend_by_their_own_projections():
  """The expected output is computed from two sets of projections, local and global.

  Local queries have a softmax over window and global keys; global queries attend all keys.
  """
  module = separate()

  def run(key):
    params = module.init(key, X, LAYOUT, train=False)["params"]
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    moved = [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    moved = jax.tree.unflatten(tree, moved)
    outs = [
      module.clone(implementation=name).apply({"params": moved}, X, LAYOUT, train=False)
      for name in ("masked", "kernelized")
    ]
    return params, moved, outs

  params, moved, outs = jax.device_get(jax.jit(run, compiler_options=QUICK)(jax.random.key(0)))
  for name in ("query", "key", "value"):  # as published, global ones start as copies of local ones
    for part in ("kernel", "bias"):
      np.testing.assert_array_equal(params[f"{name}_global"][part], params[name][part])

  def projected(name):
    return np.einsum("bnc,chd->bnhd", X, moved[name]["kernel"]) + moved[name]["bias"]

  def softmax(q, k, v, allowed):
    logits = np.einsum("bnhd,bmhd->bhnm", q, k) / 2
    weights = np.where(allowed, np.exp(logits), 0)
    return np.einsum("bhnm,bmhd->bnhd", weights / weights.sum(-1, keepdims=True), v)

  index = np.arange(LAYOUT.length)
  chosen = np.array([0, 5, LAYOUT.length - 2])
  is_global = np.isin(index, chosen)
  near = (np.abs(index[:, None] - index) <= 2) & (index[:, None] > 0) & (index > 0)
  local = softmax(*map(projected, ("query", "key", "value")), near | is_global)
  own = softmax(*map(projected, ("query_global", "key_global", "value_global")), True)
  mixed = np.where(is_global[:, None, None], own, local)
  expected = np.einsum("bnhd,hdc->bnc", mixed, moved["out"]["kernel"]) + moved["out"]["bias"]
  for out in outs:
    np.testing.assert_allclose(out, expected, atol=2e-5)


@pytest.mark.slow
def test_extra_tokens_of_a_model_are_the_global_tokens_of_etc():
  mixer = {"name": "bigbird", "block": 4, "random": 1, "variant": "R+W", "prefix_global": True}

  def build(implementation):
    return small.vit({**mixer, "implementation": implementation}, extra_tokens=3, pool="mean")

  images = np.random.default_rng(0).normal(size=(2, 4, 8, 3)).astype(np.float32)

  def run(key):
    variables = build("masked").init(key, images)
    head = {"kernel": jax.random.normal(key, (8, 3)), "bias": jnp.zeros(3)}
    variables = {"params": {**variables["params"], "head": head}}
    logits, sown = build("masked").apply(variables, images, mutable=["intermediates"])
    return variables, logits, build("kernelized").apply(variables, images), sown["intermediates"]

  variables, masked, kernelized, sown = jax.jit(run, compiler_options=QUICK)(jax.random.key(0))
  assert variables["params"]["extra"].shape == (1, 3, 8)
  np.testing.assert_allclose(masked, kernelized, atol=1e-5)
  edges = np.asarray(sown["block_0"]["token_mixer"]["attention"][0]) != 0
  assert edges.shape == (2, 2, 35, 35)
  assert edges[:, :, :3].all() and edges[..., :3].all()
  # Blocks are counted from the first token of the grid.
  grid = edges[:, :, 3:, 3:].reshape(2, 2, 8, 4, 8, 4)
  np.testing.assert_array_equal(grid.any(axis=(3, 5)), grid.all(axis=(3, 5)))
  assert not grid.all()


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
