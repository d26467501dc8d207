"""Attention along a predicted connectivity mask (Sparsifiner: Wei et al. 2023, section 3).

A predictor of low rank gives each pair a connectivity score: the sum of the query's S coefficients
times the key's S entries of a basis, see `key_scores`. The connectivity mask of a query has its
`budget` keys with the highest scores, and softmax attention to these follows, in three ways:

- The masked path holds the scores, the mask and the logits of all pairs, (B, H, N, N).
- If the budget is small, the keys of each query are listed, (B, H, N, K), and read one by one.
- Otherwise one tile of queries after another scores all keys and hides those outside the mask. The
  backward pass gets the mask again from two saved numbers per query, a `selection.Cut`.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_and_hide
from vitx.ops.kernels import chosen_keys, tiling
from vitx.ops.kernels.key_scores import score_keys
from vitx.ops.kernels.selection import find_cut, is_kept, keep_first
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention
from vitx.ops.kernels.top_k import kept_keys_attention, kept_mask
from vitx.ops.shapes import Array, Bool, Float

FEWEST_ROWS = 16  # queries per example and head in a step; fewer cost time and save no memory
TILE_ARRAYS = 2  # a step needs a tile of logits and a tile of scores
GATHER_SHARE = 16  # see `gathers`


def predicted_attention(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B N H D"],
  v: Float[Array, "B N H D"],
  coefficients: Float[Array, "B H grid S"],
  basis: Float[Array, "N S"],
  budget: int,
  *,
  prefix: int = 0,
  key_mask: Bool[Array, "B N"] | None = None,
  scale: float | None = None,
  implementation: str = "auto",
  predictor: str = "auto",
) -> tuple[Float[Array, "B N H D"], Float[Array, "B H N N"] | None]:
  """Computes softmax(q kᵀ · scale) v over each query's `budget` keys with the highest scores.

  The scores are `coefficients` basisᵀ. The choice of the keys has no gradient.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    coefficients: The S coefficients of each query after the prefix, (B, H, N - prefix, S).
    basis: The S basis vectors over the keys, (N, S).
    budget: The number K of keys to keep, 1 ... N.
    prefix: The number of tokens in front whose queries attend all keys. For other queries, the keys
      of these tokens are keys like any others.
    key_mask: A boolean mask (B, N), True = may be attended, or `None`; if it leaves fewer than K
      keys, all of them are kept.
    scale: The factor of the logits; `None` for 1 / sqrt(D).
    implementation: The path to take: "masked", "kernelized" or "auto".
    predictor: The implementation of the prediction, see `score_keys`.

  Returns:
    The output (B, N, H, D) in the dtype of `v`, and on the masked path the probabilities
    (B, H, N, N), else `None`.
  """
  k, v = check_and_hide(q, k, v, key_mask, same_length=True)
  coefficients, basis = jax.lax.stop_gradient((coefficients, basis))
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  length, visible = k.shape[1], None if key_mask is None else key_mask[:, None, None]
  picked = resolve_implementation(implementation, "predicted_keys", q.shape)
  if picked == "masked":
    scores = score_keys(coefficients, basis, visible, predictor)  # (B, H, N - prefix, N)
    mask = kept_mask(*keep_first(scores, budget), length)
    prefix_mask = jnp.ones((*mask.shape[:2], prefix, length), bool)
    prefix_mask = prefix_mask if visible is None else prefix_mask & visible
    mask = jnp.concatenate([prefix_mask, mask], axis=2)  # (B, H, N, N)
    return masked_attention(q, k, v, mask=mask, scale=scale)
  if budget >= length:
    return kernelized_attention(q, k, v, key_mask=key_mask, scale=scale), None
  arrays = q[:, prefix:], k, v
  if gathers(length, budget):
    indices, valid = _list_keys(coefficients, basis, budget, visible, predictor)
    out = kept_keys_attention(*arrays, indices, valid, scale=scale)
  else:
    select = partial(_mask_keys, budget=budget, predictor=predictor)
    kind, row_size = chosen_keys.Hidden, TILE_ARRAYS * length
    out = chosen_keys.attend(arrays, coefficients, key_mask, basis, kind, select, scale, row_size)
  if prefix:
    front = kernelized_attention(q[:, :prefix], k, v, key_mask=key_mask, scale=scale)
    out = jnp.concatenate([front, out], axis=1)
  return out, None


def gathers(keys: int, budget: int) -> bool:
  """Returns whether the keys of each query are listed and read one by one, and not masked.

  They are if they are at most a sixteenth of all keys. The ratio of CPU times, masking over
  reading, was measured forward and backward on two CPU cores in float32: at 197 tokens 1.3, 1.1,
  0.8 for 5, 7, 10 % of keys; at 1024 tokens 1.5, 0.9, 0.7 for 3, 6, 8 %; at 4096 tokens 3.1, 1.6,
  1.1, 0.8 for 1, 3, 5, 7 %. The times include the selection: finding the list of a query's keys
  costs more than finding the threshold that a mask needs.

  Args:
    keys: The number N of all keys.
    budget: The number K of keys that a query attends.
  """
  return budget * GATHER_SHARE <= keys


def _list_keys(coefficients, basis, budget: int, visible, predictor: str):
  """Returns the K keys of each query, int32 (B, H, N, K), and a mask of valid ones or `None`."""
  batch, heads, n, S = coefficients.shape
  rows = tiling.tile_rows(tiling.step_elements() / max(1, batch * heads), len(basis), FEWEST_ROWS)
  steps = math.ceil(n / min(n, rows))
  rows = math.ceil(n / steps)

  def list_some(part: jax.Array):  # (B, H, rows, S) -> (B, H, rows, K)
    indices, valid = keep_first(score_keys(part, basis, visible, predictor), budget)
    return indices, None if visible is None else valid

  parts = tiling.split_rows(coefficients.reshape(batch * heads, n, S), steps, rows)
  parts = jnp.moveaxis(parts, 1, 0).reshape(steps, batch, heads, rows, S)

  def join(x: jax.Array) -> jax.Array:  # (steps, B, H, rows, K) -> (B, H, N, K)
    return jnp.moveaxis(x, 0, 2).reshape(batch, heads, steps * rows, x.shape[-1])[:, :, :n]

  return jax.tree.map(join, jax.lax.map(list_some, parts))


def _mask_keys(coefficients, key_mask, basis, cut, *, budget: int, predictor: str):
  """Returns the keys of a tile of queries as a mask, and the `Cut` of their scores for later."""
  scores = score_keys(coefficients, basis, None if key_mask is None else key_mask[None], predictor)
  cut = find_cut(scores, budget) if cut is None else cut
  return chosen_keys.Hidden(is_kept(scores, cut)), cut
