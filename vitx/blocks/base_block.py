"""The base class of all blocks."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.config.errors import ConfigError
from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP, gelu
from vitx.ops.layout import TokenLayout
from vitx.ops.shapes import TokenMask, TokenPlaces, Tokens

Mix = Callable[[jax.Array], jax.Array]


class Block(nn.Module):
  """The base class of blocks, which have one token mixer and one channel MLP.

  A subclass defines `arrange`, which combines mixer and MLP. It may define its own `__call__`
  instead, which must pass `layout`, `mask`, `at` and `train` to `mix_tokens`.

  Attributes:
    token_mixer: A function that makes the mixer; its argument is `name`.
    mlp_dim: The hidden width of the MLP.
    norm: A function that makes a normalization; its arguments are `dtype` and `name`.
    dropout: The dropout rate on both branches and inside the MLP.
    stochastic_depth: The probability that a branch is dropped for an example, drawn separately for
      each branch.
    dtype: The dtype of the computation; normalization statistics are float32.
  """

  token_mixer: Callable[..., nn.Module]
  mlp_dim: int
  norm: Callable[..., nn.Module] = nn.LayerNorm
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Tokens,
    layout: TokenLayout,
    *,
    mask: TokenMask = None,
    at: TokenPlaces = None,
    train: bool,
  ) -> Tokens:
    """Maps tokens (B, N, C) to (B, N, C).

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of all tokens.
      mask: A boolean mask (B, N), True = may be attended; `None` means that all may.
      at: The indices of these tokens in the layout, integers (N,); `None` means all, in order.
      train: Whether dropout and stochastic depth are active.
    """
    return self.arrange(x, lambda y: self.mix_tokens(y, layout, mask, at, train), train)

  def arrange(self, x: jax.Array, mix: Mix, train: bool) -> jax.Array:
    """Returns the block's output (B, N, C) for tokens x (B, N, C).

    Args:
      x: The tokens, (B, N, C).
      mix: A function that applies the token mixer to (B, N, C), then dropout.
      train: Whether dropout and stochastic depth are active.
    """
    raise NotImplementedError

  def normalize(self, x: jax.Array, name: str) -> jax.Array:
    """Applies the normalization called `name` to (B, N, C)."""
    return self.norm(dtype=self.dtype, name=name)(x)

  def mix_tokens(
    self,
    x: jax.Array,
    layout: TokenLayout,
    mask: jax.Array | None,
    at: jax.Array | None,
    train: bool,
    dropout: float | None = None,
  ) -> jax.Array:
    """Applies the token mixer to tokens (B, N, C), then dropout.

    Args:
      x, layout, mask, at, train: The arguments of `__call__`.
      dropout: The dropout rate; None means the block's field `dropout`.
    """
    mixer = self.token_mixer(name="token_mixer")
    if at is None:
      y = mixer(x, layout, mask=mask, train=train)
    else:
      alone = x.shape[1] == 1 and getattr(mixer, "causal", False)
      decoding = self.is_mutable_collection("cache") and (alone or not self.is_initializing())
      if decoding and not getattr(mixer, "decodes", False):
        raise ConfigError(
          f"model.token_mixer: {type(mixer).__name__} cannot be decoded token by token: it has no"
          " cache of keys and values. Use softmax, or an attention pattern such as strided."
        )
      y = mixer(x, layout, mask=mask, at=at, train=train)
    return Dropout(self.dropout if dropout is None else dropout)(y, train)

  def rank_tokens(
    self,
    x: jax.Array,
    layout: TokenLayout,
    mask: jax.Array | None,
    also: str,
    train: bool,
    dropout: float | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Applies the token mixer, then dropout; also returns a quantity that compares tokens.

    Args:
      x, layout, mask, train, dropout: The arguments of `mix_tokens`.
      also: The quantity: "class_attention" or "keys", see `SoftmaxAttention`.

    Returns:
      The mixed tokens (B, N, C), and the quantity.
    """
    mixer = self.token_mixer(name="token_mixer")
    causal = getattr(mixer, "causal", False)  # then the class token, the first, attends only itself
    if causal or also not in getattr(mixer, "also_returns", ()):
      raise ConfigError(
        f"model.token_reduction compares tokens by their {also!r}, which {type(mixer).__name__}"
        f" (causal={causal}) does not return; use model.token_mixer='softmax' without causal."
      )
    y, compared = mixer(x, layout, mask=mask, also=also, train=train)
    return Dropout(self.dropout if dropout is None else dropout)(y, train), compared

  def apply_mlp(
    self, x: jax.Array, train: bool, activation: Callable[[jax.Array], jax.Array] = gelu
  ) -> jax.Array:
    """Applies the MLP with the given activation to (B, N, C), then dropout."""
    return MLP(self.mlp_dim, self.dropout, activation, dtype=self.dtype, name="mlp")(x, train)

  def drop_branch(self, y: jax.Array, train: bool) -> jax.Array:
    """Drops a residual branch (B, N, C) for some examples in training."""
    return Dropout(self.stochastic_depth, whole_example=True)(y, train)

  def refuse_stochastic_depth(self, setting: str) -> None:
    """Refuses stochastic depth, which would be ignored in a block without skips."""
    if self.stochastic_depth:
      raise ConfigError(
        f"model.stochastic_depth={self.stochastic_depth:g} drops branches beside a skip, and"
        f" model.{setting} has no skip; set model.stochastic_depth=0.0."
      )
