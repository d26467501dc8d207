"""Attention on a TPU by the splash kernel that ships with jax, which skips blocks without edges.

The kernel takes static patterns, dense and causal included, in float32 and bfloat16. Calls with a
key mask or with a pattern known only at run time use vitx's own block-sparse attention instead. So
do patterns with many different partly filled blocks, such as graphs of random tokens: the kernel
stores every different partly filled block as 128 x 128 elements of 32 bits.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.shapes import Array, Float
from vitx.ops.sparse.attend import block_mask
from vitx.ops.sparse.block_mask import BlockMask, remember

BLOCK = 128  # tokens: the lanes of a TPU
# A head may have DIFFERENT_BLOCKS different partly filled blocks for each row of blocks, or
# FEW_BLOCKS in all if that is more. Regular patterns have up to 3 in a row; random tokens fill it.
DIFFERENT_BLOCKS = 4
FEW_BLOCKS = 64
LONGEST = 2**16  # the largest N; the kernel's table of block pairs stays below 2 MB a head
DTYPES = (jnp.float32, jnp.bfloat16)


def applies(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H E"],
  pattern: Pattern,
  layout: TokenLayout,
) -> bool:
  """Returns whether the kernel supports q, k, v (B, N, H, D) and a pattern.

  Args:
    q, k, v: The queries, keys and values.
    pattern: The pattern of one layer.
    layout: The layout of the N tokens.
  """
  same_dtype = q.dtype == k.dtype == v.dtype and q.dtype in DTYPES
  if not same_dtype or not q.shape[1] == k.shape[1] <= LONGEST or pattern.is_drawn:
    return False
  blocks = block_mask(pattern, layout, BLOCK, q.shape[2])
  most_tables = max(FEW_BLOCKS, DIFFERENT_BLOCKS * blocks.rows)
  return blocks.tables.shape[0] <= blocks.heads * most_tables


def splash_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H E"],
  pattern: Pattern,
  layout: TokenLayout,
  *,
  scale: float | None = None,
  interpret: bool = False,
) -> Float[Array, "B N H E"]:
  """Computes softmax(q kᵀ · scale) v over the edges of a static pattern.

  Args:
    q, k: The queries and the keys, (B, N, H, D), float32 or bfloat16.
    v: The values, (B, N, H, E).
    pattern: The pattern of one layer.
    layout: The layout of the N tokens.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    interpret: Whether to run the kernel step by step on any device, for tests.

  Returns:
    The output (B, N, H, E) in the dtype of `v`. A query without edges has output 0 and no gradient.
  """
  n, heads = q.shape[1:3]
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  kernel, seeing = _make(pattern, layout, heads, interpret)
  if kernel is None:
    return jnp.zeros(v.shape, v.dtype)
  padding = [(0, 0), (0, 0), (0, -n % BLOCK), (0, 0)]
  q = (q.astype(jnp.float32) * scale).astype(q.dtype)
  q, k, v = (jnp.pad(jnp.swapaxes(x, 1, 2), padding) for x in (q, k, v))
  padded: Any = jax.vmap(kernel)(q, k, v)
  out = jnp.swapaxes(padded[:, :, :n], 1, 2)
  # The kernel gives a query without edges the mean of all values.
  return out if seeing is None else jnp.where(seeing, out, jnp.zeros_like(out))


@remember(64)
def _make(
  pattern: Pattern, layout: TokenLayout, heads: int, interpret: bool
) -> tuple[kernels.SplashAttentionKernel | None, np.ndarray | None]:
  """Returns the kernel, and a mask (N, H or 1, 1) that is True for queries with edges.

  The mask is `None` if every query has an edge. For a pattern without any edge the kernel is
  `None`, because it would leave its results unwritten.
  """
  blocks = block_mask(pattern, layout, BLOCK, heads)
  if not blocks.keys.size:
    return None, None
  tiles = [Tiles(blocks, head) for head in range(blocks.heads)]
  mask = masks.MultiHeadMask([tiles[head % blocks.heads] for head in range(heads)])
  with jax.ensure_compile_time_eval():  # the kernel is cached, so it must contain no tracer
    kernel = kernels.make_splash_mha_single_device(mask=mask, interpret=interpret)
  seeing = np.zeros((blocks.heads * blocks.rows, BLOCK), bool)
  np.logical_or.at(seeing, blocks.queries, blocks.tables.any(axis=2)[blocks.table])
  seeing = seeing.reshape(blocks.heads, -1)[:, : blocks.length].T[:, :, None]
  return kernel, None if seeing.all() else seeing


class Tiles(masks.Mask):
  """The edges of one head as the kernel's mask, with N rounded up to whole blocks.

  Indexing builds the elements of the blocks."""

  def __init__(self, blocks: BlockMask, head: int) -> None:
    self._blocks, self._head = blocks, head
    start, stop = blocks.offsets[[head * blocks.rows, (head + 1) * blocks.rows]]
    span = slice(start, stop)
    pairs = zip(blocks.queries[span] % blocks.rows, blocks.keys[span], strict=True)
    self._table = dict(zip(((int(q), int(k)) for q, k in pairs), blocks.table[span], strict=True))

  @property
  def shape(self) -> tuple[int, ...]:
    """Returns the shape of the matrix that the kernel works on."""
    return (self._blocks.rows * self._blocks.block,) * 2

  def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
    """Returns the edges, bool (q, k), for slices that begin and end with a block."""
    (first, last), (left, right) = (
      (part.start // self._blocks.block, part.stop // self._blocks.block) for part in index
    )
    return np.block([[self._tile(q, k) for k in range(left, right)] for q in range(first, last)])

  def _tile(self, q: int, k: int) -> np.ndarray:
    size, number = self._blocks.block, self._table.get((q, k))
    if number is None:
      return np.zeros((size, size), bool)
    tile = self._blocks.tables[number]
    if number:
      return tile
    inside = np.arange(size)  # a full block may reach beyond token N
    n = self._blocks.length
    return tile & (q * size + inside < n)[:, None] & (k * size + inside < n)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Tiles) and (self._blocks, self._head) == (other._blocks, other._head)

  def __hash__(self) -> int:
    return hash((self._blocks, self._head))
