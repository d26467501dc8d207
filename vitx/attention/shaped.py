"""Shaped attention of the simplified transformer block."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention.choices import chosen
from vitx.attention.positions import turned
from vitx.attention.projections import Dtype, from_heads, head_dim_of, to_heads
from vitx.attention.properties import Properties
from vitx.errors import ConfigError, listing
from vitx.ops import shaped
from vitx.ops.layout import TokenLayout

# (α, β) of layer i = 1, ..., L; γ starts at β, so that β A - γ C starts centred.
STARTS = {
  "ones": lambda i: (1.0, 1.0),
  "equal": lambda i: (0.5, 0.5),
  "identity": lambda i: (1.0, 0.0),
  "inverse": lambda i: (0.0, 1.0),
  "dynamic": lambda i: (1 / i, 1 - 1 / i),
  "inverse_dynamic": lambda i: (1 - 1 / i, 1 / i),
}
PROJECTIONS = ("kept", "dropped", "identity")


def _zeros(wanted: bool) -> dict:
  return {"kernel_init": nn.initializers.zeros} if wanted else {}


class ShapedAttention(nn.Module):
  """(α I + β A - γ C) v, A softmax attention, C uniform attention (He and Hofmann 2024, section 4).

  The model's heads share one map, or have one each; the scalars are learned.

  Attributes:
    num_heads: H.
    head_dim: D of queries and keys; none: C / H.
    use_bias: of the query, key, value and output projections.
    one_map: one pair of query and key projections makes one matrix A for all channels.
    per_head: α, β, γ for each head instead of one for the layer.
    centre: whether there is γ C; then the query kernel starts at zero, so that A = C and the mixer
      starts as α I.
    start: of α and β, a name of `STARTS`; "dynamic" is 1/i and 1 - 1/i in layer i.
    values: "kept", "dropped" (the heads are groups of channels), or "identity": s I + r ΔW with ΔW
      starting at zero and learned gains s, r starting at one.
    output: the same for the output projection.
    large_logits: logits times sqrt(D) instead of 1/sqrt(D), as in one published listing.
    rotary: "none", "sequence" or "axial" rotation of queries and keys.
    rotary_base: of the frequencies.
    implementation: "masked" sows the matrix as intermediate `attention`, (B, H, N, N), or
      (B, 1, N, N) where heads share map and scalars.
    dtype: of the computation; the matrix and the scalars are float32.
    layer, depth: the position of the block that this mixer serves, for `start`.
  """

  properties: ClassVar = Properties(
    permutation_equivariant=True, masking_is_deletion=True, flops_exponent=2.0
  )

  num_heads: int
  head_dim: int | None = None
  use_bias: bool = True
  one_map: bool = False
  per_head: bool = True
  centre: bool = True
  start: str = "ones"
  values: str = "dropped"
  output: str = "dropped"
  large_logits: bool = False
  rotary: str = "none"
  rotary_base: float = 10000.0
  implementation: str = "auto"
  dtype: Dtype = jnp.float32
  layer: int = 0
  depth: int = 1

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, *, mask: jax.Array | None = None, train: bool
  ) -> jax.Array:
    """Maps (B, N, C) to (B, N, C); tokens whose `mask` (B, N) is False contribute nothing.

    Raises:
      ConfigError: a field has no valid value, or H does not divide C.
    """
    self._check()
    x = x.astype(self.dtype)
    width = x.shape[-1]
    head_dim = head_dim_of(width, self.num_heads, self.head_dim)
    maps = 1 if self.one_map else self.num_heads
    given: dict[str, Any] = {"dtype": self.dtype, "use_bias": self.use_bias}
    q = to_heads(maps, head_dim, "query", **given, **_zeros(self.centre))(x)
    k = to_heads(maps, head_dim, "key", **given)(x)
    q, k = turned(self.rotary, self.rotary_base, layout, q, k)
    v = self._to_values(x, head_dim_of(width, self.num_heads, None))  # (B, N, H, C / H)
    alpha, beta = STARTS[self.start](self.layer + 1)
    scalars = [self._scalar(*pair) for pair in (("alpha", alpha), ("beta", beta))]
    scalars.append(self._scalar("gamma", beta) if self.centre else jnp.zeros(1))
    scale = head_dim**0.5 if self.large_logits else head_dim**-0.5
    if chosen(self.implementation) == "masked":
      mixed, matrix = shaped.masked_shaped_attention(q, k, v, *scalars, mask=mask, scale=scale)
      self.sow("intermediates", "attention", matrix)
    else:
      mixed = shaped.shaped_attention(q, k, v, *scalars, mask=mask, scale=scale)
    return self._from_values(mixed, width)

  def _scalar(self, name: str, start: float) -> jax.Array:
    count = self.num_heads if self.per_head else 1
    return self.param(name, nn.initializers.constant(start), (count,), jnp.float32)

  def _to_values(self, x: jax.Array, value_dim: int) -> jax.Array:
    heads = x.reshape(*x.shape[:2], self.num_heads, value_dim)
    if self.values == "dropped":
      return heads
    init = _zeros(self.values == "identity")
    project = to_heads(
      self.num_heads, value_dim, "value", dtype=self.dtype, use_bias=self.use_bias, **init
    )
    return self._gained("value", heads, project(x)) if self.values == "identity" else project(x)

  def _from_values(self, mixed: jax.Array, width: int) -> jax.Array:
    flat = mixed.reshape(*mixed.shape[:2], width)
    if self.output == "dropped":
      return flat
    init = _zeros(self.output == "identity")
    project = from_heads(width, dtype=self.dtype, use_bias=self.use_bias, **init)
    return (
      self._gained("out", flat, project(mixed)) if self.output == "identity" else project(mixed)
    )

  def _gained(self, name: str, skip: jax.Array, residual: jax.Array) -> jax.Array:
    gains = (
      self.param(f"{name}_{part}_gain", nn.initializers.ones, (), jnp.float32).astype(skip.dtype)
      for part in ("skip", "residual")
    )
    return next(gains) * skip + next(gains) * residual

  def _check(self) -> None:
    for field, valid in (("start", STARTS), ("values", PROJECTIONS), ("output", PROJECTIONS)):
      if getattr(self, field) not in valid:
        raise ConfigError(f"token_mixer.{field}={getattr(self, field)!r}; valid: {listing(valid)}")
