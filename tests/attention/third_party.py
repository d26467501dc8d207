"""A token mixer as a user of vitx writes it: cosine attention with a learned temperature."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx import ops
from vitx.attention import AttentionModule, Properties, from_heads


def unit(x):
  return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


class CosineAttention(AttentionModule):
  """softmax(temperature * cosine(q, k)) v, a temperature for each head (Liu et al. 2022, eq. 2)."""

  properties = Properties(
    accepts_causal=True, permutation_equivariant=True, masking_is_deletion=True, flops_exponent=2.0
  )

  logged = ("temperature",)  # parameters whose means are in `metrics.jsonl`

  temperature: float = 10.0  # the initial value

  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    q, k, v = self.project(x)  # (B, N, H, D)
    start = nn.initializers.constant(self.temperature)
    temperature = self.param("temperature", start, (self.num_heads, 1))
    q, k = unit(q) * temperature.astype(q.dtype), unit(k)
    q, k = self.apply_positions(q, k, layout)  # rotary and relative_bias, as a config sets them
    settings = {"causal": self.causal, "implementation": self.implementation}
    out, matrix = ops.attention_with_weights(q, k, v, key_mask=mask, scale=1.0, **settings)
    self.sow_matrix(matrix)  # None if the implementation computes no matrix
    return from_heads(x.shape[-1], dtype=self.dtype)(out)  # (B, N, C)
