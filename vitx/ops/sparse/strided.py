"""Strided attention of the Sparse Transformer (Child et al. 2019, section 4.3) by reshaping.

With the N positions laid out as N/l rows of l, "every l-th position" is a column: dense attention
over the transposed grid, with nothing to gather. The local part, without the column's members, is
block-sparse; the two are merged.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from vitx.ops.kernels import tiling
from vitx.ops.kernels.flash import flash_attention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Strided
from vitx.ops.patterns.base import Pattern
from vitx.ops.sparse.block_mask import BlockMask
from vitx.ops.sparse.block_sparse import block_sparse_attention
from vitx.ops.sparse.merge import merge


@dataclasses.dataclass(frozen=True)
class _OffColumn(Pattern):
  """The local part without its members of the column."""

  local: Strided

  def allows(self, layout, q, k, head=0):
    return self.local.allows(layout, q, k, head) & ((q - k) % self.local.stride != 0)

  def candidates(self, layout, first, last, block, head):
    return self.local.candidates(layout, first, last, block, head)


def strided_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  *,
  stride: int,
  form: str = "paper",
  part: str = "merged",
  key_mask: jax.Array | None = None,
  scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
  """softmax(q kᵀ · scale) v over the edges of `Strided(stride, part, form)` on N positions.

  Args:
    q, k: (B, N, H, D); N need not be a multiple of the stride. No prefix tokens: see
      `merge.with_prefix`.
    v: (B, N, H, E).
    stride: l.
    form: "paper", "code" (both causal), "bidirectional" or "axial", as in `Strided`.
    part: "merged", "local" or "column".
    key_mask: (B, N) boolean, True = may be attended.
    scale: of the logits; none: 1 / sqrt(D).

  Returns:
    out (B, N, H, E) in the dtype of `v`, and lse (B, H, N) float32.

  Raises:
    ConfigError: unknown form or part, or a stride below 1.
  """
  pattern = Strided(stride, part, form)
  parts = []
  if part != "local":
    parts.append(_column(q, k, v, key_mask, scale, stride, pattern.causal))
  if part != "column":
    mask = _local_mask(q.shape[1], stride, form, part == "merged")
    parts.append(block_sparse_attention(q, k, v, mask, key_mask=key_mask, scale=scale))
  return parts[0] if len(parts) == 1 else merge(parts)


@functools.lru_cache(maxsize=64)
def _local_mask(n: int, stride: int, form: str, off_column: bool) -> BlockMask:
  local = Strided(stride, "local", form)
  pattern = _OffColumn(local) if off_column else local
  if form == "axial" and 16 <= stride <= 128:
    block = stride  # a row is then one block
  else:
    # A window of l covers l/b + 1 blocks: small blocks waste less, large ones multiply faster.
    block = next((b for b in (64, 32) if 2 * b <= stride), 16)
  return BlockMask.from_pattern(pattern, TokenLayout((n,)), block, 1)


def _column(q, k, v, key_mask, scale, stride, causal):
  batch, n = q.shape[:2]
  rows = -(-n // stride)

  def columns(x: jax.Array) -> jax.Array:  # (B, N, ...) -> (B·l, N/l, ...)
    x = jnp.swapaxes(tiling.split_rows(x, rows, stride), 1, 2)
    return x.reshape(batch * stride, rows, *x.shape[3:])

  def positions(x: jax.Array) -> jax.Array:  # (B·l, N/l, ...) -> (B, N, ...)
    x = x.reshape(batch, stride, rows, *x.shape[2:])
    return tiling.join_rows(jnp.swapaxes(x, 1, 2), n)

  if key_mask is None and n % stride and not causal:  # padding comes last: causality hides it
    key_mask = jnp.ones((batch, n), bool)
  seen = None if key_mask is None else columns(key_mask)
  q, k, v = map(columns, (q, k, v))
  out, lse = flash_attention(q, k, v, key_mask=seen, scale=scale, causal=causal)
  return positions(out), jnp.swapaxes(positions(jnp.swapaxes(lse, 1, 2)), 1, 2)
