"""Block-sparse attention, with work and memory in proportion to the blocks that contain edges."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.kernels import tiling
from vitx.ops.shapes import Array, Bool, Float, Int
from vitx.ops.sparse import executor as xla
from vitx.ops.sparse import rows, triton_attention
from vitx.ops.sparse.block_mask import BlockMask


def block_sparse_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H E"],
  mask: BlockMask,
  *,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
) -> tuple[Float[Array, "B N H E"], Float[Array, "B H N"]]:
  """Computes softmax(q kᵀ · scale) v over the edges of `mask`.

  Args:
    q, k: The queries and the keys, (B, N, H, D).
    v: The values, (B, N, H, E).
    mask: The edges, which are known before the call. Its number of heads is 1 or H.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and lse (B, H, N) float32, the logarithm of each
    query's sum of exponentials. A query without edges has output 0, lse -inf and no gradient. Both
    results may be differentiated.
  """
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  return _attend(q, k, v, key_mask, None, mask, mask.block, scale)


def block_sparse_attention_dynamic(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H E"],
  indices: Int[Array, "G R K"],
  valid: Bool[Array, "G R K"],
  block: int,
  *,
  key_mask: Bool[Array, "B N ..."] | None = None,
  scale: float | None = None,
) -> tuple[Float[Array, "B N H E"], Float[Array, "B H N"]]:
  """Computes softmax(q kᵀ · scale) v over whole blocks that are known only at run time.

  Args:
    q, k: The queries and the keys, (B, N, H, D).
    v: The values, (B, N, H, E).
    indices: The key blocks that each query block reads, int (G, R, K), R = ceil(N / block), none
      twice; G is 1 or H.
    valid: A mask (G, R, K), False where an index only fills the array.
    block: The number b of tokens in a block.
    key_mask: A boolean mask (B, N) or (B, N, H), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and lse (B, H, N) float32, the logarithm of each
    query's sum of exponentials. A query without edges has output 0, lse -inf and no gradient. Both
    results may be differentiated.
  """
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  return _attend(q, k, v, key_mask, (indices, valid), None, block, scale)


# This function and its gradient choose the lowering: Triton's kernels in programs for CUDA devices
# on which they run, and `executor` everywhere else.
@partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(q, k, v, key_mask, drawn, mask: BlockMask | None, block: int, scale: float):
  """Computes attention along a static mask, or along lists of blocks known only at run time."""

  def by_xla(arrays, drawn):
    (by_query, _), layout = _list_rows(mask, drawn, block)
    return xla.forward(arrays, by_query, layout, scale)

  kernel = _kernel(triton_attention.forward, q, k, v, mask, block, scale)
  arrays = (q, k, v, key_mask)
  if kernel is None:
    out, lse = by_xla(arrays, drawn)
  else:
    out, lse = triton_attention.on_cuda(kernel, by_xla, arrays, drawn)
  return out, jnp.swapaxes(lse, 1, 2)


def _forward(q, k, v, key_mask, drawn, mask, block, scale):
  out, lse = _attend(q, k, v, key_mask, drawn, mask, block, scale)
  return (out, lse), (q, k, v, key_mask, drawn, out, lse)


def _backward(mask, block, scale, saved, cotangents):
  q, k, v, key_mask, drawn, out, lse = saved
  d_out, d_lse = cotangents
  lse, d_lse = (jnp.swapaxes(x, 1, 2) for x in (lse, d_lse))  # (B, N, H)
  lse, delta = tiling.backward_statistics(out, lse, d_out, d_lse)
  arrays = (q, k, v, key_mask, d_out, lse, delta)
  return *_gradients(arrays, drawn, mask, block, scale), None, None


def _gradients(arrays, drawn, mask: BlockMask | None, block: int, scale: float):
  """Returns the gradients of q, k and v; the arguments are those of `triton_attention.backward`."""

  def by_xla(arrays, drawn):
    (by_query, by_key), layout = _list_rows(mask, drawn, block)
    return xla.backward(arrays, by_query, by_key, layout, scale)

  q, k, v = arrays[:3]
  kernel = _kernel(triton_attention.backward, q, k, v, mask, block, scale)
  if kernel is None:
    return by_xla(arrays, drawn)

  @jax.custom_vjp
  def gradients(arrays, drawn):
    return triton_attention.on_cuda(kernel, by_xla, arrays, drawn)

  def pull(saved, cotangents):  # a kernel has no derivative, and XLA's operations have one
    arrays, drawn = saved
    _, back = jax.vjp(
      lambda *floats: by_xla((*floats[:3], arrays[3], *floats[3:]), drawn), *arrays[:3], *arrays[4:]
    )
    grads = back(cotangents)
    return (*grads[:3], None, *grads[3:]), None

  gradients.defvjp(lambda arrays, drawn: (gradients(arrays, drawn), (arrays, drawn)), pull)
  return gradients(arrays, drawn)


def _kernel(function: Callable, q, k, v, mask: BlockMask | None, block: int, scale: float):
  """Binds the settings of `function`, which calls Triton's kernels; `None` if XLA must be used."""
  tiles = triton_attention.find_tiles(q, k, v)
  if tiles is None or block > tiles.block:
    return None
  return partial(function, mask=mask, block=block, scale=scale, tiles=tiles)


def _list_rows(
  mask: BlockMask | None, drawn: tuple[jax.Array, jax.Array] | None, block: int
) -> tuple[tuple[rows.MaskSide, rows.MaskSide], xla.Layout]:
  """Returns the rows of the query blocks and of the key blocks, and the layout for `executor`."""
  if mask is None:
    assert drawn is not None
    heads, count, _ = drawn[0].shape
    layout = xla.Layout(heads, count, block, True)
    return rows.drawn_sides(*drawn), layout
  sides = rows.sides(mask)
  dead = any(side.is_padded for side in sides)
  return sides, xla.Layout(mask.heads, mask.rows, mask.block, dead, jnp.asarray(mask.tables))


_attend.defvjp(_forward, _backward)
