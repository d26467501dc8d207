"""Partial attentions merge into the whole, gradients and empty parts included."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.ops import attention_cases as cases
from vitx.ops.kernels.flash import flash_attention
from vitx.ops.sparse.merge import merge, with_prefix

N = 41


def split(edges, count):
  """Disjoint masks whose union is `edges`."""
  owner = np.random.default_rng(1).integers(0, count, edges.shape)
  return [jnp.asarray(edges & (owner == i)) for i in range(count)]


def test_parts_make_the_whole():
  q, k, v, d_out = cases.inputs(2, N, 2, 16)
  d_lse = jax.random.normal(jax.random.key(3), (2, 2, N))
  edges = np.random.default_rng(0).random((2, 1, N, N)) < 0.3
  edges[:, :, 5] = False  # a query that no part lets see
  parts = [*split(edges, 3), jnp.zeros((2, 1, N, N), bool)]

  def merged(q, k, v):
    return merge([cases.masked(q, k, v, mask) for mask in parts])

  found = cases.everything(merged, q, k, v, d_out, d_lse)
  whole = cases.everything(lambda *x: cases.masked(*x, edges), q, k, v, d_out, d_lse)
  cases.assert_close(found, whole)
  np.testing.assert_array_equal(found[0][:, 5], 0)
  np.testing.assert_array_equal(found[2][:, 5], 0)


def test_one_part_and_order():
  q, k, v, _ = cases.inputs(1, N, 2, 16)
  parts = [cases.masked(q, k, v, mask) for mask in split(np.ones((1, 1, N, N), bool), 2)]
  for a, b in zip(merge(parts[:1]), parts[0], strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)
  for a, b in zip(merge(parts), merge(parts[::-1]), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_large_logits_do_not_overflow():
  q, k, v, _ = cases.inputs(1, N, 1, 16)
  parts = split(np.ones((1, 1, N, N), bool), 2)
  out, lse = merge([cases.masked(60 * q, 60 * k, v, mask) for mask in parts])
  expected = cases.masked(60 * q, 60 * k, v)
  np.testing.assert_allclose(out, expected[0], atol=1e-4)
  np.testing.assert_allclose(lse, expected[1], rtol=1e-5)


def test_bfloat16_keeps_its_dtype():
  q, k, v, _ = cases.inputs(1, N, 1, 16, dtype=jnp.bfloat16)
  out, lse = merge([flash_attention(q, k, v)] * 1)
  assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)


def test_prefix_is_a_dense_row_and_column():
  prefix, n = 2, 34
  q, k, v, d_out = cases.inputs(2, n, 2, 16)
  d_lse = jax.random.normal(jax.random.key(3), (2, 2, n))
  key_mask = jax.random.bernoulli(jax.random.key(7), 0.7, (2, n)).at[0, :prefix].set(False)
  i = np.arange(n)
  edges = (np.abs(i[:, None] - i) <= 3) | (i[:, None] < prefix) | (i < prefix)
  window = edges[prefix:, prefix:]

  def grid(q, k, v, key_mask, scale):
    return cases.masked(q, k, v, window & key_mask[:, None, None], scale)

  def kernel(q, k, v):
    return with_prefix(grid, q, k, v, prefix=prefix, key_mask=key_mask, scale=0.2)

  def reference(q, k, v):
    return cases.masked(q, k, v, edges & key_mask[:, None, None], 0.2)

  found = cases.everything(kernel, q, k, v, d_out, d_lse)
  cases.assert_close(found, cases.everything(reference, q, k, v, d_out, d_lse))


def test_no_prefix_is_the_grid_alone():
  q, k, v, _ = cases.inputs(1, N, 1, 16)
  for a, b in zip(
    with_prefix(flash_attention, q, k, v, prefix=0), flash_attention(q, k, v), strict=True
  ):
    np.testing.assert_array_equal(a, b)
