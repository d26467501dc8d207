"""Softmax attention inside and between neighboring blocks of a sequence."""

from typing import Any

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_inputs
from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.kernels.tiling import join_rows, split_rows


def local_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  window: int,
  *,
  key_mask: jax.Array | None = None,
  causal: bool = False,
  implementation: str = "auto",
) -> tuple[jax.Array, jax.Array | None]:
  """Attends inside and between neighboring blocks of a sequence, as Performer's local heads do.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    window: The number of tokens per block.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    causal: Whether a token sees neither the block after its own nor later tokens in its own.
    implementation: The path to take: "masked", "kernelized" (linear in N) or "auto", which follows
      the rule of `linear_attention`, because these heads run beside its heads.

  Returns:
    The output (B, N, H, D), and on the masked path the matrix (B, H, N, N) in float32, else `None`.

  Raises:
    ConfigError: The implementation is unknown.
  """
  check_inputs(q, k, v, key_mask, same_length=True)
  given: dict[str, Any] = {"mask": key_mask, "causal": causal}
  picked = resolve_implementation("local_attention", implementation, "linear", q.shape)
  if picked == "masked":
    return masked_local_attention(q, k, v, window, **given)
  return kernelized_local_attention(q, k, v, window, **given), None


def block_local_mask(length: int, window: int, *, causal: bool = False) -> jax.Array:
  """Returns a mask by which a token attends its own block and the two blocks beside it.

  Args:
    length: The number N of tokens.
    window: The number of tokens per block.
    causal: Whether to leave out the block after and, within the own block, later tokens.

  Returns:
    A boolean mask (N, N), True = may attend.
  """
  token = jnp.arange(length)
  block = token // window
  near = jnp.abs(block[:, None] - block[None, :]) <= 1
  return near & (token[:, None] >= token[None, :]) if causal else near


def masked_local_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  window: int,
  *,
  mask: jax.Array | None = None,
  causal: bool = False,
) -> tuple[jax.Array, jax.Array]:
  """Computes the softmax under `block_local_mask`, with the N x N matrix in memory.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    window: The number of tokens per block.
    mask: A boolean mask (B, N), True = may be attended, or `None`.
    causal: Whether a token sees neither the block after its own nor later tokens in its own.

  Returns:
    The output (B, N, H, D) and the matrix (B, H, N, N) in float32.
  """
  allowed = block_local_mask(q.shape[1], window, causal=causal)[None, None]
  if mask is not None:
    allowed = allowed & mask[:, None, None, :]
  return masked_attention(q, k, v, mask=allowed)


def kernelized_local_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  window: int,
  *,
  mask: jax.Array | None = None,
  causal: bool = False,
) -> jax.Array:
  """Computes local attention block by block: each block of queries against three blocks of keys.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    window: The number of tokens per block.
    mask: A boolean mask (B, N), True = may be attended, or `None`.
    causal: Whether a token sees neither the block after its own nor later tokens in its own.

  Returns:
    The output (B, N, H, D).
  """
  batch, length = q.shape[:2]
  count = -(-length // window)
  q, k, v = (split_rows(x, count, window) for x in (q, k, v))
  sides = 1 if causal else 2  # the number of blocks beside a query's own

  def around(x: jax.Array) -> jax.Array:  # (B, G, w, ...) -> (B G, (1 + sides) w, ...)
    x = jnp.pad(x, ((0, 0), (1, sides - 1), *((0, 0),) * (x.ndim - 2)))
    x = jnp.concatenate([x[:, i : i + count] for i in range(1 + sides)], axis=2)
    return x.reshape(batch * count, -1, *x.shape[3:])

  seen = jnp.ones((batch, length), bool) if mask is None else mask
  allowed = around(split_rows(seen, count, window))[:, None, None, :]  # (B G, 1, 1, 3 w)
  if causal:
    allowed = allowed & jnp.tri(window, 2 * window, window, dtype=bool)
  own = q.reshape(batch * count, *q.shape[2:])
  out, _ = masked_attention(own, around(k), around(v), mask=allowed)
  return join_rows(out.reshape(batch, count, *out.shape[1:]), length)
