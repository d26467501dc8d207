"""Softmax attention in which every query keeps keys of its own (Sparsifiner: Wei et al. 2023).

The keys kept come as indices and are known only when it runs. Three paths give the same:
`softmax.masked_attention` under `kept_mask`; "gathered", which reads the kept keys one by one; and
"chunked", which forms the logits of a few queries against all keys and hides what is not kept. The
last two never hold an N x N array: they work on tiles of queries that fit the cache, and recompute
them backward.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.kernels import chosen_keys

METHODS = ("auto", "gathered", "chunked")
GATHER_SHARE = 10  # see `fastest`


def kept_mask(indices: jax.Array, valid: jax.Array | None, keys: int) -> jax.Array:
  """Returns the kept keys as a mask; made from indices, so ties of scores admit no further key.

  Args:
    indices: int (..., K), in 0 ... M-1 where valid.
    valid: bool (..., K), False where an index only fills the array; None if all are valid.
    keys: M.

  Returns:
    bool (..., M).
  """
  chosen = indices if valid is None else jnp.where(valid, indices, keys)
  rows = chosen.reshape(-1, chosen.shape[-1])
  count = rows.shape[0]  # also of a program of any batch, for which there is no `len`
  mask = jnp.zeros((count, keys), bool)
  mask = mask.at[jnp.arange(count)[:, None], rows].set(True, mode="drop")
  return mask.reshape(*indices.shape[:-1], keys)


def fastest(keys: int, budget: int) -> str:
  """Returns the method that "auto" means: "gathered" up to a tenth of the keys, else "chunked".

  Gathering moves K·D numbers for a query where "chunked" multiplies with M·D; a product does about
  ten in the time of one. Measured forward and backward on two CPU cores in float32, the time of
  "chunked" over that of "gathered": at 197 tokens 1.6, 1.1, 0.8 for K/M of 5, 10, 15 %; at 1025
  tokens 2.0, 1.5, 1.1, 0.7 and at 4096 tokens 4.7, 2.0, 1.4, 1.2 for 3, 6, 9, 12 %.
  """
  return "gathered" if budget * GATHER_SHARE <= keys else "chunked"


def kept_keys_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  indices: jax.Array,
  valid: jax.Array | None = None,
  *,
  scale: float | None = None,
  method: str = "auto",
) -> jax.Array:
  """Computes softmax(q kᵀ · scale) v over the keys that each query keeps.

  Args:
    q: (B, N, H, D).
    k, v: (B, M, H, D).
    indices: int (B, H or 1, N, K), the kept keys of each query, none twice.
    valid: bool (B, H or 1, N, K), False where an index only fills the array; None if all are
      valid.
    scale: of the logits; None for 1 / sqrt(D).
    method: "gathered", "chunked", or "auto", the faster; no part of the result.

  Returns:
    out (B, N, H, D) in the dtype of `v`. A query that keeps nothing has out 0 and no gradient, as
    has a key that nobody keeps.

  Raises:
    ValueError: unknown method, or indices of another shape.
  """
  batch, n, heads, dim = q.shape
  if method not in METHODS:
    raise ValueError(f"method={method!r}; valid: {', '.join(METHODS)}")
  if indices.shape[:3] not in ((batch, heads, n), (batch, 1, n)):
    raise ValueError(
      f"indices {indices.shape} of kept keys for queries {q.shape}: make them"
      f" ({batch}, {heads} or 1, {n}, K)"
    )
  scale = 1 / math.sqrt(dim) if scale is None else scale
  if method == "auto":
    method = fastest(k.shape[1], indices.shape[-1])
  return _attend(q, k, v, indices, valid, scale, method == "gathered")


def _wide(k: jax.Array, indices: jax.Array, gathered: bool) -> int:
  return indices.shape[-1] * k.shape[-1] if gathered else k.shape[1]


def _kind(gathered: bool) -> type[chosen_keys.View]:
  return chosen_keys.Gathered if gathered else chosen_keys.Hidden


def _view(selectors, keys: int, gathered: bool) -> chosen_keys.View:
  indices, valid = selectors
  if not gathered:
    return chosen_keys.Hidden(kept_mask(indices, valid, keys))
  return chosen_keys.Gathered(indices if valid is None else jnp.where(valid, indices, 0), valid)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(q, k, v, indices, valid, scale: float, gathered: bool):
  return _attend_forward(q, k, v, indices, valid, scale, gathered)[0]


def _attend_forward(q, k, v, indices, valid, scale, gathered):
  def see(selectors, visible):
    return _view(selectors, k.shape[1], gathered), None

  selectors, wide = (indices, valid), _wide(k, indices, gathered)
  kind = _kind(gathered)
  out, lse, _ = chosen_keys.forward(kind, q, k, v, selectors, None, see, scale, wide)
  return out, (q, k, v, indices, valid, out, lse)


def _attend_backward(scale, gathered, saved, d_out):
  q, k, v, indices, valid, out, lse = saved

  def see(selectors, residuals, visible):
    return _view(selectors, k.shape[1], gathered)

  arrays, wide = (q, k, v, out, lse, d_out), _wide(k, indices, gathered)
  kind = _kind(gathered)
  grads = chosen_keys.backward(kind, arrays, (indices, valid), None, None, see, scale, wide)
  return *grads, None, None


_attend.defvjp(_attend_forward, _attend_backward)
