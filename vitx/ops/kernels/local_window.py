"""Softmax attention within blocks of a sequence and between neighboring blocks."""

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels.softmax import masked_attention
from vitx.ops.kernels.tiling import join_rows, split_rows
from vitx.ops.shapes import Array, Bool, Float


def local_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H D"],
  window: int,
  *,
  key_mask: Bool[Array, "B N"] | None = None,
  causal: bool = False,
  implementation: str = "auto",
) -> tuple[Float[Array, "B N H D"], Float[Array, "B H N N"] | None]:
  """Computes attention within blocks of a sequence and to the neighboring blocks.

  Performer's local heads attend in this way.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    window: The number of tokens per block.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    causal: Whether a token sees only itself and earlier tokens of these blocks.
    implementation: The path to take: "masked", "kernelized" (linear in N) or "auto", which follows
      the rule of `linear_attention`, because a Performer layer has local and linear heads.

  Returns:
    The output (B, N, H, D), and on the masked path the matrix (B, H, N, N) in float32, else `None`.
  """
  k, v = check_and_hide(q, k, v, key_mask, same_length=True)
  picked = resolve_implementation(implementation, "linear", q.shape)
  if picked == "masked":
    token = jnp.arange(q.shape[1])
    near = jnp.abs(token[:, None] // window - token // window) <= 1
    near = near & (token[:, None] >= token) if causal else near
    return masked_attention(q, k, v, mask=near[None, None], key_mask=key_mask)
  return _attend_by_block(q, k, v, window, key_mask, causal), None


def _attend_by_block(q, k, v, window: int, mask, causal: bool) -> jax.Array:
  """Computes attention from each block to itself, the block before and, if not causal, the next."""
  batch, length = q.shape[:2]
  count = -(-length // window)
  q, k, v = (split_rows(x, count, window) for x in (q, k, v))
  sides = 1 if causal else 2  # the number of blocks that a query sees besides its own

  def around(x: jax.Array) -> jax.Array:  # (B, G, w, ...) -> (B G, (1 + sides) w, ...)
    x = jnp.pad(x, ((0, 0), (1, sides - 1), *((0, 0),) * (x.ndim - 2)))
    x = jnp.concatenate([x[:, i : i + count] for i in range(1 + sides)], axis=2)
    return x.reshape(batch * count, *x.shape[2:])

  seen = jnp.ones((batch, length), bool) if mask is None else mask
  allowed = around(split_rows(seen, count, window))[:, None, None, :]  # (B G, 1, 1, 3 w)
  if causal:
    allowed = allowed & jnp.tri(window, 2 * window, window, dtype=bool)
  queries = q.reshape(batch * count, *q.shape[2:])
  out, _ = masked_attention(queries, around(k), around(v), mask=allowed)
  return join_rows(out.reshape(batch, count, *out.shape[1:]), length)
