"""Scores of keys for queries, predicted without reading any key (Wei et al. 2023, section 3.2).

A query has few coefficients, a key has an entry for each of them in a learned basis; their product
is the score. Of the coefficients most are pruned: "sparse" adds up the basis rows of those that are
left, a query at a time, "dense" multiplies with all.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError, listing
from vitx.ops.kernels.tiling import product_transposed
from vitx.ops.shapes import Array, Bool, Float

Predictor = Literal["auto", "dense", "sparse"]
PREDICTORS = ("auto", "dense", "sparse")


def predict_coefficients(
  q: Float[Array, "B N H D"],
  k: Float[Array, "B M H D"],
  down: Float[Array, "M S"],
  *,
  key_mask: Bool[Array, "B M"] | None = None,
  scale: float,
) -> Float[Array, "B H N S"]:
  """Returns the softmax over slots of queries' products with mixtures of the keys, float32.

  Args:
    q: (B, N, H, D), of few channels.
    k: (B, M, H, D).
    down: (M, S), how the keys are mixed to slots.
    key_mask: boolean (B, M), True = takes part.
    scale: of the logits.

  Returns:
    (B, H, N, S).
  """
  if key_mask is not None:
    k = jnp.where(key_mask[:, :, None, None], k, jnp.zeros_like(k))
  mixed = jnp.einsum("bmhc,ms->bhsc", k.astype(jnp.float32), down)
  logits = jnp.einsum("bnhc,bhsc->bhns", q.astype(jnp.float32), mixed) * scale
  return jax.nn.softmax(logits, axis=-1)


def score_keys(
  coefficients: Float[Array, "... N S"],
  basis: Float[Array, "... M S"],
  key_mask: jax.Array | None = None,
  predictor: str = "auto",
) -> Float[Array, "... N M"]:
  """Returns the scores of all keys, float32 (..., N, M); -inf where a key may not be attended.

  Both predictors add over the coefficients in their order and differ by rounding at most; scores
  that are equal because nothing of the basis meets the query are zero in both.

  Args:
    coefficients: (..., N, S).
    basis: (M, S); "dense" also takes one of each example, broadcastable to (..., M, S).
    key_mask: boolean, broadcastable to (..., N, M), True = may be attended.
    predictor: "dense", "sparse", or "auto", the faster: "dense", which "sparse" has not beaten on
      two CPU cores wherever more than one of 32 coefficients is left.

  Raises:
    ConfigError: unknown predictor.
  """
  if predictor not in PREDICTORS:
    raise ConfigError(f"predictor={predictor!r}; valid: {listing(PREDICTORS)}")
  multiply = _add_rows if predictor == "sparse" else product_transposed
  scores = multiply(coefficients, basis)
  scores = jnp.where(scores == 0, 0.0, scores)  # a zero of either sign is the same score
  return scores if key_mask is None else jnp.where(key_mask, scores, -jnp.inf)


def _add_rows(coefficients: jax.Array, basis: jax.Array) -> jax.Array:
  """Adds for every query the basis of its coefficients that are not zero: as many steps as those.

  Args:
    coefficients: (..., N, S).
    basis: (M, S).
  """
  rows = coefficients.reshape(-1, coefficients.shape[-1]).astype(jnp.float32)
  table = basis.T.astype(jnp.float32)  # (S, M)
  left = rows != 0
  turn = jnp.where(left, jnp.cumsum(left, axis=-1), 0)  # 1, 2, ... for those that are left

  def add(number, total):
    own = turn == number
    weight = jnp.sum(jnp.where(own, rows, 0.0), axis=-1, keepdims=True)
    return total + weight * table[jnp.argmax(own, axis=-1)]

  most = jnp.max(turn) + 1
  start = jnp.zeros((len(rows), table.shape[1]), jnp.float32)
  scores = jax.lax.fori_loop(1, most, add, start)
  return scores.reshape(*coefficients.shape[:-1], -1)
