"""Softmax attention along the edges of a pattern: masked or block-sparse, the same result."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from vitx.ops.block_mask import BlockMask
from vitx.ops.block_sparse import block_sparse_attention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern
from vitx.ops.softmax import masked_attention


@functools.lru_cache(maxsize=64)
def block_mask(pattern: Pattern, layout: TokenLayout, tile: int, num_heads: int) -> BlockMask:
  """`BlockMask.from_pattern`, remembered: every layer of a model asks for the same few."""
  return BlockMask.from_pattern(pattern, layout, tile, num_heads)


def dense_mask(pattern: Pattern, layout: TokenLayout, num_heads: int) -> np.ndarray:
  """The edges as an array, for the masked path, tests and pictures.

  Returns:
    bool (G, N, N), True = query may attend key; G is 1 if the heads do not differ, else H.
  """
  heads = 1 if pattern.head_period == 1 else num_heads
  head, q, k = np.ogrid[:heads, : layout.length, : layout.length]
  return np.broadcast_to(pattern.allows(layout, q, k, head), (heads, *2 * (layout.length,)))


def masked_pattern_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  pattern: Pattern,
  layout: TokenLayout,
  *,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
  dropout_rate: float = 0.0,
  key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The reference, with the N x N matrix.

  Args:
    q, k, v: (B, N, H, D).
    pattern: of this layer.
    layout: of the N tokens.
    key_mask: boolean (B, N), True = may be attended.
    scale: of the logits; none: 1 / sqrt(D).
    dropout_rate: of the probabilities.
    key: for the dropout.

  Returns:
    The output (B, N, H, D) and the probabilities (B, H, N, N) in float32. A query without edges has
    output 0.
  """
  mask = jnp.asarray(dense_mask(pattern, layout, q.shape[2]))[None]
  if key_mask is not None:
    mask = mask & key_mask[:, None, None, :]
  return masked_attention(q, k, v, mask=mask, scale=scale, dropout_rate=dropout_rate, key=key)


def sparse_pattern_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  pattern: Pattern,
  layout: TokenLayout,
  *,
  tile: int = 64,
  key_mask: jax.Array | None = None,
  scale: float | None = None,
) -> jax.Array:
  """The same with work and memory in proportion to the tiles that hold edges.

  Args:
    tile: tokens in a block of the kernel; any number, the pattern's own block size is best.

  Returns:
    The output (B, N, H, D).
  """
  mask = block_mask(pattern, layout, tile, q.shape[2])
  return block_sparse_attention(q, k, v, mask, key_mask=key_mask, scale=scale)[0]
