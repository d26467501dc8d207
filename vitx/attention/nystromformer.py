"""Nyströmformer: softmax attention by landmarks."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.base import AttentionModule
from vitx.attention.contract import Properties
from vitx.errors import ConfigError, listing
from vitx.layers.projections import from_heads
from vitx.ops.kernels import nystrom
from vitx.ops.layout import TokenLayout

PADDINGS = ("masked", "front")


class Nystromformer(AttentionModule):
  """Nyström attention with a depthwise convolution of the values beside it (Xiong et al. 2021).

  Attributes:
    landmarks: M, the most that are used.
    iterations: of the pseudo-inverse.
    kernel_size: taps of the convolution over the tokens, odd; 0: no convolution.
    padding: where N is no multiple of `landmarks`. "masked": the last segment is shorter. "front":
      tokens of zeros are put in front, take part in everything and are cut off again, as in the
      published code; a mask leaves them out. Rotations are the same for both: a shift of all
      positions changes no logit.
    pinv_scale: "example" or "batch" (published), see `vitx.ops.kernels.nystrom.pseudo_inverse`.
    others: see `AttentionModule`; rotation comes before landmarks are made, and the matrix is
      without the convolution and with the padding in front.
  """

  properties: ClassVar = Properties()
  without_logits: ClassVar = "queries and keys meet landmarks, each a mean of many"

  landmarks: int = 64
  iterations: int = 6
  kernel_size: int = 33
  padding: str = "masked"
  pinv_scale: str = "example"

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing.

    Raises:
      ConfigError: a field has no valid value.
    """
    self._check()
    length, width = x.shape[1:]
    masked = self.picked(x) == "masked"
    front = -length % self.landmarks if self.padding == "front" else 0
    x = jnp.pad(x, ((0, 0), (front, 0), (0, 0)))
    mask = None if mask is None else jnp.pad(mask, ((0, 0), (front, 0)))
    q, k, v = self.projected(x)  # (B, N, H, D)
    q, k = self._positioned(q, k, layout, front)
    if mask is not None:
      v = jnp.where(mask[:, :, None, None], v, jnp.zeros_like(v))
    given = {"mask": mask, "iterations": self.iterations, "pinv_scale": self.pinv_scale}
    if masked:
      out, matrix = nystrom.masked_nystrom_attention(q, k, v, self.landmarks, **given)
      self.sow("intermediates", "attention", matrix)
    else:
      out = nystrom.nystrom_attention(q, k, v, self.landmarks, **given)
    if self.kernel_size:
      init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=0, out_axis=1)
      taps = self.param("convolution", init, (self.kernel_size, self.num_heads), jnp.float32)
      out = out + nystrom.depthwise_convolution(v, taps)
    return from_heads(width, dtype=self.dtype)(out[:, front:])

  def _positioned(self, q: jax.Array, k: jax.Array, layout: TokenLayout, front: int):
    """The tokens turned; padding in front stays, as zeros do and a bias there means nothing."""
    turned = self.positioned(q[:, front:], k[:, front:], layout)
    if not front:
      return turned
    return (jnp.concatenate([y[:, :front], z], axis=1) for y, z in zip((q, k), turned, strict=True))

  def _check(self) -> None:
    for field, valid in (("padding", PADDINGS), ("pinv_scale", nystrom.PINV_SCALES)):
      if getattr(self, field) not in valid:
        raise ConfigError(f"token_mixer.{field}={getattr(self, field)!r}; valid: {listing(valid)}")
    if self.landmarks < 1:
      raise ConfigError(f"token_mixer.landmarks={self.landmarks} must be at least 1")
    if self.kernel_size and self.kernel_size % 2 == 0:
      raise ConfigError(
        f"token_mixer.kernel_size={self.kernel_size} must be odd, or 0 for no convolution"
      )
