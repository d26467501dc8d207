"""Attention to the keys that a low-rank prediction ranks first (Sparsifiner: Wei et al. 2023).

The score of a query and a key is the product of the query's coefficients and a basis over the keys;
the caller gives both. The masked path scores all pairs at once and attends under a mask. The
kernelized path scores some queries at a time, so that scores, mask and logits are never (N, N). If
few keys are kept, it reads them one by one. Otherwise it reads all keys and masks those that are
not kept; for the backward pass it saves two numbers per query, a `selection.Cut`, which give the
mask again.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from vitx.ops.implementation import resolve_implementation
from vitx.ops.inputs import check_inputs, hide_tokens
from vitx.ops.kernels import chosen_keys, tiling
from vitx.ops.kernels.key_scores import score_keys
from vitx.ops.kernels.selection import find_cut, is_kept, keep_first
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention
from vitx.ops.kernels.top_k import kept_keys_attention, kept_mask
from vitx.ops.shapes import Array, Bool, Float

FEWEST_ROWS = 16  # queries per example and head in a step; fewer cost time and save no memory
SCORES_BESIDE = 2  # a step needs a tile of logits and a tile of scores
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

  The score of a key is predicted by `coefficients` basisᵀ. The choice of the keys has no gradient.

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
  check_inputs(q, k, v, key_mask, same_length=True)
  k, v = hide_tokens(k, key_mask), hide_tokens(v, key_mask)
  coefficients, basis = jax.lax.stop_gradient((coefficients, basis))
  scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
  length = k.shape[1]
  picked = resolve_implementation("predicted_attention", implementation, "predicted_keys", q.shape)
  if picked == "masked":
    visible = None if key_mask is None else key_mask[:, None, None]
    scores = score_keys(coefficients, basis, visible, predictor)
    mask = kept_mask(*keep_first(scores, budget), length)
    every = jnp.ones((*mask.shape[:2], prefix, length), bool)
    every = every if visible is None else every & visible
    mask = jnp.concatenate([every, mask], axis=2)
    return masked_attention(q, k, v, mask=mask, scale=scale)
  if budget >= length:
    return kernelized_attention(q, k, v, key_mask=key_mask, scale=scale), None
  behind = q[:, prefix:]
  if gathers(length, budget):
    chosen = _choose(coefficients, basis, budget, key_mask, predictor)
    out = kept_keys_attention(behind, k, v, *chosen, scale=scale)
  else:
    select, row_size = partial(_select, budget=budget, predictor=predictor), SCORES_BESIDE * length
    arrays, kind = (behind, k, v), chosen_keys.Hidden
    out = chosen_keys.attend(arrays, coefficients, key_mask, basis, kind, select, scale, row_size)
  if prefix:
    front = kernelized_attention(q[:, :prefix], k, v, key_mask=key_mask, scale=scale)
    out = jnp.concatenate([front, out], axis=1)
  return out, None


def gathers(keys: int, budget: int) -> bool:
  """Returns whether the kept keys are read one by one. If not, the other keys are masked.

  Kept keys are read one by one if they are at most a sixteenth of all keys. The ratio of CPU times,
  masking over gathering, was measured forward and backward on two CPU cores in float32: at 197
  tokens 1.3, 1.1, 0.8 for 5, 7, 10 % of keys; at 1024 tokens 1.5, 0.9, 0.7 for 3, 6, 8 %; at 4096
  tokens 3.1, 1.6, 1.1, 0.8 for 1, 3, 5, 7 %. The times include the selection: finding the list of
  the kept keys costs more than finding the threshold that a mask needs.

  Args:
    keys: The number N of keys.
    budget: The number K of kept keys.
  """
  return budget * GATHER_SHARE <= keys


def _choose(coefficients, basis, budget: int, key_mask, predictor: str):
  """Returns the K keys that each query keeps, int32 (B, H, N, K), and a mask of the valid ones."""
  batch, heads, n, rank = coefficients.shape
  size = tiling.tile_rows(tiling.step_elements() / max(1, batch * heads), len(basis), FEWEST_ROWS)
  count = math.ceil(n / min(n, size))
  size = math.ceil(n / count)
  visible = None if key_mask is None else key_mask[:, None, None]

  def choose(part: jax.Array):
    indices, valid = keep_first(score_keys(part, basis, visible, predictor), budget)
    return indices, None if visible is None else valid

  parts = tiling.split_rows(coefficients.reshape(batch * heads, n, rank), count, size)
  parts = jnp.moveaxis(parts, 1, 0).reshape(count, batch, heads, size, rank)
  found = jax.lax.map(choose, parts)

  def join(x: jax.Array) -> jax.Array:  # (parts, B, H, c, K) -> (B, H, N, K)
    return jnp.moveaxis(x, 0, 2).reshape(batch, heads, count * size, x.shape[-1])[:, :, :n]

  return jax.tree.map(join, found)


def _select(coefficients, visible, basis, cut, *, budget: int, predictor: str):
  """Returns the keys that some queries see, and the thresholds of their scores, a `Cut`."""
  visible = None if visible is None else visible[None]
  scores = score_keys(coefficients, basis, visible, predictor)
  cut = find_cut(scores, budget) if cut is None else cut
  return chosen_keys.Hidden(is_kept(scores, cut)), cut
