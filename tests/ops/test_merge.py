"""Partial attentions merge into the whole, with their gradients, even if a part is empty."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from tests.ops import attention_cases as cases
from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.sparse.merge import merge, with_prefix

N = 41


@functools.partial(jax.jit, static_argnames="scale")
def dense(q, k, v, mask, scale=None):
  """Returns out and lse, computed by the whole matrix in JAX, so that they have gradients."""
  out, _ = masked_attention(q, k, v, mask=mask, scale=scale)
  logits = jnp.einsum("bnhd,bmhd->bhnm", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
  seen = jnp.any(mask, axis=-1)
  # A row without edges gets all edges, so that its gradient is not NaN, and is replaced below.
  lse = jax.nn.logsumexp(jnp.where(mask | ~seen[..., None], logits, -jnp.inf), axis=-1)
  return out, jnp.where(seen, lse, -jnp.inf)


def split(edges, count):
  """Returns disjoint masks whose union is `edges`."""
  owner = np.random.default_rng(1).integers(0, count, edges.shape)
  return [edges & (owner == i) for i in range(count)]


def test_merged_parts_equal_the_whole():
  edges = np.random.default_rng(0).random((2, 1, N, N)) < 0.3
  edges[:, :, 5] = False  # a query without keys in any part
  parts = [*split(edges, 3), np.zeros((2, 1, N, N), bool)]
  results = cases.check(
    lambda *x: merge([dense(*x, mask) for mask in parts]),
    cases.inputs(2, N, 2, 16),
    cases.lse_cotangent(2, N, 2),
    mask=edges,
  )
  np.testing.assert_array_equal(results[0][:, 5], 0)
  np.testing.assert_array_equal(results[2][:, 5], 0)


def test_the_order_of_the_parts_changes_nothing():
  q, k, v, _ = cases.inputs(1, N, 2, 16)
  masks = split(np.ones((1, 1, N, N), bool), 2)

  @jax.jit
  def run(q, k, v):
    parts = [dense(q, k, v, mask) for mask in masks]
    return parts[0], merge(parts[:1]), merge(parts), merge(parts[::-1])

  one, alone, there, back = run(q, k, v)
  for a, b in (*zip(alone, one, strict=True), *zip(there, back, strict=True)):
    np.testing.assert_allclose(a, b, atol=1e-6)
  out, lse = run(60 * q, 60 * k, v)[2]  # exponentials of such logits overflow
  expected = cases.masked(60 * q, 60 * k, v)
  np.testing.assert_allclose(out, expected[0], atol=1e-4)
  np.testing.assert_allclose(lse, expected[1], rtol=1e-5)


def test_prefix_is_a_dense_row_and_column():
  prefix, n = 2, 34
  key_mask = cases.seen_keys(2, n)
  key_mask[0, :prefix] = False
  i = np.arange(n)
  edges = (np.abs(i[:, None] - i) <= 3) | (i[:, None] < prefix) | (i < prefix)

  def grid(q, k, v, key_mask, scale):
    return dense(q, k, v, edges[prefix:, prefix:] & key_mask[:, None, None], scale)

  cases.check(
    lambda *x: with_prefix(grid, *x, prefix=prefix, key_mask=key_mask, scale=0.2),
    cases.inputs(2, n, 2, 16),
    cases.lse_cotangent(2, n, 2),
    mask=edges & key_mask[:, None, None],
    scale=0.2,
  )
