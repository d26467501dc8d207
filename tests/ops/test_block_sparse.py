"""Block-sparse attention equals softmax under its edges, and its cost follows their number."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from vitx.analysis.cost import flops
from vitx.ops.kernels import tiling
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Global, Window
from vitx.ops.patterns.base import Pattern
from vitx.ops.sparse.block_mask import BlockMask
from vitx.ops.sparse.block_sparse import block_sparse_attention, block_sparse_attention_dynamic
from vitx.ops.sparse.rows import class_widths

pytestmark = pytest.mark.slow  # compiles dozens of programs: minutes in all


class Listed(Pattern):
  """A pattern with the edges of a dense array, bool (G, N, N)."""

  def __init__(self, edges):
    object.__setattr__(self, "edges", edges)

  @property
  def head_period(self):
    return self.edges.shape[0]

  def allows(self, layout, q, k, head=0):
    return self.edges[head, q, k]


def ragged_edges(layouts, n, block, seed=0):
  """Draws full, partial and missing blocks, a long row and column, and rows without any edge."""
  rng = np.random.default_rng(seed)
  blocks = -(-n // block)
  kind = rng.choice(3, (layouts, blocks, blocks), p=[0.7, 0.15, 0.15])
  kind[:, 0], kind[:, :, 1] = 1, 1
  wide = np.kron(kind, np.ones((block, block), int))[:, :n, :n]
  edges = (wide == 1) | ((wide == 2) & (rng.random((layouts, n, n)) < 0.5))
  edges[:, n // 2 : n // 2 + 3] = False
  return edges


@functools.cache
def block_mask(layouts, n, block):
  edges = ragged_edges(layouts, n, block)
  return BlockMask.from_pattern(Listed(edges), TokenLayout((n,)), block, layouts), edges


@pytest.mark.parametrize(
  ("n", "block", "dim", "layouts", "step"),
  [
    (65, 16, 32, 1, 1 << 14),  # a step computes a part of an example
    (65, 16, 32, 2, 1 << 14),
    (65, 64, 64, 2, 1 << 20),
    (197, 16, 64, 2, 1 << 20),
    (197, 64, 32, 1, 1 << 18),
    (530, 16, 32, 1, 1 << 20),
  ],
)
def test_attention_equals_the_reference(n, block, dim, layouts, step, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", step)
  mask, edges = block_mask(layouts, n, block)
  kernel = functools.partial(block_sparse_attention, mask=mask)
  d_lse = cases.lse_cotangent(2, n, 2)
  out, lse, dq, *_ = cases.check(kernel, cases.inputs(2, n, 2, dim), d_lse, mask=edges[None])
  empty = slice(n // 2, n // 2 + 3)
  np.testing.assert_array_equal(out[:, empty], 0)
  np.testing.assert_array_equal(lse[:, :, empty], -np.inf)
  np.testing.assert_array_equal(dq[:, empty], 0)


@pytest.mark.parametrize(("n", "block", "layouts"), [(65, 16, 2), (128, 64, 1)])
def test_hidden_keys_contribute_exactly_nothing(n, block, layouts):
  mask, edges = block_mask(layouts, n, block)
  q, k, v, d_out = cases.inputs(2, n, 2, 32)
  key_mask = cases.seen_keys(2, n, 0.6)
  run = cases.program(functools.partial(block_sparse_attention, mask=mask, key_mask=key_mask))
  results = run(q, k, v, d_out)
  seen = edges[None] & key_mask[:, None, None]
  cases.assert_close(results, cases.reference(q, k, v, d_out, mask=seen))
  hidden = ~key_mask
  for grad in results[3:]:
    np.testing.assert_array_equal(grad[hidden], 0)
  k[hidden] *= -3
  v[hidden] += 5
  for a, b in zip(results, run(q, k, v, d_out), strict=True):
    np.testing.assert_array_equal(a, b)


def test_attention_works_without_jit_and_under_vmap_and_pmap():
  mask, _ = block_mask(2, 65, 16)
  arrays = cases.inputs(2, 65, 2, 32)

  def grads(q, k, v, d_out):
    (out, lse), vjp = jax.vjp(lambda *x: block_sparse_attention(*x, mask), q, k, v)
    return out, lse, *vjp((d_out, jnp.zeros_like(lse)))

  run = jax.jit(grads)
  expected = run(*arrays)
  for a, b in zip(run(*arrays), expected, strict=True):
    np.testing.assert_array_equal(a, b)  # without scatters, each run gives these bits
  single = [x[:, None] for x in arrays]
  for mapped in (jax.jit(jax.vmap(grads))(*single), jax.pmap(grads)(*single)):
    for a, b in zip(mapped, expected, strict=True):
      np.testing.assert_allclose(a[:, 0], b, atol=2e-6)
  small, mask = cases.inputs(1, 16, 1, 8)[:3], growing(16)  # without jit, each op is a program
  for a, b in zip(block_sparse_attention(*small, mask), cases.masked(*small), strict=True):
    np.testing.assert_allclose(a, b, atol=2e-6)


def drawn(layouts, n, block, count):
  """Returns (indices, valid) and the dense edges; some blocks are read often and some never."""
  rng = np.random.default_rng(3)
  blocks = -(-n // block)
  skewed = rng.random((layouts, blocks, blocks)) ** np.linspace(0.3, 3, blocks)
  indices = np.argsort(skewed, axis=-1)[..., :count]
  valid = rng.random(indices.shape) < 0.8
  valid[:, 1] = False
  edges = np.zeros((layouts, blocks, blocks), bool)
  np.put_along_axis(edges, indices, valid, axis=-1)
  return indices, valid, np.kron(edges, np.ones((block, block), bool))[:, :n, :n]


@pytest.mark.parametrize(
  ("n", "block", "layouts", "count", "step"),
  [
    (96, 16, 1, 3, 1 << 13),
    (197, 16, 2, 4, 1 << 20),
    (96, 8, 1, 5, 1 << 12),
    (65, 64, 1, 1, 1 << 20),
  ],
)
def test_lists_may_be_known_only_at_run_time(n, block, layouts, count, step, monkeypatch):
  monkeypatch.setattr(tiling, "CPU_STEP_BYTES", step)
  indices, valid, edges = drawn(layouts, n, block, count)
  key_mask = cases.seen_keys(2, n, 0.8)
  arrays, d_lse = (*cases.inputs(2, n, 2, 16),), cases.lse_cotangent(2, n, 2)

  @jax.jit
  def run(indices, valid, q, k, v):
    def function(q, k, v):
      return block_sparse_attention_dynamic(q, k, v, indices, valid, block, key_mask=key_mask)

    outputs, pull = jax.vjp(function, q, k, v)
    return *outputs, *pull((arrays[3], d_lse))

  results = run(indices, valid, *arrays[:3])
  seen = edges[None] & key_mask[:, None, None]
  cases.assert_close(results, cases.reference(*arrays, d_lse, mask=seen))


def test_no_choice_of_widths_pads_less():
  assert class_widths(np.array([0, 0])) == []
  assert class_widths(np.array([4, 4, 0, 4])) == [4]
  assert class_widths(np.array([3] * 60 + [4] * 2 + [64])) == [3, 4, 64]
  assert class_widths(np.array([2, 2, 3, 4, 64])) == [2, 4, 64]
  # Brute force: no choice of widths pads less.
  lengths = np.random.default_rng(0).integers(1, 12, 40)

  def cost(widths):
    return sum(min(w for w in widths if w >= n) for n in lengths)

  top = int(lengths.max())
  best = min(cost((a, b, top)) for a in range(1, top + 1) for b in range(a, top + 1))
  assert cost(class_widths(lengths)) == best


def growing(n):
  layout = TokenLayout((n,))
  pattern = Window(1, block=64) | Global(blocks=(0,), block=64)
  return BlockMask.from_pattern(pattern, layout, 64, 1)


def test_small_blocks_save_two_products_of_nine():
  mask, _ = block_mask(1, 197, 16)
  work = []
  kernel = functools.partial(block_sparse_attention, mask=mask)
  for dim in (16, 32):
    work.append(flops(cases.gradients(kernel), *cases.floats(*[(1, 197, 2, dim)] * 3)) / dim)
  np.testing.assert_allclose(work[1] / work[0], 7 / 9, atol=0.02)
