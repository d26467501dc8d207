"""The vision transformer: stem, positions, L blocks, head."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention import FROM_MODEL, MIXERS
from vitx.layers.blocks import PreNormBlock, drop_rate
from vitx.layers.dropout import Dropout
from vitx.layers.pooling import POOLS, class_token
from vitx.layers.posemb import POSITIONS
from vitx.layers.stems import STEMS
from vitx.ops.layout import TokenLayout

Dtype = jax.typing.DTypeLike


class ViT(nn.Module):
  """Vision transformer (Dosovitskiy et al. 2021) with any stem, positions, pooling and token mixer.

  Attributes:
    num_classes: outputs of the head.
    width: C.
    depth: L.
    num_heads: H.
    mlp_dim: hidden width of the MLPs.
    stem: makes the module that turns images into a token grid.
    posemb: makes the module that adds positions.
    pool: `(tokens, layout) -> (B, C)`; with `class_token` a learned token stands in front.
    token_mixer: makes the mixer of a block.
    dropout: after the positions and in the blocks.
    stochastic_depth: drop probability of the last block's branches, growing linearly from zero.
    remat: recompute a block's activations in the backward pass: less memory, about a third more
      time.
    dtype: of the computation; parameters are float32.
  """

  # The named choices of a config: the field, its table, its default, what the model sets itself.
  PARTS: ClassVar = {
    "stem": (STEMS, "linear", ("width", "dtype", "name")),
    "posemb": (POSITIONS, "learned", ("name",)),
    "pool": (POOLS, "cls", ("x", "layout")),
    "token_mixer": (MIXERS, "softmax", FROM_MODEL),
  }

  num_classes: int
  stem: Callable[..., nn.Module]
  posemb: Callable[..., nn.Module]
  pool: Callable[[jax.Array, TokenLayout], jax.Array]
  token_mixer: Callable[..., nn.Module]
  width: int = 192
  depth: int = 12
  num_heads: int = 3
  mlp_dim: int = 768
  dropout: float = 0.0
  stochastic_depth: float = 0.0
  remat: bool = False
  dtype: Dtype = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes).

    Args:
      images: (B, height, width, channels), normalised floats.
      train: whether dropout and stochastic depth are active (stream "dropout").
    """
    x = self.stem(width=self.width, dtype=self.dtype, name="stem")(images)
    batch, rows, columns, _ = x.shape
    has_class_token = getattr(self.pool, "func", self.pool) is class_token
    layout = TokenLayout((rows, columns), prefix=int(has_class_token))
    x = x.reshape(batch, rows * columns, self.width)  # (B, N, C)
    if has_class_token:
      token = self.param("cls", nn.initializers.zeros, (1, 1, self.width), jnp.float32)
      token = jnp.broadcast_to(token.astype(x.dtype), (batch, 1, self.width))
      x = jnp.concatenate([token, x], axis=1)
    x = self.posemb(name="posemb")(x, layout)
    x = Dropout(self.dropout)(x, train)
    for layer in range(self.depth):
      x = self._block(layer)(x, layout, None, train)
      self.sow("intermediates", "tokens", x)
    x = nn.LayerNorm(dtype=self.dtype, name="norm")(x)
    x = self.pool(x, layout)
    # The head starts at zero, so that the first loss is log(num_classes) and no class is preferred.
    head = nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name="head")
    return head(x.astype(jnp.float32))

  def _block(self, layer: int) -> nn.Module:
    block = nn.remat(PreNormBlock, static_argnums=(2, 4)) if self.remat else PreNormBlock
    mixer = partial(
      self.token_mixer,
      num_heads=self.num_heads,
      dtype=self.dtype,
      layer=layer,
      depth=self.depth,
    )
    return block(
      token_mixer=mixer,
      mlp_dim=self.mlp_dim,
      dropout=self.dropout,
      stochastic_depth=drop_rate(self.stochastic_depth, layer, self.depth),
      dtype=self.dtype,
      name=f"block_{layer}",
    )
