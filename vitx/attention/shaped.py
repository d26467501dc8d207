"""Shaped attention, the token mixer of simplified transformer blocks."""

from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx import ops
from vitx.attention.base import AttentionModule, Properties
from vitx.layers.projections import from_heads, resolve_head_dim
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, Tokens

# The initial (α, β) of layer i = 1, ..., L. γ starts at β, so that the rows of β A - γ C sum to 0.
STARTS = {
  "ones": lambda i: (1.0, 1.0),
  "equal": lambda i: (0.5, 0.5),
  "identity": lambda i: (1.0, 0.0),
  "inverse": lambda i: (0.0, 1.0),
  "dynamic": lambda i: (1 / i, 1 - 1 / i),
  "inverse_dynamic": lambda i: (1 - 1 / i, 1 / i),
}


def _zeros(is_zero: bool) -> dict:
  return {"kernel_init": nn.initializers.zeros} if is_zero else {}


class ShapedAttention(AttentionModule):
  """Shaped attention, (α I + β A - γ C) v (He and Hofmann 2024, section 4).

  I is the identity, A is the matrix of softmax attention, and the matrix C attends all tokens
  equally. The scalars α, β and γ are learned.

  Attributes:
    one_map: Whether all heads share one matrix A, from one pair of query and key projections.
    per_head: Whether each head has its own α, β, γ; if not, the layer has one of each.
    center: Whether there is a term γ C. If so, the query kernel starts at zero, so that A = C and
      the mixer starts as α I.
    start: The name of the initial values of α and β in `STARTS`. For example, "dynamic" is α = 1/i
      and β = 1 - 1/i in layer i, counted from 1.
    values: The value projection. "kept" is a learned linear map. "dropped" has no projection: the
      heads are groups of channels. "identity" is s I + r ΔW, where ΔW starts at zero and the
      learned gains s and r start at one. "first" is "identity" without bias in layer 0, and
      "dropped" in the other layers.
    output: The output projection: "kept", "dropped" or "identity", with the meanings of `values`.
    large_logits: Whether logits are multiplied by sqrt(D) instead of 1/sqrt(D), as in one published
      listing.

  `AttentionModule` has the other attributes. `head_dim` is the width of queries and keys, and
  `use_bias` also applies to the output projection. The sown attention matrix is (B, 1, N, N) if the
  heads share A and the scalars.
  """

  properties: ClassVar = Properties(
    permutation_equivariant=True, masking_is_deletion=True, flops_exponent=2.0
  )
  logged: ClassVar = ("alpha", "beta", "gamma")

  one_map: bool = False
  per_head: bool = True
  center: bool = True
  start: Literal["ones", "equal", "identity", "inverse", "dynamic", "inverse_dynamic"] = "ones"
  values: Literal["kept", "dropped", "identity", "first"] = "dropped"
  output: Literal["kept", "dropped", "identity"] = "dropped"
  large_logits: bool = False

  @nn.compact
  def __call__(
    self, x: Tokens, layout: TokenLayout, *, mask: TokenMask = None, train: bool
  ) -> Tokens:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing."""
    x = x.astype(self.dtype)
    width = x.shape[-1]
    maps = 1 if self.one_map else None
    q = self.to_heads(x, "query", heads=maps, **_zeros(self.center))
    k = self.to_heads(x, "key", heads=maps)
    head_dim = q.shape[-1]
    scale = head_dim**0.5 if self.large_logits else head_dim**-0.5
    q, k = self.apply_positions(q, k, layout, scale)
    v = self._to_values(x, resolve_head_dim(width, self.num_heads, None))  # (B, N, H, C / H)
    alpha, beta = STARTS[self.start](self.layer + 1)
    scalars = [self._scalar(*pair) for pair in (("alpha", alpha), ("beta", beta))]
    scalars.append(self._scalar("gamma", beta) if self.center else jnp.zeros(1))
    out, matrix = ops.shaped_attention(
      q, k, v, *scalars, key_mask=mask, scale=scale, implementation=self.implementation
    )
    attended = None
    if matrix is not None and self.is_mutable_collection("intermediates"):
      _, attended = ops.attention_with_weights(
        q, k, k, key_mask=mask, scale=scale, implementation="masked"
      )
    self.sow_matrix(matrix, attended)
    return self._from_values(out, width)

  def _scalar(self, name: str, start: float) -> jax.Array:
    count = self.num_heads if self.per_head else 1
    return self.param(name, nn.initializers.constant(start), (count,), jnp.float32)

  def _to_values(self, x: jax.Array, value_dim: int) -> jax.Array:
    heads = x.reshape(*x.shape[:2], self.num_heads, value_dim)
    values = self.values
    if values == "first":
      values = "dropped" if self.layer else "identity"
    if values == "dropped":
      return heads
    options = {"use_bias": self.use_bias and self.values != "first", **_zeros(values == "identity")}
    out = self.to_heads(x, "value", value_dim, **options)
    return self._add_gained("value", heads, out) if values == "identity" else out

  def _from_values(self, heads: jax.Array, width: int) -> jax.Array:
    flat = heads.reshape(*heads.shape[:2], width)
    if self.output == "dropped":
      return flat
    options = {"use_bias": self.use_bias, **_zeros(self.output == "identity")}
    out = from_heads(width, dtype=self.dtype, **options)(heads)
    return self._add_gained("out", flat, out) if self.output == "identity" else out

  def _add_gained(self, name: str, skip: jax.Array, residual: jax.Array) -> jax.Array:
    gains = (
      self.param(f"{name}_{part}_gain", nn.initializers.ones, (), jnp.float32).astype(skip.dtype)
      for part in ("skip", "residual")
    )
    return next(gains) * skip + next(gains) * residual
