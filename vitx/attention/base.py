"""What token mixers share: the fields that a config sets, and how tokens become q, k and v."""

import dataclasses
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.attention.contract import Properties
from vitx.attention.positions import apply_rope, bias_tables
from vitx.config.checks import NonNegativeInt, Positive, PositiveInt, check_fields
from vitx.config.errors import ConfigError
from vitx.layers.projections import project_qkv, resolve_head_dim
from vitx.ops.implementation import Implementation
from vitx.ops.kernels.decode import Cache, decode_step, empty_cache
from vitx.ops.kernels.softmax import masked_softmax
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern
from vitx.ops.relative_bias import Places, axial_places, fold_bias_into_qk
from vitx.ops.sparse.slots import decode_plan


class TokenMixer(nn.Module):
  """Base of the token mixers: modules called as `module(x, layout, *, mask=None, train)`.

  Attributes:
    num_heads: H; the model sets it for every mixer, with heads or without.
    relative_bias: of the logits, learned for each head: "axial" adds, for every axis of the grid,
      the entry of a table (H, 2 g - 1) at the coordinates' difference; zero at the start, and for
      prefix tokens. An error where a mixer has no logits between tokens.
    implementation: "masked" holds the attention matrix and sows it as intermediate `attention`
      (B, H, N, N); "kernelized" never holds it; "auto" is the faster, which the op knows.
    causal: whether a token attends itself and what comes before it only, prefix tokens first; an
      error for a mixer that cannot.
    dtype: of the computation; probabilities, features and their sums are float32.
    layer, depth: the position of the block that this mixer serves.
  """

  properties: ClassVar = Properties()
  without_logits: ClassVar[str] = ""  # why there is none between two tokens to add a bias to
  decodes: ClassVar[bool] = False  # whether it can be called token by token, with a cache
  # Whether `__call__` takes `class_attention=True`, and then also returns what the first token
  # attends: (B, N) float32, the mean over the heads.
  tells_class_attention: ClassVar[bool] = False
  logged: ClassVar[tuple[str, ...]] = ()  # own parameters whose means are logged in training

  num_heads: PositiveInt
  relative_bias: Literal["none", "axial"] = "none"
  implementation: Implementation = "auto"
  causal: bool = False
  dtype: DTypeLike = jnp.float32
  layer: NonNegativeInt = 0
  depth: PositiveInt = 1

  def __post_init__(self):
    """Refuses what the mixer cannot do.

    Raises:
      ConfigError: a field of another type or out of range, `causal` of a mixer that cannot keep
        tokens apart, or a relative bias of one without logits.
    """
    super().__post_init__()
    names = {field.name for field in dataclasses.fields(self)} - {"parent", "name"}
    given = {name: getattr(self, name) for name in sorted(names)}
    check_fields(type(self), given, "token_mixer")
    rate = getattr(self, "dropout", 0.0)
    if self.implementation == "kernelized" and rate:
      raise ConfigError(
        "token_mixer.implementation='kernelized' cannot drop attention probabilities"
        f" (token_mixer.dropout={rate}); use 'masked' or 'auto', or set token_mixer.dropout=0"
      )
    if self.causal and not self.properties.accepts_causal:
      raise ConfigError(
        f"token_mixer.causal=True: {type(self).__name__} cannot keep a token from those after it;"
        " use causal=False, or softmax, performer, linear_transformer or an attention pattern"
      )
    if self.without_logits and self.relative_bias != "none":
      raise ConfigError(
        f"token_mixer.relative_bias={self.relative_bias!r}: {type(self).__name__} has no logit of a"
        f" query and a key to add a bias to: {self.without_logits}; use 'none', or softmax or an"
        " attention pattern"
      )

  def is_decoding(self, x: jax.Array, at: jax.Array | None) -> bool:
    """Returns whether this call is a step of decoding: places `at`, and a mutable "cache".

    Args:
      x: (B, N, C); N is 1 then.
      at: int (N,), the places of the tokens; None for all.

    Raises:
      ConfigError: it is, and the mixer cannot be decoded token by token.
      ValueError: several tokens at once.
    """
    if at is None or not self.is_mutable_collection("cache"):
      return False
    if self.is_initializing() and not (self.causal and x.shape[1] == 1):
      return False  # parameters are made; a cache is, where a token stands alone
    if not self.decodes:
      raise ConfigError(cannot_decode(self))
    if not self.causal:
      raise ConfigError(
        "token_mixer.causal=False: a token that attends later ones cannot be decoded token by"
        " token; set model.causal=True"
      )
    if x.shape[1] != 1:
      raise ValueError(f"decoding takes one token at a time, not {x.shape[1]}")
    return True

  def sow_matrix(self, matrix: jax.Array | None, probabilities: jax.Array | None = None) -> None:
    """Sows what an op returned beside its output; None is nothing.

    Args:
      matrix: (B, H, N, N), as intermediate `attention`.
      probabilities: what queries attend by a softmax, (B, H, N, N), as intermediate
        `probabilities`; None if it is the matrix, or if there is none (`without_logits`).
    """
    if matrix is None:
      return
    self.sow("intermediates", "attention", matrix)
    if not self.without_logits:
      own = matrix if probabilities is None else probabilities
      self.sow("intermediates", "probabilities", own)


def cannot_decode(mixer: nn.Module) -> str:
  """Returns the message about a mixer that has no cache."""
  return (
    f"model.token_mixer: {type(mixer).__name__} cannot be decoded token by token (it has no cache"
    " of keys and values); use softmax, or an attention pattern such as strided or fixed"
  )


class AttentionModule(TokenMixer):
  """Base of the mixers with queries, keys and values; call its helpers inside `nn.compact`.

  Attributes:
    head_dim: D; None for C / H.
    use_bias: of the query, key and value projections.
    rotary: "none", "sequence" or "axial" rotation of queries and keys by their position.
    rotary_base: of the frequencies.

  `TokenMixer` has the other attributes.
  """

  head_dim: PositiveInt | None = None
  use_bias: bool = True
  rotary: Literal["none", "sequence", "axial"] = "none"
  rotary_base: Positive = 10000.0

  def resolve_head_dim(self, x: jax.Array) -> int:
    """Returns D for tokens (B, N, C).

    Raises:
      ConfigError: H does not divide C.
    """
    return resolve_head_dim(x.shape[-1], self.num_heads, self.head_dim)

  def project(
    self, x: jax.Array, value_dim: int | None = None, value_bias: bool = True
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Makes queries, keys and values (B, N, H, D) of tokens (B, N, C), without positions.

    Args:
      x: (B, N, C).
      value_dim: D of the values, if it is another.
      value_bias: whether values have a bias where queries and keys do.
    """
    heads, dim, bias = self.num_heads, self.resolve_head_dim(x), self.use_bias
    return project_qkv(
      x, heads, dim, value_dim, dtype=self.dtype, use_bias=bias, value_bias=value_bias
    )

  def apply_positions(
    self,
    q: jax.Array,
    k: jax.Array,
    layout: TokenLayout,
    scale: float = 1.0,
    at: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Applies `rotary` and `relative_bias`; the latter makes queries and keys wider than D.

    Args:
      q, k: (B, N, H, D).
      layout: of all tokens.
      scale: that the logits will be multiplied by; the bias is not.
      at: int (N,), which tokens of the layout these are, as when decoding; None for all.

    Raises:
      ConfigError: a kind that does not fit, or tokens without places.
    """
    self._check_placed(layout)
    q, k = apply_rope(self.rotary, self.rotary_base, layout, q, k, at=at)
    if self.relative_bias == "none":
      return q, k
    places = self.places(layout)
    return fold_bias_into_qk(q, k, bias_tables(self, places, q.shape[2]), places, scale, at=at)

  def _check_placed(self, layout: TokenLayout) -> None:
    for field in ("rotary", "relative_bias"):
      if not layout.has_places and getattr(self, field) != "none":
        raise ConfigError(
          f"token_mixer.{field}={getattr(self, field)!r} needs the places of tokens, which"
          " model.token_reduction gave up; use 'none' (model.posemb='learned'), or"
          " model.token_reduction='zeroed'"
        )

  def class_attention(
    self, q: jax.Array, k: jax.Array, scale: float, mask: jax.Array | None
  ) -> jax.Array:
    """Returns what the first token attends, the mean over the heads, float32 (B, N).

    Args:
      q, k: (B, N, H, D), with positions.
      scale: of the logits.
      mask: boolean (B, N), True = may be attended.
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
    """Attends from one token to itself and those before it, which the collection "cache" holds.

    Its variables `cached_key` (B, H, M, D) and `cached_value` (B, H, M, E) have the M slots that
    the pattern needs, `cached_place` (G, M), where there is one, says which tokens they hold. All
    are zeros before the first token; tokens must come in order.

    Args:
      q, k: (B, 1, H, D), with positions.
      v: (B, 1, H, E).
      pattern: of this layer; None for all tokens up to this one.
      layout: of all tokens.
      scale: of the logits.
      at: int32 (1,), the token's place.

    Returns:
      (B, 1, H, E).
    """
    plan = decode_plan(pattern, layout, self.num_heads)
    start = empty_cache(plan, q.shape[0], k.shape[-1], v.shape[-1], v.dtype)
    held = {
      name: self.variable("cache", f"cached_{name}", lambda x: x, x)
      for name, x in start._asdict().items()
      if x is not None
    }
    cache = Cache(**{name: each.value for name, each in held.items()})
    out, cache = decode_step(q, k, v, cache, plan, at, scale=scale)
    if not self.is_initializing():
      for name, each in held.items():
        each.value = getattr(cache, name)
    return out

  def places(self, layout: TokenLayout) -> list[Places]:
    """Returns where the tokens stand, for each table of `relative_bias`.

    Raises:
      ConfigError: a kind of bias that the mixer does not have.
    """
    if self.relative_bias != "axial":
      raise ConfigError(f"token_mixer.relative_bias={self.relative_bias!r}; valid: axial, none")
    return axial_places(layout)

  def dropout_key(self, train: bool) -> jax.Array | None:
    """Returns the key for dropping attention probabilities, or None where nothing is dropped."""
    return self.make_rng("dropout") if train and getattr(self, "dropout", False) else None
