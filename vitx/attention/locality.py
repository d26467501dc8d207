"""Locality self-attention: softmax without the query's own key, at a learned temperature."""

import math
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.base import Properties
from vitx.attention.named_pattern import GivenPatternAttention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Others, Pattern


class LocalityAttention(GivenPatternAttention):
  """Locality self-attention, for small data sets (Lee, Lee and Song 2021, arXiv 2112.13492).

  No token attends itself, not even the class token, so that the other tokens get more weight. The
  factor of the logits is learned and can sharpen the softmax. There is one factor for each head, as
  in the authors' code. (vit-pytorch has one for each layer, and learns its logarithm.)

  Attributes:
    temperature: The factor of the logits: "learned" is a parameter `temperature` (H,), 1 / sqrt(D)
      at the start; "fixed" is 1 / sqrt(D).
    self_edge: Whether tokens attend themselves too.
    edges: The name of the attention pattern. Unless `self_edge` is set, the edge of each token to
      itself is removed from this pattern.

  `PatternAttention` has the other attributes.
  """

  properties: ClassVar = Properties(
    accepts_causal=True, permutation_equivariant=True, masking_is_deletion=True, flops_exponent=2.0
  )
  logged: ClassVar = ("temperature",)

  temperature: Literal["learned", "fixed"] = "learned"
  self_edge: bool = False

  def full_pattern(self, layout: TokenLayout) -> Pattern:
    pattern = super().full_pattern(layout)
    return pattern if self.self_edge else pattern & Others()

  def project(
    self, x: jax.Array, *args: Any, **kwargs: Any
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Projects tokens as `AttentionModule.project` does, and applies the learned temperature.

    Later the logits are multiplied by 1 / sqrt(D), so the temperature is their total factor. A
    relative bias is not multiplied.
    """
    q, k, v = super().project(x, *args, **kwargs)
    if self.temperature == "fixed":
      return q, k, v
    root = math.sqrt(q.shape[-1])
    start = nn.initializers.constant(1 / root)
    temperature = self.param("temperature", start, (self.num_heads,), jnp.float32)
    q = (q.astype(jnp.float32) * (root * temperature)[:, None]).astype(q.dtype)
    return q, k, v
