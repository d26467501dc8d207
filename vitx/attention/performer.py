"""Performer: softmax attention by positive random features, or any kernel of random features."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.errors import ConfigError, listing
from vitx.layers.projections import from_heads
from vitx.ops.kernels import features, linear, local_window
from vitx.ops.layout import TokenLayout


class Performer(AttentionModule):
  """FAVOR+ attention (Choromanski et al. 2021).

  The random projection is no parameter: it lives in the collection "features", one per layer for
  all heads. With `redraw` it is drawn anew in training: the features of training call t are a
  function of (the seed drawn at `init`, t // redraw, layer), t counted in the same collection.

  Attributes:
    features: M; none: floor(D ln D).
    kernel: "softmax", or a function of `vitx.ops.kernels.features.KERNELS` ("relu", ...)
      for generalized attention.
    eps: added to the features; none: 1e-4 for softmax, 1e-3 for the others, as published.
    stabilizer: "example" or "batch", see `vitx.ops.kernels.features.softmax_key_features`.
    redraw: training calls between two draws (micro-batches count each); 0: never.
    local_heads: of the H heads, the last so many use plain softmax over `local_window` instead.
    local_window: tokens per block; a token sees its own block and the ones beside it.
    causal: a token attends the tokens up to its own position.
    others: see `AttentionModule`; rotation comes before the features.
  """

  properties: ClassVar = Properties(
    permutation_equivariant=True, masking_is_deletion=True, masked_up_to=64
  )
  without_logits: ClassVar = "keys are summed, as random features, before any query meets them"

  features: int | None = None
  kernel: str = "softmax"
  eps: float | None = None
  stabilizer: str = "example"
  redraw: int = 0
  local_heads: int = 0
  local_window: int = 256
  causal: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Mixes tokens.

    Args:
      x: (B, N, C).
      layout: the tokens' arrangement, for rotary positions.
      mask: boolean (B, N), True = may be attended. Masked tokens contribute exactly nothing.
      train: whether features are redrawn; then the collection "features" must be mutable.

    Returns:
      (B, N, C).

    Raises:
      ConfigError: a field has no valid value; features to redraw are not mutable.
    """
    self._check()
    masked = self.picked(x) == "masked"
    q, k, v = self.projected(x)  # (B, N, H, D)
    q, k = self.positioned(q, k, layout)
    distant = self.num_heads - self.local_heads
    outs, matrices = [], []
    if distant:
      projection = self._projection(q.shape[-1], train)
      phi_q, phi_k = self._features(q[:, :, :distant], k[:, :, :distant], projection, mask)
      if masked:
        out, matrix = linear.masked_linear_attention(
          phi_q, phi_k, v[:, :, :distant], causal=self.causal
        )
        matrices.append(matrix)
      else:
        out = linear.linear_attention(phi_q, phi_k, v[:, :, :distant], causal=self.causal)
      outs.append(out)
    if self.local_heads:
      near = (q[:, :, distant:], k[:, :, distant:], v[:, :, distant:], self.local_window)
      if masked:
        out, matrix = local_window.masked_local_attention(*near, mask=mask, causal=self.causal)
        matrices.append(matrix)
      else:
        out = local_window.local_attention(*near, mask=mask, causal=self.causal)
      outs.append(out)
    if masked:
      self.sow("intermediates", "attention", jnp.concatenate(matrices, axis=1))
    return from_heads(x.shape[-1], dtype=self.dtype)(jnp.concatenate(outs, axis=2))

  def _features(self, q, k, projection, mask) -> tuple[jax.Array, jax.Array]:
    if self.kernel == "softmax":
      eps = 1e-4 if self.eps is None else self.eps
      return (
        features.softmax_query_features(q, projection, eps=eps),
        features.softmax_key_features(
          k, projection, mask=mask, stabilizer=self.stabilizer, eps=eps
        ),
      )
    eps = 1e-3 if self.eps is None else self.eps
    kernel = features.KERNELS[self.kernel]
    return (
      features.generalized_features(q, projection, kernel, eps=eps),
      features.generalized_features(k, projection, kernel, mask=mask, eps=eps),
    )

  def _projection(self, head_dim: int, train: bool) -> jax.Array:
    """The projection (M, D) of this call; in training it counts the call and may draw anew."""
    count = features.default_count(head_dim) if self.features is None else self.features

    def draw(seed: jax.Array, epoch: jax.Array | int) -> jax.Array:
      # One named generator, so that a checkpoint means the same whatever JAX's default is.
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
    if not self.is_mutable_collection("features"):
      raise ConfigError(
        f"token_mixer.redraw={self.redraw} draws features in training: apply the model with"
        ' mutable=["features"] and keep what it returns, or set token_mixer.redraw=0'
      )
    epoch, into = calls.value // self.redraw, calls.value % self.redraw
    projection.value = jax.lax.cond(
      (into == 0) & (epoch > 0),
      lambda: draw(seed.value, epoch),
      lambda: projection.value,
    )
    calls.value = calls.value + 1
    return projection.value

  def _check(self) -> None:
    if self.kernel != "softmax" and self.kernel not in features.KERNELS:
      raise ConfigError(
        f"token_mixer.kernel={self.kernel!r}; valid: softmax, {listing(features.KERNELS)}"
      )
    if self.stabilizer not in features.STABILIZERS:
      raise ConfigError(
        f"token_mixer.stabilizer={self.stabilizer!r}; valid: {listing(features.STABILIZERS)}"
      )
    if not 0 <= self.local_heads <= self.num_heads:
      raise ConfigError(
        f"token_mixer.local_heads={self.local_heads} must lie between 0 and"
        f" model.num_heads={self.num_heads}"
      )
    if self.local_window < 1:
      raise ConfigError(f"token_mixer.local_window={self.local_window} must be at least 1")
