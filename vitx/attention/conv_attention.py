"""The token mixers of LeViT and CvT: softmax attention with batch normalization.

CvT's mixer also has depthwise convolutions. The "masked" and the "kernelized" implementation of a
mixer have equal parameters.
"""

import math
from typing import ClassVar

import flax.linen as nn
import jax

from vitx.attention.base import AttentionModule, Properties
from vitx.config.checks import PositiveInt
from vitx.config.errors import ConfigError
from vitx.layers.depthwise import DepthwiseConvolution, KernelSide
from vitx.layers.mlp import gelu
from vitx.layers.norms import BatchNorm
from vitx.layers.projections import from_heads
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens


class _BatchStatisticsAttention(AttentionModule):
  """The base class of LeViT's and CvT's attention; a subclass makes the projections."""

  properties: ClassVar = Properties(accepts_mask=False, flops_exponent=2.0)

  use_bias: bool = False

  def attend(self, layout: TokenLayout, q, k, v, mask: jax.Array | None) -> jax.Array:
    """Returns the output of the heads, (B, N, H, D), for q (B, N, H, D) and k, v (B, M, H, D).

    M is N unless the keys were strided.
    """
    if mask is not None:
      raise ConfigError(
        f"{type(self).__name__} takes no mask: its batch normalization would count masked tokens."
      )
    scale = 1 / math.sqrt(q.shape[-1])
    if q.shape == k.shape:
      q, k = self.apply_positions(q, k, layout, scale)
    out, matrix = self.softmax_attention(q, k, v, scale=scale, train=False)
    self.sow_matrix(matrix)
    return out


class LeViTAttention(_BatchStatisticsAttention):
  """LeViT's attention (Graham et al. 2021, section 4.4), as in vit-pytorch 0.19.6.

  Queries, keys and values are batch-normalized. The output of the heads goes through a GELU
  (Hardswish in LeViT's own code), the output projection and a batch normalization whose factor
  starts at zero. Unlike LeViT's own attention it has no bias of the logits, as in ViX (Jeevan and
  Sethi 2022, section 3); `relative_bias="axial"` adds one.

  Attributes:
    use_bias: Whether the query, key and value projections have a bias.

  `AttentionModule` has the other attributes.
  """

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); in training the collection "batch_stats" must be mutable."""

    def normalize(y: jax.Array, name: str) -> jax.Array:
      flat = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])  # (B, N, H D)
      return BatchNorm(dtype=self.dtype, name=f"{name}_norm")(flat, train).reshape(y.shape)

    names = ("query", "key", "value")
    q, k, v = (normalize(y, n) for y, n in zip(self.project(x), names, strict=True))
    out = gelu(self.attend(layout, q, k, v, mask))
    out = from_heads(x.shape[-1], dtype=self.dtype)(out)
    zeros = nn.initializers.zeros
    return BatchNorm(dtype=self.dtype, scale_init=zeros, name="out_norm")(out, train)


class CvTAttention(_BatchStatisticsAttention):
  """CvT's attention (Wu et al. 2021, section 3.2), with convolutions before the projections.

  A depthwise convolution, a batch normalization and a linear map make the queries. Keys and values
  share a second depthwise convolution, which may be strided, and a second batch normalization, as
  in vit-pytorch 0.19.6; each has a linear map of its own.

  Attributes:
    use_bias: Whether the query, key and value projections have a bias.
    kernel: The side of the depthwise convolutions, odd.
    kv_stride: The stride of the convolution of keys and values.

  `AttentionModule` has the other attributes.
  """

  kernel: KernelSide = 3
  kv_stride: PositiveInt = 1

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); in training the collection "batch_stats" must be mutable."""
    if layout.prefix:
      raise ConfigError("model.token_mixer='cvt' convolves the grid, without a class token.")
    if self.kv_stride != 1 and (self.rotary, self.relative_bias) != ("none", "none"):
      raise ConfigError(
        f"model.token_mixer.kv_stride={self.kv_stride} leaves keys on a coarser grid than queries,"
        " so they have no common places. Use model.posemb='learned' and relative_bias='none'."
      )
    width = x.shape[-1]
    image = x.reshape(x.shape[0], *layout.grid, width)
    queries = self._convolve(image, "query", 1, train)
    pairs = self._convolve(image, "key_value", self.kv_stride, train)
    q = self.to_heads(queries, "query")
    k, v = self.to_heads(pairs, "key"), self.to_heads(pairs, "value")
    return from_heads(width, dtype=self.dtype)(self.attend(layout, q, k, v, mask))

  def _convolve(self, image: jax.Array, name: str, stride: int, train: bool) -> jax.Array:
    """Convolves and normalizes a grid (B, g, ..., g', C), and returns its tokens (B, M, C)."""
    convolve = DepthwiseConvolution(
      self.kernel, stride, use_bias=False, dtype=self.dtype, name=f"{name}_conv"
    )
    y = BatchNorm(dtype=self.dtype, name=f"{name}_norm")(convolve(image), train)
    return y.reshape(y.shape[0], math.prod(y.shape[1:-1]), y.shape[-1])
