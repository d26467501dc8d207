"""Relative bias equals a bias added to the logits."""

import itertools

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.drawn import draw_variables
from vitx.attention.grid import ShiftedWindowAttention
from vitx.attention.longformer import LongformerAttention
from vitx.attention.softmax import SoftmaxAttention
from vitx.config.errors import ConfigError
from vitx.ops import relative_bias
from vitx.ops.layout import TokenLayout

LAYOUT = TokenLayout((3, 5), prefix=2)
X = np.random.default_rng(0).normal(size=(2, LAYOUT.length, 8)).astype(np.float32)


def logits_with(tables, places):
  """Returns the logits that the bias adds to q kᵀ · scale, when it is folded into q and k."""
  random = np.random.default_rng(1)
  q, k = random.normal(size=(2, 1, LAYOUT.length, 2, 4)).astype(np.float32)
  wide = jax.jit(lambda *x: relative_bias.fold_bias_into_qk(*x, places, 0.3))(q, k, tables)
  logits = np.einsum("bnhd,bmhd->bhnm", *wide) * 0.3
  return logits - np.einsum("bnhd,bmhd->bhnm", q, k) * 0.3


def coordinates(token):
  return None if token < LAYOUT.prefix else divmod(token - LAYOUT.prefix, LAYOUT.grid[1])


def test_the_axial_bias_is_the_entry_of_the_table_at_the_difference():
  places = relative_bias.axial_places(LAYOUT)
  shapes = [(2, *relative_bias.table_shape(extents)) for extents, _ in places]
  assert shapes == [(2, 5), (2, 9)]
  tables = [
    np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate(shapes)
  ]
  logits = logits_with(tables, places)
  for head, i, j in itertools.product(range(2), *[range(LAYOUT.length)] * 2):
    a, b = coordinates(i), coordinates(j)
    expected = 0.0
    if a and b:
      expected = tables[0][head, a[0] - b[0] + 2] + tables[1][head, a[1] - b[1] + 4]
    np.testing.assert_allclose(logits[0, head, i, j], expected, atol=2e-6)


@pytest.mark.parametrize("layer", [0, 1])
def test_the_window_bias_is_the_table_of_swin_inside_every_window(layer):
  module = ShiftedWindowAttention(2, size=3, layer=layer, relative_bias="window")
  places = module.places(LAYOUT)
  table = np.random.default_rng(1).normal(size=(2, 5, 5)).astype(np.float32)
  logits = logits_with([table], places)
  index = np.arange(LAYOUT.length)
  allowed = module.full_pattern(LAYOUT).allows(LAYOUT, index[:, None], index)
  seen = 0
  for i, j in itertools.product(range(LAYOUT.length), repeat=2):
    a, b = coordinates(i), coordinates(j)
    if allowed[i, j]:
      expected = table[:, a[0] - b[0] + 2, a[1] - b[1] + 2] if a and b else np.zeros(2)
      np.testing.assert_allclose(logits[0, :, i, j], expected, atol=2e-6)
      seen += bool(a and b)
  assert seen > LAYOUT.length


def test_the_bias_starts_at_zero():
  module = ShiftedWindowAttention(2, size=3, relative_bias="window")
  params = jax.jit(lambda key: module.init(key, X, LAYOUT, train=False))(jax.random.key(0))
  np.testing.assert_array_equal(params["params"]["relative_bias_0"], 0)


def test_separate_projections_share_the_tables():
  module = LongformerAttention(2, global_projections="separate", relative_bias="axial")
  variables = draw_variables(lambda *x: module.init(*x, LAYOUT, train=False), X)
  tables = {name for name in variables["params"] if name.startswith("relative_bias")}
  assert tables == {"relative_bias_0", "relative_bias_1"}

  @jax.jit
  def both(variables):
    names = ("masked", "kernelized")
    kinds = [module.clone(implementation=name) for name in names]
    return [kind.apply(variables, X, LAYOUT, train=False) for kind in kinds]

  np.testing.assert_allclose(*both(variables), atol=1e-5)


def test_a_table_of_another_grid_is_refused():
  module = SoftmaxAttention(2, relative_bias="axial")
  shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), X, LAYOUT, train=False))
  with pytest.raises(ConfigError, match="relative_bias_0"):
    apply = lambda p: module.apply(p, X, TokenLayout((5, 3), prefix=2), train=False)  # noqa: E731
    jax.eval_shape(apply, shapes)


@pytest.mark.parametrize("fields", [{"rotary": "axial"}, {"relative_bias": "axial"}])
def test_positions_at_some_tokens_equal_positions_at_all_tokens(fields):
  """Queries and keys computed at some places equal those of the call with all tokens.

  A decoder needs this, since it knows the places of its tokens only at run time.
  """

  class Parts(SoftmaxAttention):
    @nn.compact
    def __call__(self, x, layout, at=None):
      q, k, _ = self.project(x)
      return self.apply_positions(q, k, layout, 0.5, at=at)

  module, at = Parts(2, **fields), np.array([5, 0, 7])
  init = lambda x: module.init(jax.random.key(0), x, LAYOUT)  # noqa: E731
  random = np.random.default_rng(2)
  draw = lambda p: random.normal(size=p.shape).astype(p.dtype)  # noqa: E731
  variables = jax.tree.map(draw, jax.eval_shape(init, X))

  @jax.jit
  def both(variables, x, at):
    return module.apply(variables, x, LAYOUT), module.apply(variables, x[:, at], LAYOUT, at)

  for a, b in zip(*both(variables, X, at), strict=True):
    np.testing.assert_allclose(np.asarray(a)[:, at], b, rtol=1e-5, atol=1e-5)
