"""Performer: attention that is linear in N, by random features of queries and keys."""

from typing import Annotated, Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx import ops
from vitx.attention.base import AttentionModule, Properties
from vitx.config.checks import NonNegative, NonNegativeInt, Range, SquaredSize
from vitx.config.errors import ConfigError
from vitx.layers.projections import from_heads
from vitx.ops.kernels import features
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, TokenPlaces, Tokens


class Performer(AttentionModule):
  """FAVOR+ attention: softmax attention by positive random features (Choromanski et al. 2021).

  A random projection makes the features. It is not a parameter: each layer has one projection,
  shared by all heads, in the collection "features". With `redraw`, training draws it again. Each
  layer draws a seed at `init`; the projection of training call t is a function of this seed and of
  t // redraw. The collection also counts the calls.

  Attributes:
    features: The number of features M; None means floor(D ln D).
    kernel: The kernel: "softmax", or a function of `vitx.ops.kernels.features.KERNELS` ("relu",
      ...) for generalized attention.
    eps: The number added to the features; None means the published values, 1e-4 with "softmax" and
      1e-3 with the other kernels.
    stabilizer: The scope of the maximum that is subtracted in the softmax features of keys:
      "example" takes it over each example and head, "batch" over the part of the batch that its
      device computes, as in the authors' first code. A causal mixer subtracts no maximum, since one
      over all keys would reveal later tokens.
    redraw: The number of training calls between two draws (each micro-batch is one call); 0 draws
      only once.
    local_heads: The number of heads that use softmax attention in a window (see `local_window`).
      These are the last heads.
    local_window: The number of tokens in a block of the local heads. A token attends its own block
      and the neighboring blocks.

  `AttentionModule` has the other attributes. Queries and keys are rotated before the features are
  computed.
  """

  properties: ClassVar = Properties(
    accepts_causal=True, permutation_equivariant=True, masking_is_deletion=True
  )
  keeps_state: ClassVar = True  # a frozen Performer does not redraw its features
  no_logits_reason: ClassVar = "keys are summed, as random features, before any query meets them"

  features: Annotated[int, Range("[1, 65536]")] | None = None
  kernel: Literal["softmax", "relu", "exp", "sigmoid", "softplus", "square", "abs"] = "softmax"
  eps: NonNegative | None = None
  stabilizer: Literal["example", "batch"] = "example"
  redraw: NonNegativeInt = 0
  local_heads: NonNegativeInt = 0
  local_window: SquaredSize = 256

  @nn.compact
  def __call__(
    self,
    x: Tokens,
    layout: TokenLayout,
    *,
    mask: TokenMask = None,
    at: TokenPlaces = None,
    train: bool,
  ) -> Tokens:
    """Mixes tokens.

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of the tokens, for rotary positions.
      mask: A boolean mask (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      at: The indices of these tokens in the layout, ascending integers (N,); None means all.
      train: Whether `redraw` applies; if so, the collection "features" must be mutable.

    Returns:
      The mixed tokens, (B, N, C).
    """
    if self.local_heads > self.num_heads:
      raise ConfigError(
        f"token_mixer.local_heads={self.local_heads} exceeds model.num_heads={self.num_heads}."
      )
    self.check_places(layout, "local_heads")
    q, k, v = self.project(x)  # (B, N, H, D)
    q, k = self.apply_positions(q, k, layout, at=at)
    distant = self.num_heads - self.local_heads
    arguments: dict[str, Any] = {"key_mask": mask, "causal": self.causal}
    arguments["implementation"] = self.implementation
    results = []
    if distant:
      projection = self._projection(q.shape[-1], train)
      phi_q, phi_k = self._features(q[:, :, :distant], k[:, :, :distant], projection, mask)
      results.append(ops.linear_attention(phi_q, phi_k, v[:, :, :distant], **arguments))
    if self.local_heads:
      q, k, v = (y[:, :, distant:] for y in (q, k, v))
      results.append(ops.local_attention(q, k, v, self.local_window, **arguments))
    outs, matrices = zip(*results, strict=True)
    self.sow_matrix(None if matrices[0] is None else jnp.concatenate(matrices, axis=1))
    return from_heads(x.shape[-1], dtype=self.dtype)(jnp.concatenate(outs, axis=2))

  def _features(self, q, k, projection, mask) -> tuple[jax.Array, jax.Array]:
    if self.kernel == "softmax":
      eps = 1e-4 if self.eps is None else self.eps
      stabilizer = "none" if self.causal else self.stabilizer
      return (
        features.softmax_query_features(q, projection, eps=eps),
        features.softmax_key_features(k, projection, mask=mask, stabilizer=stabilizer, eps=eps),
      )
    eps = 1e-3 if self.eps is None else self.eps
    kernel = features.KERNELS[self.kernel]
    return (
      features.generalized_features(q, projection, kernel, eps=eps),
      features.generalized_features(k, projection, kernel, mask=mask, eps=eps),
    )

  def _projection(self, head_dim: int, train: bool) -> jax.Array:
    """Returns the projection (M, D) of this call, which counts and may redraw in training."""
    count = features.default_count(head_dim) if self.features is None else self.features

    def draw(seed: jax.Array, epoch: jax.Array | int) -> jax.Array:
      # The generator is named, so that a checkpoint does not depend on JAX's default generator.
      key = jax.random.wrap_key_data(seed, impl="threefry2x32")
      return features.orthogonal_gaussian(jax.random.fold_in(key, epoch), count, head_dim)

    fresh = not self.has_variable("features", "projection")
    seed = self.variable(
      "features", "seed", lambda: jax.random.bits(self.make_rng("params"), (2,), jnp.uint32)
    )
    calls = self.variable("features", "calls", lambda: jnp.int32(0))
    projection = self.variable("features", "projection", lambda: draw(seed.value, 0))
    if not (train and self.redraw) or fresh:
      return projection.value
    epoch, into = calls.value // self.redraw, calls.value % self.redraw
    projection.value = jax.lax.cond(
      (into == 0) & (epoch > 0), lambda: draw(seed.value, epoch), lambda: projection.value
    )
    calls.value = calls.value + 1
    return projection.value
