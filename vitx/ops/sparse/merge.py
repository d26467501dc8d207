"""Merges attention over disjoint sets of keys into attention over all their keys."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from vitx.ops.kernels.flash import flash_attention
from vitx.ops.shapes import Array, Bool, Float

Partial = tuple[jax.Array, jax.Array]  # (out, lse)


def merge(parts: Sequence[Partial]) -> Partial:
  """Joins partial attentions as if one softmax had run over all their keys.

  Args:
    parts: The output (B, N, H, D) and the log-sum-exp of the logits (B, H, N) of each part. A
      query's sets of keys must be disjoint. A part in which a query sees no key (log-sum-exp -inf)
      adds nothing to its output.

  Returns:
    The output (B, N, H, D) in the dtype of the first part, and lse (B, H, N) float32.
  """
  top = jnp.max(jnp.stack([jax.lax.stop_gradient(lse) for _, lse in parts]), axis=0)
  top = jnp.where(top == -jnp.inf, 0.0, top)
  total = jnp.zeros_like(top)
  joined = jnp.zeros(parts[0][0].shape, jnp.float32)
  for out, lse in parts:
    # The inner `where` keeps inf - inf out of the gradient.
    empty = lse == -jnp.inf
    weight = jnp.where(empty, 0.0, jnp.exp(jnp.where(empty, 0.0, lse - top)))
    total = total + weight
    joined = joined + jnp.swapaxes(weight, 1, 2)[..., None] * out.astype(jnp.float32)
  empty = total == 0
  total = jnp.where(empty, 1.0, total)
  joined = joined / jnp.swapaxes(total, 1, 2)[..., None]
  return joined.astype(parts[0][0].dtype), jnp.where(empty, -jnp.inf, jnp.log(total) + top)


def with_prefix(
  attend: Callable[..., Partial],
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H E"],
  *,
  prefix: int,
  kind: str = "global",
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
) -> Partial:
  """Computes attention over the tokens of a grid and the prefix tokens in front of it.

  The grid divides into blocks only without the prefix, so the function `attend` computes the
  attention within the grid alone. The prefix tokens are dense rows and columns of the matrix.

  Args:
    attend: A function (q, k, v, key_mask=..., scale=...) that returns the output and the
      log-sum-exp for the grid alone.
    q, k: The queries and the keys, (B, N, H, D), prefix tokens first.
    v: The values, (B, N, H, E).
    prefix: The number P of prefix tokens.
    kind: The kind of the prefix. "global": prefix tokens attend all, and all attend them; "causal":
      in addition, no token attends later ones; "apart": prefix tokens have no edges.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, E) and the log-sum-exp of each query's logits, (B, H, N).
  """
  P = prefix
  masks = (None, None) if key_mask is None else (key_mask[:, :P], key_mask[:, P:])
  out, lse = attend(q[:, P:], k[:, P:], v[:, P:], key_mask=masks[1], scale=scale)
  if P == 0:
    return out, lse
  if kind == "apart":
    nothing = [(0, 0), (P, 0), (0, 0), (0, 0)]
    return jnp.pad(out, nothing), jnp.pad(lse, nothing[:1] * 2 + [(P, 0)], constant_values=-jnp.inf)
  column = flash_attention(q[:, P:], k[:, :P], v[:, :P], key_mask=masks[0], scale=scale)
  out, lse = merge([(out, lse), column])
  if kind == "causal":
    prefix_qkv = (x[:, :P] for x in (q, k, v))
    row = flash_attention(*prefix_qkv, key_mask=masks[0], scale=scale, causal=True)
  else:
    row = flash_attention(q[:, :P], k, v, key_mask=key_mask, scale=scale)
  return jnp.concatenate([row[0], out], axis=1), jnp.concatenate([row[1], lse], axis=2)
