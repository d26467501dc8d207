"""FNet: tokens mixed by the Fourier transform."""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.choices import chosen
from vitx.attention.projections import Dtype
from vitx.attention.properties import Properties
from vitx.ops import mixing
from vitx.ops.layout import TokenLayout


class FNet(nn.Module):
  """The real part of the 2-D discrete Fourier transform over tokens and channels, no parameters.

  (Lee-Thorp et al. 2022, equation 3.) Prefix tokens take part; the result is not normalised.

  Attributes:
    num_heads: not used; the model sets it for every mixer.
    implementation: "masked" multiplies with the transforms' matrices and sows those over the
      tokens, cosine and sine, as intermediate `attention` (1, 2, N, N); "kernelized" is the fast
      transform.
    dtype: of the result; the transform is float32.
    layer, depth: the position of the block that this mixer serves.
  """

  properties: ClassVar = Properties()

  num_heads: int = 1
  implementation: str = "auto"
  dtype: Dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False count as zeros."""
    if mask is not None:
      x = jnp.where(mask[:, :, None], x, jnp.zeros_like(x))
    if chosen(self.implementation) == "masked":
      out, matrices = mixing.masked_fourier_mixing(x)
      self.sow("intermediates", "attention", matrices[None])
    else:
      out = mixing.fourier_mixing(x)
    return out.astype(self.dtype)
