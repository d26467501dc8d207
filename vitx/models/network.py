"""What whole networks share: their choices, how blocks are made, how parameters begin."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention import FROM_MODEL, MIXERS
from vitx.blocks import registry
from vitx.blocks.pooling import POOLS
from vitx.blocks.registry import BLOCKS, drop_rate
from vitx.blocks.stems import STEMS
from vitx.errors import ConfigError
from vitx.layers.attention_initializers import INITIALISATIONS
from vitx.layers.norms import NORMS
from vitx.layers.posemb import POSITIONS
from vitx.ops.layout import TokenLayout
from vitx.registry import options

Dtype = jax.typing.DTypeLike


def with_defaults(parts: Mapping[str, tuple], **defaults: Any) -> dict[str, tuple]:
  """`PARTS` of a network with other defaults."""
  return {
    field: (table, defaults.get(field, default), hidden)
    for field, (table, default, hidden) in parts.items()
  }


def per_stage(value: int | Sequence[int], stages: int, field: str) -> tuple[int, ...]:
  """A value for each stage, from one for all or one for each.

  Raises:
    ConfigError: another number of values.
  """
  values = tuple(value) if isinstance(value, Sequence) else (value,)
  values = values * stages if len(values) == 1 else values
  if len(values) != stages:
    raise ConfigError(
      f"model.{field}={value!r} must be one value or one for each of the {stages} stages"
    )
  return values


def stage_layers(depths: Sequence[int]) -> list[range]:
  """The layers of each stage, numbered over the whole network."""
  ends = accumulate(depths)
  return [range(end - depth, end) for depth, end in zip(depths, ends, strict=True)]


class Network(nn.Module, kw_only=True):
  """A network of stem, positions, blocks and head; subclasses arrange them.

  Attributes:
    num_classes: outputs of the head.
    stem: makes the module that turns images into a token grid.
    posemb: makes the module that adds positions, or has the mixers turn by them.
    pool: makes the module that turns tokens into one vector; with `prefix` a learned token stands
      in front.
    norm: makes the normalizations of blocks and before the head.
    block: makes a block.
    token_mixer: makes the mixer of a block.
    initialization: `(key, params) -> params`, on what the modules made.
    head_hidden: width of a hidden layer of the head, with GELU; none: the head is linear.
    dropout: after the positions and in the blocks.
    stochastic_depth: drop probability of the last block's branches, growing linearly from zero.
    remat: recompute a block's activations in the backward pass: less memory, about a third more
      time.
    dtype: of the computation; parameters are float32.
  """

  # The named choices of a config: the field, its table, its default, what the model sets itself.
  PARTS: ClassVar[dict[str, tuple]] = {
    "stem": (STEMS, "linear", ("width", "dtype", "name")),
    "posemb": (POSITIONS, "learned", ("name",)),
    "pool": (POOLS, "cls", ("name",)),
    "norm": (NORMS, "layer", ("dtype", "name")),
    "block": (BLOCKS, "pre_norm", registry.FROM_MODEL),
    "token_mixer": (MIXERS, "softmax", FROM_MODEL),
    "initialization": (INITIALISATIONS, "as_made", ("key", "params")),
  }

  num_classes: int
  stem: Callable[..., nn.Module]
  posemb: Callable[..., Any]
  pool: Callable[..., Any]
  norm: Callable[..., Any]
  block: Callable[..., Any]
  token_mixer: Callable[..., nn.Module]
  initialization: Callable[[jax.Array, Any], Any]
  head_hidden: int | None = None
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  remat: bool = False
  dtype: Dtype = jnp.float32

  def with_class_token(
    self, grid: jax.Array, extra_tokens: int = 0
  ) -> tuple[jax.Array, TokenLayout, Any]:
    """Tokens (B, N, C) of a grid (B, rows, columns, C), their layout, and the pool that ends it.

    Extra learned tokens stand between the class token and the grid.
    """
    batch, rows, columns, width = grid.shape
    pool = self.pool(name="pool")
    layout = TokenLayout((rows, columns), prefix=pool.prefix + extra_tokens)
    x = grid.reshape(batch, rows * columns, width)
    for name, count, stddev in (
      ("extra", extra_tokens, 0.02),
      ("cls", pool.prefix, getattr(pool, "stddev", 0.0)),
    ):
      if count:
        tokens = self.param(name, nn.initializers.normal(stddev), (1, count, width), jnp.float32)
        tokens = jnp.broadcast_to(tokens.astype(x.dtype), (batch, count, width))
        x = jnp.concatenate([tokens, x], axis=1)
    return x, layout, pool

  def positioned(self, x: jax.Array, layout: TokenLayout) -> tuple[jax.Array, Callable]:
    """Tokens with positions, and the token mixer that was told about them.

    Raises:
      ConfigError: rotary positions, and a mixer that has no queries and keys to turn.
    """
    posemb = self.posemb(name="posemb")
    fields = getattr(posemb, "mixer_fields", {})
    return posemb(x, layout), partial(told(self.token_mixer, fields), **fields)

  def run_blocks(
    self,
    x: jax.Array,
    layout: TokenLayout,
    token_mixer: Callable,
    train: bool,
    *,
    layers: range,
    depth: int,
    num_heads: int,
    mlp_dim: int,
    name: str = "block",
  ) -> jax.Array:
    """Tokens (B, N, C) after some blocks, numbers `layers` of the network's `depth`."""
    block = self.block
    if self.remat:
      kind, fields = getattr(block, "func", block), getattr(block, "keywords", {})
      block = partial(nn.remat(kind, static_argnums=(2, 4)), **fields)
    for number, layer in enumerate(layers):
      mixer = partial(token_mixer, num_heads=num_heads, dtype=self.dtype, layer=layer, depth=depth)
      x = block(
        token_mixer=mixer,
        norm=self.norm,
        mlp_dim=mlp_dim,
        dropout=self.dropout,
        stochastic_depth=drop_rate(self.stochastic_depth, layer, depth),
        dtype=self.dtype,
        name=f"{name}_{number}",
      )(x, layout, None, train)
      self.sow("intermediates", "tokens", x)
    return x

  def logits(self, vector: jax.Array) -> jax.Array:
    """Float32 logits (B, num_classes) of (B, C)."""
    vector = vector.astype(jnp.float32)
    if self.head_hidden is not None:
      hidden = nn.Dense(self.head_hidden, name="head_hidden")
      vector = nn.gelu(hidden(vector), approximate=False)
    # The head starts at zero, so that the first loss is log(num_classes) and no class is preferred.
    head = nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name="head")
    return head(vector)


def told(token_mixer: Callable, fields: Mapping[str, Any]) -> Callable:
  """The mixer, if it can be told these fields.

  Raises:
    ConfigError: it has none of that name, or the config set it already.
  """
  given = getattr(token_mixer, "keywords", {})
  name = getattr(getattr(token_mixer, "func", token_mixer), "__name__", str(token_mixer))
  for field in fields:
    if field in given:
      raise ConfigError(
        f"model.token_mixer.{field}={given[field]!r} is set, and model.posemb='rope' sets it too;"
        " use one of the two"
      )
    if field not in options(token_mixer):
      raise ConfigError(
        f"model.posemb='rope' turns queries and keys, of which {name} has none to turn (no field"
        f" {field!r}); use model.posemb='learned', or another token_mixer"
      )
  return token_mixer
