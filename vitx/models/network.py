"""The base class of image classifiers, which adds a stem, a pool and a head to the trunk."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.blocks.pooling import POOLS, ClassToken
from vitx.blocks.stems import STEMS
from vitx.config.checks import PositiveInt
from vitx.config.errors import ConfigError
from vitx.layers.dropout import Dropout
from vitx.layers.mlp import gelu
from vitx.models import names
from vitx.models.trunk import Parts, Trunk
from vitx.ops.layout import TokenLayout


class Network(Trunk, kw_only=True):
  """The base class of image classifiers: a trunk between a stem and a head.

  A subclass calls its methods in `__call__`.

  Attributes:
    num_classes: The number of outputs of the head.
    stem: A function that makes the module which turns images into a token grid.
    pool: A function that makes the module which turns tokens into one vector. The attribute
      `prefix` of this module is the number of learned tokens that it needs in front of the grid.
    head_hidden: The width of a hidden layer of the head, with GELU; `None` means a linear head.
  """

  PARTS: ClassVar[Parts] = {
    "stem": (STEMS, "linear", ("width", "dtype", "name")),
    "pool": (POOLS, "cls", ("name",)),
    **Trunk.PARTS,
  }

  num_classes: int
  stem: Callable[..., nn.Module]
  pool: Callable[..., Any]
  head_hidden: PositiveInt | None = None

  def apply_stem(self, images: jax.Array, width: int, train: bool) -> jax.Array:
    """Turns images (B, height, width, channels) into a grid of tokens (B, rows, columns, C).

    Args:
      images: The images, (B, height, width, channels).
      width: The number of channels C of a token.
      train: Whether a stem with batch normalization takes statistics from the batch.
    """
    stem = self.stem(width=width, dtype=self.dtype, name=names.STEM)
    takes_train = "train" in inspect.signature(type(stem).__call__).parameters
    return stem(images, train=train) if takes_train else stem(images)

  def apply_norm(self, x: jax.Array, name: str = names.NORM) -> jax.Array:
    """Applies the network's kind of normalization to (..., C), as a module called `name`."""
    return self.norm(dtype=self.dtype, name=name)(x)

  def add_class_token(
    self, grid: jax.Array, extra_tokens: int = 0
  ) -> tuple[jax.Array, TokenLayout, Any]:
    """Unrolls a grid into a sequence, and puts the pool's and other learned tokens in front of it.

    Args:
      grid: The grid of tokens, (B, rows, columns, C).
      extra_tokens: The number of learned tokens between the class token and the grid.

    Returns:
      The tokens (B, N, C), their layout, and the module that pools them at the end.
    """
    batch, rows, columns, width = grid.shape
    pool = self.pool(name=names.POOL)
    by_mixer = getattr(self.token_mixer, "keywords", {}).get("causal")
    if (self.causal or by_mixer) and isinstance(pool, ClassToken):
      raise ConfigError(
        f"model{'' if self.causal else '.token_mixer'}.causal=True: the class token is the first"
        " token and would attend only to itself; use model.pool='mean' or 'sequence'."
      )
    layout = TokenLayout((rows, columns), prefix=pool.prefix + extra_tokens)
    x = grid.reshape(batch, rows * columns, width)
    for name, count, stddev in (
      (names.EXTRA_TOKENS, extra_tokens, 0.02),
      (names.CLASS_TOKEN, pool.prefix, getattr(pool, "stddev", 0.0)),
    ):
      if count:
        tokens = self.param(name, nn.initializers.normal(stddev), (1, count, width), jnp.float32)
        tokens = jnp.broadcast_to(tokens.astype(x.dtype), (batch, count, width))
        x = jnp.concatenate([tokens, x], axis=1)
    return x, layout, pool

  def enter_trunk(self, x: jax.Array, layout: TokenLayout, train: bool) -> jax.Array:
    """Adds positions to tokens (B, N, C) and applies dropout."""
    return Dropout(self.dropout)(self.add_positions(x, layout), train)

  def apply_head(self, vector: jax.Array) -> jax.Array:
    """Maps the pooled vectors (B, C) to float32 logits (B, num_classes)."""
    if vector.ndim != 2:
      raise ConfigError("model.pool='class_and_distillation' needs model.name='distilled_vit'.")
    vector = vector.astype(jnp.float32)
    if self.head_hidden is not None:
      hidden = nn.Dense(self.head_hidden, name=names.HEAD_HIDDEN)
      vector = gelu(hidden(vector))
    return self.classify(vector, names.HEAD)

  def classify(self, vectors: jax.Array, name: str) -> jax.Array:
    """Applies the linear classification layer called `name`: (..., C) -> (..., num_classes).

    The logits are float32. The layer starts at zero, so that the first loss is log(num_classes) and
    no class is preferred.
    """
    head = nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros, name=name)
    return head(vectors.astype(jnp.float32))
