"""FNet: tokens mixed by the Fourier transform."""

from typing import ClassVar

import flax.linen as nn

from vitx import ops
from vitx.attention.base import TokenMixer
from vitx.ops.inputs import hide_tokens
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens


class FNet(TokenMixer):
  """FNet's mixing: the real part of the 2-D discrete Fourier transform over tokens and channels.

  (Lee-Thorp et al. 2022, equation 3.) The mixer has no parameters. Prefix tokens are transformed
  too. The transform is not normalized.

  Attributes:
    implementation: The way to compute: "masked" multiplies by the matrices of the transforms and
      sows the cosine and sine matrices over the tokens as the intermediate `attention`
      (1, 2, N, N); "kernelized" uses the fast Fourier transform; "auto" takes the faster of the
      two.
    dtype: The dtype of the result; the transform is float32.

  `TokenMixer` has the other attributes.
  """

  no_logits_reason: ClassVar = "its matrix is that of the Fourier transform"

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False count as zeros."""
    x = hide_tokens(x, mask)
    out, matrix = ops.fourier_mixing(x, implementation=self.implementation)
    self.sow_matrix(matrix)
    return out.astype(self.dtype)
