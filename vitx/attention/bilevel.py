"""BiFormer's attention: each region of the grid attends only a few regions, which it chooses."""

import math
from typing import Annotated, ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp

from vitx import ops
from vitx.attention.base import AttentionModule, Properties
from vitx.config.checks import PositiveInt, Range
from vitx.layers.depthwise import DepthwiseConvolution
from vitx.layers.projections import from_heads
from vitx.ops.inputs import hide_tokens
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens
from vitx.ops.sparse.bilevel import region_numbers, route


class BilevelAttention(AttentionModule):
  """Bi-level routing attention (Zhu et al. 2023, section 3.2 and equation 6).

  The grid is cut into `regions` parts along each axis. Each region chooses the `top` regions whose
  mean keys have the largest products with its mean query; all heads share this choice. The tokens
  of a region attend all tokens of the regions that it chose. The choice has no gradient. The local
  context enhancement (LCE), a depthwise convolution of the values over the grid, is added to the
  output.

  If `regions` does not divide the grid, the grid is padded at its end. No query attends the
  padding, and no mean counts it. (The released code pads only if its option `auto_pad` is set; its
  queries attend the padding, and its means count it.) BiFormer has no prefix tokens. In this module
  prefix tokens attend all tokens and are attended by all.

  Attributes:
    regions: The number of regions S along each axis of the grid.
    top: The number k of regions that a region attends; all regions if there are fewer than k.
    local_kernel: The side of the LCE's kernel, odd; 0 means no LCE.
    scale_by: The width whose square root divides the logits: "head_dim" (D), or "width" (H D, the
      width of all heads together), as in the released code.

  `AttentionModule` has the other attributes. The choice of regions uses queries and keys without
  positions. The sown attention matrix does not include the LCE.
  """

  properties: ClassVar = Properties(flops_exponent=2.0)

  regions: PositiveInt = 7
  top: PositiveInt = 4
  local_kernel: Annotated[int, Range("[0, 31], odd or 0")] = 5
  scale_by: Literal["head_dim", "width"] = "head_dim"

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing."""
    numbers = region_numbers(layout.grid, self.regions)
    q, k, v = self.project(x)  # (B, N, H, D)
    P = layout.prefix
    grid = None if mask is None else mask[:, P:]
    chosen = route(q[:, P:], k[:, P:], numbers, min(self.top, len(numbers)), grid)
    heads, dim = q.shape[2:]
    scale = 1 / math.sqrt(dim if self.scale_by == "head_dim" else heads * dim)
    q, k = self.apply_positions(q, k, layout, scale)
    out, matrix = ops.bilevel_attention(
      q,
      k,
      v,
      *chosen,
      layout,
      self.regions,
      key_mask=mask,
      scale=scale,
      implementation=self.implementation,
    )
    self.sow_matrix(matrix)
    if self.local_kernel:
      image = hide_tokens(v, mask)[:, P:].reshape(x.shape[0], *layout.grid, heads * dim)
      local = DepthwiseConvolution(self.local_kernel, dtype=self.dtype, name="local")(image)
      local = local.reshape(v[:, P:].shape)
      out = out + jnp.pad(local, [(0, 0), (P, 0), (0, 0), (0, 0)])
    return from_heads(x.shape[-1], dtype=self.dtype)(out)
