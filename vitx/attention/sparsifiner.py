"""Sparsifiner: every query attends the keys that a small predictor ranks highest."""

import math
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx import ops
from vitx.attention.base import AttentionModule, Properties
from vitx.config.checks import NonNegative, PositiveInt, Share, SquaredSize
from vitx.config.errors import ConfigError
from vitx.layers.projections import from_heads
from vitx.ops.kernels.key_scores import Predictor, predict_coefficients
from vitx.ops.kernels.selection import count_kept
from vitx.ops.kernels.top_k import kept_mask
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens

DRAW = nn.initializers.truncated_normal(0.02)


class Sparsifiner(AttentionModule):
  """Softmax attention to keys chosen per image, head and query (Wei et al. 2023, section 3).

  A predictor scores all pairs of query and key, as in the released code. It reduces the channels of
  queries and keys, and mixes the N keys into S slots. The softmax of a query over the slots gives S
  coefficients. The scores of the query are the sum of S learned basis vectors over the tokens,
  weighted by these coefficients. The query attends the ceil(keep N) keys with the largest scores.
  Queries in front of the grid (the class token) attend all keys. The number of tokens is fixed at
  `init`.

  Attributes:
    keep: The share of the keys that a query attends.
    sparse: Whether queries attend only the share `keep`. If not, they attend all keys, and the
      predictor is computed only for its loss (phase 1 of the published training).
    slots: The number of slots S; the released code has N // 6, which is 32 for 197 tokens.
    channel_divisor: The number by which the channels of a head are divided in the predictor.
    coefficient_threshold: The threshold of the coefficients: those that do not exceed it become
      zero. None keeps all.
    coefficient_top: The number of largest coefficients that each query keeps; None keeps all.
    basis_threshold: The threshold of the basis: entries whose absolute value does not exceed it
      become zero, and the others become their absolute values. None keeps the basis with its signs.
    predictor_implementation: The way to compute the scores: "dense" multiplies the basis by all
      coefficients, "sparse" adds basis entries only for coefficients that are not zero, and "auto"
      takes the faster of the two.
    granularity: The unit in which keys are chosen: "token", as published, or "block", an addition
      of vitx with equal parameters. "block" groups the tokens behind the prefix into R blocks. The
      score of two blocks is the sum of their tokens' scores, and each query block attends all
      tokens of the ceil(keep R) key blocks with the largest scores. All queries attend the prefix.
    block: The number of tokens in a block, if `granularity` is "block".

  `AttentionModule` has the other attributes. The predictor uses queries and keys without positions.
  The mixer sows three arrays into "intermediates": `approximation` (B, H, N - prefix, N), the
  scores before any threshold, and `coefficients` (B, H, N - prefix, S) and `pruned_basis` (N, S),
  both after the thresholds.
  """

  properties: ClassVar = Properties(fixed_length=True, flops_exponent=2.0)
  also_returns: ClassVar = ("class_attention",)

  keep: Share = 0.25
  sparse: bool = True
  slots: SquaredSize = 32
  channel_divisor: PositiveInt = 2
  coefficient_threshold: NonNegative | None = 0.05
  coefficient_top: PositiveInt | None = None
  basis_threshold: NonNegative | None = 0.01
  predictor_implementation: Predictor = "auto"
  granularity: Literal["token", "block"] = "token"
  block: SquaredSize = 16

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, also: str = "", train: bool
  ) -> Any:
    """Mixes tokens.

    Args:
      x: The tokens, (B, N, C), with the N of `init`.
      layout: The arrangement of the tokens, for its prefix and for rotary positions.
      mask: A boolean mask (B, N), True = may be attended. Masked tokens are left out of every slot,
        and no query attends them.
      also: A second result: "class_attention", or "" for none.
      train: Not used, since nothing is random.

    Returns:
      The mixed tokens (B, N, C). The second result is the attention of the first token, float32
      (B, N), the mean over the heads.
    """
    q, k, v = self.project(x)  # (B, N, H, D)
    coefficients, basis = self._predict(q, k, layout.prefix, mask)
    pruned = self._prune(coefficients)
    if self.is_mutable_collection("intermediates"):
      approximation = jnp.einsum("bhns,ms->bhnm", coefficients, basis)
      self.sow("intermediates", "approximation", approximation)
      self.sow("intermediates", "coefficients", pruned)
      self.sow("intermediates", "pruned_basis", self._prune_basis(basis))
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = self.apply_positions(q, k, layout, scale)
    if self.sparse:
      out, matrix = self._attend(q, k, v, pruned, self._prune_basis(basis), layout, mask, scale)
    else:
      out, matrix = self.softmax_attention(q, k, v, key_mask=mask, scale=scale, train=train)
    self.sow_matrix(matrix)
    out = from_heads(x.shape[-1], dtype=self.dtype)(out)
    return (out, self.class_attention(q, k, scale, mask)) if also else out

  def _attend(self, q, k, v, coefficients, basis, layout: TokenLayout, mask, scale: float):
    """Computes attention to the keys, or the blocks of keys, with the highest scores."""
    shared: dict[str, Any] = {"prefix": layout.prefix, "key_mask": mask, "scale": scale}
    shared["implementation"] = self.implementation
    if self.granularity == "block":
      count = count_kept(self.keep, -(-(layout.length - layout.prefix) // self.block))
      return ops.predicted_block_attention(
        q, k, v, coefficients, basis, count, self.block, **shared
      )
    count = count_kept(self.keep, layout.length)
    return ops.predicted_attention(
      q, k, v, coefficients, basis, count, predictor=self.predictor_implementation, **shared
    )

  def _predict(
    self, q: jax.Array, k: jax.Array, prefix: int, mask: jax.Array | None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the coefficients (B, H, N - prefix, S) and the basis (N, S), before thresholds."""
    length, heads, dim = q.shape[1:]
    slots, channels = self.slots, dim // self.channel_divisor
    if not channels:
      raise ConfigError(f"token_mixer.channel_divisor={self.channel_divisor} must be <= {dim}.")

    def reduce(x: jax.Array, name: str) -> jax.Array:
      return nn.Dense(channels, kernel_init=DRAW, dtype=self.dtype, name=name)(x)

    q, k = reduce(q[:, prefix:], "reduce_query"), reduce(k, "reduce_key")
    down, basis = (
      self.param(name, DRAW, (length, slots), jnp.float32) for name in ("down", "basis")
    )
    # The released code divides by the square root of the number of heads, not of their channels.
    return predict_coefficients(q, k, down, key_mask=mask, scale=heads**-0.5), basis

  def _prune(self, coefficients: jax.Array) -> jax.Array:
    """Sets coefficients to zero by `coefficient_threshold` and `coefficient_top`."""
    if self.coefficient_threshold is not None:
      coefficients = jnp.where(coefficients > self.coefficient_threshold, coefficients, 0)
    if self.coefficient_top is not None:
      largest = jax.lax.top_k(coefficients, self.coefficient_top)[1]
      is_largest = kept_mask(largest, None, coefficients.shape[-1])
      coefficients = jnp.where(is_largest, coefficients, 0)
    return coefficients

  def _prune_basis(self, basis: jax.Array) -> jax.Array:
    if self.basis_threshold is None:
      return basis
    return jnp.where(jnp.abs(basis) > self.basis_threshold, jnp.abs(basis), 0)
