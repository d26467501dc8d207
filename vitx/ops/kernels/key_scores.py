"""Predicts how much each query would attend each key, at low cost (Wei et al. 2023, section 3.2).

A query has S coefficients, most of which are pruned to zero. A learned basis (M, S) has S numbers
for each key. The score of a query and a key is the dot product of the coefficients and these
numbers, so no key vector is read. The predictor "sparse" adds up the terms of each query's nonzero
coefficients; "dense" is a matrix product over all coefficients.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from vitx.config.checks import check_choice
from vitx.ops.inputs import hide_tokens
from vitx.ops.kernels.tiling import product_transposed
from vitx.ops.shapes import Array, Bool, Float

Predictor = Literal["auto", "dense", "sparse"]


def predict_coefficients(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  down: Float[Array, "M S"],
  *,
  key_mask: Bool[Array, "B M"] | None = None,
  scale: float,
) -> Float[Array, "B H N S"]:
  """Computes the coefficients of queries: a softmax over S mixtures of the keys, called slots.

  Args:
    q: The queries, (B, N, H, D), with few channels D.
    k: The keys, (B, M, H, D).
    down: The weights by which keys are mixed into slots, (M, S).
    key_mask: A boolean mask (B, M), True = takes part, or `None`.
    scale: The factor of the logits.

  Returns:
    The coefficients, (B, H, N, S).
  """
  mixed = jnp.einsum("bmhc,ms->bhsc", hide_tokens(k, key_mask).astype(jnp.float32), down)
  logits = jnp.einsum("bnhc,bhsc->bhns", q.astype(jnp.float32), mixed) * scale
  return jax.nn.softmax(logits, axis=-1)


def score_keys(
  coefficients: Float[Array, "... N S"],
  basis: Float[Array, "... M S"],
  key_mask: jax.Array | None = None,
  predictor: str = "auto",
) -> Float[Array, "... N M"]:
  """Returns the scores of all keys, float32 (..., N, M); -inf where a key may not be attended.

  Both predictors add terms in the order of the coefficients and differ by rounding at most. A score
  whose terms are all zero is exactly zero with both predictors.

  Args:
    coefficients: The S coefficients of each query, (..., N, S).
    basis: The S basis vectors over the keys, (M, S). The predictor "dense" also takes a basis for
      each example, broadcastable to (..., M, S).
    key_mask: A boolean mask broadcastable to (..., N, M), True = may be attended, or `None`.
    predictor: The predictor "dense", "sparse" or "auto", which means "dense": on two CPU cores
      "sparse" was never faster with more than one of 32 coefficients nonzero.
  """
  check_choice(predictor, "predictor", get_args(Predictor))
  multiply = _multiply_sparse if predictor == "sparse" else product_transposed
  scores = multiply(coefficients, basis)
  scores = jnp.where(scores == 0, 0.0, scores)  # -0.0 and 0.0 must rank as equal scores
  return scores if key_mask is None else jnp.where(key_mask, scores, -jnp.inf)


def _multiply_sparse(coefficients: jax.Array, basis: jax.Array) -> jax.Array:
  """Returns the scores, (..., N, M), as sums over each query's nonzero coefficients only.

  A step of the loop adds the term of one coefficient for every query.
  """
  rows = coefficients.reshape(-1, coefficients.shape[-1]).astype(jnp.float32)
  table = basis.T.astype(jnp.float32)  # (S, M)
  nonzero = rows != 0
  rank = jnp.where(nonzero, jnp.cumsum(nonzero, axis=-1), 0)  # 1, 2, ... for nonzero coefficients

  def add(number, total):
    is_term = rank == number
    weight = jnp.sum(jnp.where(is_term, rows, 0.0), axis=-1, keepdims=True)
    return total + weight * table[jnp.argmax(is_term, axis=-1)]

  most = jnp.max(rank, initial=0) + 1
  start = jnp.zeros((len(rows), table.shape[1]), jnp.float32)
  scores = jax.lax.fori_loop(1, most, add, start)
  return scores.reshape(*coefficients.shape[:-1], table.shape[1])
