"""Softmax attention over a list of kept keys for every query (Sparsifiner: Wei et al. 2023).

The indices of the kept keys are known only at run time. `softmax.masked_attention` with `kept_mask`
is the reference. `kept_keys_attention` reads the kept keys one by one, for tiles of queries that
fit the cache. The backward pass recomputes the tiles, so no N x N array is ever in memory.
"""

import math
from typing import Any

import jax.numpy as jnp

from vitx.ops.kernels import chosen_keys
from vitx.ops.shapes import Array, Bool, Float, Int


def kept_mask(
  indices: Int[Array, "... K"], valid: Bool[Array, "... K"] | None, keys: int
) -> Bool[Array, "... M"]:
  """Converts the indices of kept keys to a mask.

  A key whose score equals that of a kept key is not added, since only the indices decide.

  Args:
    indices: The kept keys, int (..., K), in 0 ... M-1 where valid.
    valid: A mask (..., K), False where an index only fills the array; `None` if all are valid.
    keys: The number M of keys.

  Returns:
    A boolean mask (..., M).
  """
  chosen = indices if valid is None else jnp.where(valid, indices, keys)
  rows = chosen.reshape(-1, chosen.shape[-1])
  count = rows.shape[0]  # `len` fails for a symbolic batch, in a program for any batch size
  mask = jnp.zeros((count, keys), bool)
  mask = mask.at[jnp.arange(count)[:, None], rows].set(True, mode="drop")
  return mask.reshape(*indices.shape[:-1], keys)


def kept_keys_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  v: Float[Array, "B M H D"],
  indices: Int[Array, " B #H N K"],
  valid: Bool[Array, " B #H N K"] | None = None,
  *,
  scale: float | None = None,
) -> Float[Array, "B N H D"]:
  """Computes softmax(q kᵀ · scale) v over the keys that each query keeps.

  Args:
    q: The queries, (B, N, H, D).
    k, v: The keys and the values, (B, M, H, D).
    indices: The kept keys of each query, int (B, H or 1, N, K), none twice.
    valid: A mask (B, H or 1, N, K), False where an index only fills the array; `None` if all are
      valid.
    scale: The factor of the logits; `None` for 1 / sqrt(D).

  Returns:
    The output (B, N, H, D) in the dtype of `v`. A query that keeps nothing has output 0 and no
    gradient; a key that no query keeps has no gradient.
  """
  dim = q.shape[3]
  scale = 1 / math.sqrt(dim) if scale is None else scale
  lists, kind, size = (indices, valid), chosen_keys.Gathered, indices.shape[-1] * dim
  return chosen_keys.attend((q, k, v), lists, None, None, kind, _select, scale, size)


def _select(per_query: Any, per_key: Any, shared: Any, saved: Any) -> tuple[chosen_keys.View, None]:
  indices, valid = per_query
  first = indices if valid is None else jnp.where(valid, indices, 0)
  return chosen_keys.Gathered(first, valid), None
