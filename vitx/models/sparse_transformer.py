"""The Sparse Transformer: an autoregressive model of bytes (Child et al. 2019, section 5)."""

import math
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.checks import Depth, NonNegative, NonNegativeInt, PositiveInt
from vitx.config.errors import ConfigError
from vitx.models import names
from vitx.models.layer_cycle import run_cycle
from vitx.models.trunk import Parts, Trunk, with_defaults
from vitx.ops.layout import TokenLayout


class SparseTransformer(Trunk, kw_only=True):
  """A model that predicts each token of a sequence from the earlier tokens.

  To predict token t, the blocks get as input t the sum of two embeddings: one of token t - 1, and
  one of the place of token t - 1 in the grid. Input 0 is a learned start vector. With `remat` the
  backward pass recomputes the blocks. Each branch of a block ends with dropout.

  Attributes:
    vocabulary: The number of token ids V.
    grid: The arrangement of the N tokens, the last axis fastest: (height, width, channels) for
      images, rows and columns for text or sound.
    width: The number of channels C.
    depth: The number of blocks L.
    num_heads: The number of heads H.
    mlp_dim: The hidden width of the MLPs.
    embedding_stddev: The standard deviation of the initial token embeddings and start vector.
    layer_cycle: The number of layers after which the token mixers and their edges repeat, such as 4
      for one strided and three local mixers. Only one such cycle is compiled, and runs in a loop. 0
      compiles every layer.
  """

  PARTS: ClassVar[Parts] = with_defaults(
    Trunk.PARTS,
    posemb="axes",
    norm={"name": "layer", "epsilon": 1e-5},
    block="sparse_transformer",
    initialization="sparse_transformer",
  )

  vocabulary: PositiveInt
  grid: tuple[PositiveInt, ...]
  width: PositiveInt = 256
  depth: Depth = 4
  num_heads: PositiveInt = 2
  mlp_dim: PositiveInt = 512
  embedding_stddev: NonNegative = 0.01
  layer_cycle: NonNegativeInt = 0
  causal: Literal[True] = True  # no token may attend the token that it predicts

  def __post_init__(self):
    """Refuses settings that a loop over layers would ignore."""
    super().__post_init__()
    if self.layer_cycle and (self.depth % self.layer_cycle or self.stochastic_depth):
      raise ConfigError(
        f"model.layer_cycle={self.layer_cycle} needs model.stochastic_depth=0 and a divisor of"
        f" model.depth={self.depth}."
      )

  @property
  def layout(self) -> TokenLayout:
    """Returns the arrangement of the tokens."""
    return TokenLayout(tuple(self.grid))

  @property
  def input_spec(self) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of an input batch of one sequence: int32 (1, N)."""
    return jax.ShapeDtypeStruct((1, math.prod(self.grid)), jnp.int32)

  @nn.compact
  def __call__(
    self, tokens: jax.Array, *, at: jax.Array | None = None, train: bool = False
  ) -> jax.Array:
    """Returns float32 logits (B, N, V); the logits for token t depend only on earlier tokens.

    Args:
      tokens: The tokens, integers (B, N) in 0 ... V - 1. With `at`, only the token just before
        the index `at` of each sequence, (B, 1); for index 0 its value is ignored.
      at: The index of the token whose logits, (B, 1, V), are computed, int32 (1,). The collection
        "cache", with the keys and values of earlier calls, must then be mutable. None means all
        tokens.
      train: Whether dropout is active; it draws from the stream "dropout".
    """
    layout = self.layout
    if at is not None and not self.is_mutable_collection("cache"):
      raise ValueError("The argument `at` needs a mutable collection 'cache' of earlier tokens.")
    if at is None and tokens.shape[1] != layout.length:
      raise ConfigError(f"model.grid={self.grid} does not have {tokens.shape[1]} places.")
    x = self._enter(tokens, layout, at)  # (B, N, C)
    if self.layer_cycle and at is None:
      x = run_cycle(self, x, layout, train)
    else:
      x = self.run_sequence(x, layout, at=at, train=train)
    # The released code uses another epsilon here than in the blocks.
    x = nn.LayerNorm(epsilon=1e-6, dtype=self.dtype, name=names.NORM)(x)
    head = nn.Dense(
      self.vocabulary, use_bias=False, kernel_init=nn.initializers.zeros, name=names.HEAD
    )
    return head(x.astype(jnp.float32))

  def _enter(self, tokens: jax.Array, layout: TokenLayout, at: jax.Array | None) -> jax.Array:
    """Returns the input of the blocks, (B, N, C): the tokens' embeddings, shifted by one."""
    normal = nn.initializers.normal(self.embedding_stddev)
    embed = nn.Embed(
      self.vocabulary, self.width, embedding_init=normal, dtype=self.dtype, name=names.STEM
    )
    start = self.param(names.START, normal, (self.width,), jnp.float32).astype(self.dtype)
    x = embed(tokens.astype(jnp.int32))
    if at is not None:
      x = self.add_positions(x, layout, jnp.maximum(at - 1, 0))
      return jnp.where(at[:, None] == 0, start, x)
    x = self.add_positions(x, layout)
    first = jnp.broadcast_to(start, (x.shape[0], 1, self.width))
    return jnp.concatenate([first, x[:, :-1]], axis=1)

  def init_cache(self, batch: int) -> dict[str, Any]:
    """Returns the collection "cache" for decoding `batch` sequences, with zeros in all arrays."""
    previous = jax.ShapeDtypeStruct((batch, 1), jnp.int32)
    at = jax.ShapeDtypeStruct((1,), jnp.int32)
    shapes = jax.eval_shape(self.init, jax.random.key(0), previous, at=at)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes["cache"])
