"""Nyströmformer: softmax attention, approximated by landmarks (means of consecutive tokens)."""

from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp

from vitx import ops
from vitx.attention.base import AttentionModule
from vitx.config.checks import Range, SquaredSize
from vitx.layers.projections import from_heads
from vitx.ops.inputs import hide_tokens
from vitx.ops.kernels.nystrom import depthwise_convolution
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens

Iterations = Annotated[int, Range("[1, 100]")]  # limited, because the program unrolls iterations


class Nystromformer(AttentionModule):
  """Nyström attention plus a depthwise convolution of the values (Xiong et al. 2021).

  Attributes:
    landmarks: The largest number M of landmarks.
    iterations: The number of iterations of the pseudo-inverse.
    kernel_size: The number of taps of the convolution over the tokens, odd; 0 means no convolution.
    padding: The treatment of an N that is no multiple of `landmarks`. "masked" makes the last
      segment shorter. "front" puts tokens of zeros in front of the sequence, as in the published
      code, and removes them at the end; without a mask these zeros count like other tokens, and
      with a mask they are masked. Rotary positions count from the first real token in both cases.
    pinv_scale: The scope of the largest row sum and column sum, which scale the first guess of the
      pseudo-inverse: "example" takes them for each matrix, "batch" over the part of the
      batch that its device computes, as published.

  `AttentionModule` has the other attributes. Queries and keys are rotated before landmarks are
  made. The sown attention matrix has entries for the padding in front, and does not include the
  convolution.
  """

  no_logits_reason: ClassVar = "queries and keys meet landmarks, each a mean of many"

  landmarks: SquaredSize = 64
  iterations: Iterations = 6
  kernel_size: Annotated[int, Range("[0, 1023], odd or 0")] = 33
  padding: Literal["masked", "front"] = "masked"
  pinv_scale: Literal["example", "batch"] = "example"

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing."""
    length, width = x.shape[1:]
    front = -length % self.landmarks if self.padding == "front" else 0
    x = jnp.pad(x, ((0, 0), (front, 0), (0, 0)))
    mask = None if mask is None else jnp.pad(mask, ((0, 0), (front, 0)))
    q, k, v = self.project(x)  # (B, N, H, D)
    placed = self.apply_positions(q[:, front:], k[:, front:], layout)
    if front:  # the padding has no positions
      q, k = (jnp.concatenate([y[:, :front], z], 1) for y, z in zip((q, k), placed, strict=True))
    else:
      q, k = placed
    v = hide_tokens(v, mask)
    out, matrix = ops.nystrom_attention(
      q,
      k,
      v,
      self.landmarks,
      key_mask=mask,
      iterations=self.iterations,
      pinv_scale=self.pinv_scale,
      implementation=self.implementation,
    )
    self.sow_matrix(matrix)
    if self.kernel_size:
      init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=0, out_axis=1)
      taps = self.param("convolution", init, (self.kernel_size, self.num_heads), jnp.float32)
      out = out + depthwise_convolution(v, taps)
    return from_heads(width, dtype=self.dtype)(out[:, front:])
