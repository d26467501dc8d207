"""The base classes of token mixers, with the fields and methods that mixers share."""

import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx import ops
from vitx.config.checks import NonNegativeInt, Positive, PositiveInt, SquaredSize
from vitx.config.errors import ConfigError
from vitx.layers.projections import resolve_head_dim, to_heads
from vitx.ops.implementation import Implementation
from vitx.ops.kernels.decode import Cache, decode_step, empty_cache
from vitx.ops.kernels.softmax import masked_softmax
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern
from vitx.ops.relative_bias import Places, axial_places, fold_bias_into_qk, table_shape
from vitx.ops.rotary import rotary_angles, rotate
from vitx.ops.sparse.slots import decode_plan


@dataclasses.dataclass(frozen=True)
class Properties:
  """The guarantees of a mixer whose fields have their defaults.

  A class of mixers declares its guarantees as the class attribute `properties`.

  Attributes:
    implementations: The names of the implementations, which all compute equal outputs; empty if
      there is only one.
    accepts_mask: Whether a mask is accepted, and masked tokens then contribute exactly nothing.
    accepts_causal: Whether `causal=True` is accepted, and outputs are then independent of later
      tokens.
    permutation_equivariant: Whether permuted tokens give permuted outputs.
    masking_is_deletion: Whether masking tokens has the same effect as leaving them out.
    fixed_length: Whether the shapes of parameters depend on N. Every call must then have as many
      tokens as the call of `init`.
    flops_exponent: The exponent of N in the floating-point operations of the kernelized path.
  """

  implementations: tuple[str, ...] = ("masked", "kernelized")
  accepts_mask: bool = True
  accepts_causal: bool = False
  permutation_equivariant: bool = False
  masking_is_deletion: bool = False
  fixed_length: bool = False
  flops_exponent: float = 1.0


class TokenMixer(nn.Module):
  """The base class of token mixers, called as `module(x, layout, *, mask=None, train)`.

  Attributes:
    num_heads: The number of heads H; the model sets it even for mixers without heads.
    relative_bias: The learned bias of the logits, per head. "axial" has a table (H, 2 g - 1) for
      each axis of the grid (of extent g) and adds the entry for the difference between the
      coordinates of query and key. The bias starts at zero and is zero for prefix tokens. A mixer
      without logits between tokens raises ConfigError.
    implementation: The way to compute: "masked" computes the whole attention matrix and sows it as
      the intermediate `attention` (B, H, N, N); "kernelized" never stores this matrix; "auto" takes
      the faster of the two.
    causal: Whether a token attends only itself and earlier tokens; prefix tokens are the earliest.
      A mixer that cannot do this raises ConfigError.
    dtype: The dtype of the computation; probabilities, features and their sums are float32.
    layer: The number of the mixer's block, from 0.
    depth: The number of blocks L.
  """

  properties: ClassVar = Properties()
  # The reason why no logit belongs to a query and a key, for an error; "" if there are logits.
  no_logits_reason: ClassVar[str] = ""
  decodes: ClassVar[bool] = False  # whether the mixer can be called token by token
  # The values that the argument `also` of `__call__` may have. Each is a quantity by which a token
  # reduction compares tokens, see `SoftmaxAttention`.
  also_returns: ClassVar[tuple[str, ...]] = ()
  logged: ClassVar[tuple[str, ...]] = ()  # parameters whose means are logged in training

  num_heads: PositiveInt
  relative_bias: Literal["none", "axial"] = "none"
  implementation: Implementation = "auto"
  causal: bool = False
  dtype: DTypeLike = jnp.float32
  layer: NonNegativeInt = 0
  depth: PositiveInt = 1

  def __post_init__(self):
    """Refuses settings that this class of mixers would ignore."""
    super().__post_init__()
    kind = type(self).__name__
    if self.causal and not self.properties.accepts_causal:
      raise ConfigError(f"token_mixer.causal=True: {kind} cannot hide later tokens.")
    if self.no_logits_reason and self.relative_bias != "none":
      raise ConfigError(
        f"token_mixer.relative_bias={self.relative_bias!r}: {kind} has no logit of a query and a"
        f" key to which a bias could be added: {self.no_logits_reason}. Use 'none'."
      )

  def is_decoding(self, x: jax.Array, at: jax.Array | None) -> bool:
    """Returns whether this call decodes one token of a sequence that is being generated.

    A call decodes if `at` is given and the collection "cache" is mutable.

    Args:
      x: The tokens, (B, N, C); N is 1 in decoding.
      at: The indices of these tokens in the sequence, int (N,); None means all tokens.
    """
    if at is None or not self.is_mutable_collection("cache"):
      return False
    if self.is_initializing() and not (self.causal and x.shape[1] == 1):
      return False  # `init` makes a cache only for a single token of a causal mixer
    if not self.causal or x.shape[1] != 1:
      raise ConfigError(
        f"Decoding takes one token (not {x.shape[1]}) and token_mixer.causal=True (not"
        f" {self.causal})."
      )
    return True

  def sow_matrix(self, matrix: jax.Array | None, probabilities: jax.Array | None = None) -> None:
    """Sows a mixing matrix and its attention probabilities into the collection "intermediates".

    Args:
      matrix: The mixing matrix, (B, H, N, N), sown as `attention`; None sows nothing.
      probabilities: The softmax attention of the queries, (B, H, N, N), sown as `probabilities`;
        None means that `matrix` is this attention. A mixer without logits between tokens, see
        `no_logits_reason`, sows no probabilities.
    """
    if matrix is None:
      return
    self.sow("intermediates", "attention", matrix)
    if not self.no_logits_reason:
      probabilities = matrix if probabilities is None else probabilities
      self.sow("intermediates", "probabilities", probabilities)


class AttentionModule(TokenMixer):
  """The base class of mixers with queries, keys and values; call its methods inside `nn.compact`.

  Attributes:
    head_dim: The width D of a head; None means C / H.
    use_bias: Whether the query, key and value projections have a bias.
    rotary: The rotation of queries and keys by their position: "none", "sequence", "axial" or
      "centered", see `vitx.ops.rotary.rotary_angles`.
    rotary_base: The base of the rotation's frequencies.

  `TokenMixer` has the other attributes.
  """

  head_dim: SquaredSize | None = None
  use_bias: bool = True
  rotary: Literal["none", "sequence", "axial", "centered"] = "none"
  rotary_base: Positive = 10000.0

  def to_heads(
    self, x: jax.Array, name: str, dim: int | None = None, heads: int | None = None, **fields: Any
  ) -> jax.Array:
    """Projects tokens (B, N, C) to heads (B, N, H, D).

    Args:
      x: The tokens, (B, N, C).
      name: The name of the projection.
      dim: The width of a head; None means D.
      heads: The number of heads; None means H.
      **fields: Further arguments of `vitx.layers.projections.to_heads`. They take precedence over
        the mixer's `dtype` and `use_bias`.
    """
    dim = dim or resolve_head_dim(x.shape[-1], self.num_heads, self.head_dim)
    fields = {"dtype": self.dtype, "use_bias": self.use_bias, **fields}
    return to_heads(heads or self.num_heads, dim, name, **fields)(x)

  def project(
    self, x: jax.Array, value_dim: int | None = None, value_bias: bool = True, key_bias: bool = True
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Projects tokens (B, N, C) to queries, keys and values (B, N, H, D).

    Positions are not applied yet; `apply_positions` does this.

    Args:
      x: The tokens, (B, N, C).
      value_dim: The head width of the values; None means D, as for queries and keys.
      value_bias: Whether `use_bias` also applies to the values.
      key_bias: Whether `use_bias` also applies to the keys.
    """
    # Gradients are added in the order of these calls; another order changes their last bits.
    q = self.to_heads(x, "query")
    k = self.to_heads(x, "key", use_bias=self.use_bias and key_bias)
    return q, k, self.to_heads(x, "value", value_dim, use_bias=self.use_bias and value_bias)

  def apply_positions(
    self,
    q: jax.Array,
    k: jax.Array,
    layout: TokenLayout,
    scale: float = 1.0,
    at: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Rotates queries and keys by `rotary`, and adds channels for `relative_bias`.

    The product of the added channels of a query and a key, times `scale`, is their bias. So with a
    bias, the returned queries and keys are wider than D.

    Args:
      q, k: The queries and keys, (B, N, H, D).
      layout: The layout of all tokens.
      scale: The factor by which the logits will be multiplied; the bias is not scaled.
      at: The indices of these tokens in the layout, int (N,), as in decoding; None means all.
    """
    self.check_places(layout, "rotary", "relative_bias")
    if self.rotary != "none":
      angles = rotary_angles(layout, q.shape[-1], kind=self.rotary, base=self.rotary_base)
      turns = jnp.asarray(angles) if at is None else jnp.asarray(angles)[at]
      q, k = rotate(q, turns), rotate(k, turns)
    if self.relative_bias == "none":
      return q, k
    # With zeros a mixer starts as it would without a bias; published code draws the tables with a
    # standard deviation of 0.02.
    places, zeros, tables = self.places(layout), nn.initializers.zeros, []
    for number, (extents, _) in enumerate(places):
      name, shape = f"relative_bias_{number}", (q.shape[2], *table_shape(extents))
      if not self.has_variable("params", name):
        self.param(name, zeros, shape, jnp.float32)
      table: jax.Array = self.get_variable("params", name)  # a second call shares the table
      if table.shape != shape:
        raise ConfigError(f"{name} of shape {table.shape} does not fit this grid: {shape}.")
      tables.append(table)
    return fold_bias_into_qk(q, k, tables, places, scale, at=at)

  def check_places(self, layout: TokenLayout, *fields: str) -> None:
    """Refuses fields that need the places of the tokens if earlier layers left tokens out."""
    for field in fields:
      value = getattr(self, field)
      if not layout.has_places and value not in ("none", "full", 0):
        raise ConfigError(
          f"token_mixer.{field}={value!r} needs the places of the tokens, but some tokens were left"
          " out; leave this field out, and set model.posemb='learned' in place of 'rope'."
        )

  def softmax_attention(
    self, q: jax.Array, k: jax.Array, v: jax.Array, *edges: Any, train: bool, **arguments: Any
  ) -> tuple[jax.Array, jax.Array | None]:
    """Computes softmax attention with the mixer's `causal`, `implementation` and `dropout`.

    Args:
      q, k, v: The queries, keys and values, (B, N, H, D), after `apply_positions`.
      *edges: The pattern of the attention and the token layout; without them, every token attends
        every token.
      train: Whether dropout is active.
      **arguments: Other arguments of `vitx.ops.attention_with_weights`, such as `scale`.

    Returns:
      The output of the heads, (B, N, H, D), and the attention matrix, (B, H, N, N); the matrix is
      None if the implementation is "kernelized".
    """
    arguments = {"causal": self.causal, "implementation": self.implementation, **arguments}
    arguments |= {"dropout": getattr(self, "dropout", 0.0), "key": self.dropout_key(train)}
    return ops.attention_with_weights(q, k, v, *edges, **arguments)

  def class_attention(
    self, q: jax.Array, k: jax.Array, scale: float, mask: jax.Array | None
  ) -> jax.Array:
    """Returns the attention of the first token to each token, float32 (B, N), a mean over heads.

    Args:
      q, k: The queries and keys, (B, N, H, D), after `apply_positions`.
      scale: The factor of the logits.
      mask: A boolean mask (B, N), True = may be attended, or None.
    """
    logits = jnp.einsum("bhd,bnhd->bhn", q[:, 0], k, preferred_element_type=jnp.float32) * scale
    return jnp.mean(masked_softmax(logits, None if mask is None else mask[:, None]), axis=1)

  def decode(
    self,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    pattern: Pattern | None,
    layout: TokenLayout,
    scale: float,
    at: jax.Array,
  ) -> jax.Array:
    """Computes the attention of one new token while a sequence is generated token by token.

    The token attends to itself and to earlier tokens. The collection "cache" contains the keys and
    values of earlier tokens, and this call adds those of the new token. Tokens must be decoded in
    order. The cache has M slots, as many as the pattern needs at once: `cached_key` (B, H, M, D)
    and `cached_value` (B, H, M, E) for values of width E, zeros before the first token. If the
    pattern does not fix which slots a token reads, the cache also has `cached_place` (G, M): the
    index of the token in each slot, for G groups of heads with equal edges.

    Args:
      q, k: The query and key, (B, 1, H, D), after `apply_positions`.
      v: The value, (B, 1, H, E).
      pattern: The pattern of this layer; None means all tokens up to this one.
      layout: The layout of all tokens.
      scale: The factor of the logits.
      at: The index of the token in the layout, int32 (1,).

    Returns:
      The output of the heads, (B, 1, H, E).
    """
    plan = decode_plan(pattern, layout, self.num_heads)
    start = empty_cache(plan, q.shape[0], k.shape[-1], v.shape[-1], v.dtype)
    variables = {
      name: self.variable("cache", f"cached_{name}", lambda x: x, x)
      for name, x in start._asdict().items()
      if x is not None
    }
    cache = Cache(**{name: variable.value for name, variable in variables.items()})
    out, cache = decode_step(q, k, v, cache, plan, at, scale=scale)
    if not self.is_initializing():
      for name, variable in variables.items():
        variable.value = getattr(cache, name)
    return out

  def places(self, layout: TokenLayout) -> list[Places]:
    """Returns the coordinates of all tokens, once for each learned table of `relative_bias`.

    The base class returns the coordinates for the "axial" bias, which has one table for each axis
    of the grid. A mixer with another kind of bias overrides this method.
    """
    return axial_places(layout)

  def dropout_key(self, train: bool) -> jax.Array | None:
    """Returns the random key for dropping attention probabilities; None if none is dropped."""
    return self.make_rng("dropout") if train and getattr(self, "dropout", False) else None
