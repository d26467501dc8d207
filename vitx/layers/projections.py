"""The projections that attention modules share, with the names and shapes of Flax's own attention.

Kernels are `(C, H, D)` for `query`, `key`, `value` and `(H, D, C)` for `out`, so that weights can
be moved between mixers and from published checkpoints.
"""

import flax.linen as nn
from jax.typing import DTypeLike

from vitx.config.errors import ConfigError

XAVIER = nn.initializers.xavier_uniform()


def to_heads(
  num_heads: int,
  head_dim: int,
  name: str,
  *,
  dtype: DTypeLike,
  use_bias: bool = True,
  kernel_init: nn.initializers.Initializer = XAVIER,
):
  """Makes a linear projection of tokens to heads, (B, N, C) -> (B, N, H, D)."""
  return nn.DenseGeneral(
    (num_heads, head_dim), use_bias=use_bias, kernel_init=kernel_init, dtype=dtype, name=name
  )


def from_heads(
  width: int,
  name: str = "out",
  *,
  dtype: DTypeLike,
  use_bias: bool = True,
  kernel_init: nn.initializers.Initializer = XAVIER,
):
  """Makes a linear projection of heads to tokens, (B, N, H, D) -> (B, N, C)."""
  return nn.DenseGeneral(
    width, axis=(-2, -1), use_bias=use_bias, kernel_init=kernel_init, dtype=dtype, name=name
  )


def resolve_head_dim(width: int, num_heads: int, head_dim: int | None) -> int:
  """Returns the width D of a head: `head_dim` if it is given, otherwise `width / num_heads`."""
  if head_dim is not None:
    return head_dim
  if width % num_heads:
    raise ConfigError(
      f"model.num_heads={num_heads} does not divide model.width={width}."
      " Choose a divisor, or set token_mixer.head_dim."
    )
  return width // num_heads
