"""The trunk of a network: the part with positions and blocks, without the stem and the head."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vitx.attention import FROM_MODEL as MIXER_FROM_MODEL
from vitx.attention import MIXERS
from vitx.blocks.registry import BLOCKS
from vitx.blocks.registry import FROM_MODEL as BLOCK_FROM_MODEL
from vitx.blocks.token_reduction import TokenReduction
from vitx.config.checks import Rate
from vitx.config.errors import ConfigError
from vitx.config.registry import options
from vitx.layers.norms import NORMS
from vitx.layers.posemb import POSITIONS
from vitx.models import names
from vitx.models.initializers import INITIALIZATIONS
from vitx.ops.layout import TokenLayout

NO_REDUCTION = TokenReduction()
Parts = dict[str, tuple[Mapping[str, Any], Any, tuple[str, ...]]]


def with_defaults(parts: Parts, **defaults: Any) -> Parts:
  """Returns a copy of a network's table `PARTS` in which some parts have other defaults.

  Args:
    parts: The table `PARTS`.
    **defaults: The new defaults by the names of parts, as in a config: a name or a dict.
  """
  return {
    field: (table, defaults.get(field, default), hidden)
    for field, (table, default, hidden) in parts.items()
  }


def drop_rate(last: float, layer: int, depth: int) -> float:
  """Returns the rate of stochastic depth of a block: it grows linearly over the layers.

  (Huang et al. 2016, section 3.)

  Args:
    last: The rate of the last layer; that of the first is 0.
    layer: The number of the block, from 0.
    depth: The number of blocks L.
  """
  return last * layer / max(depth - 1, 1)


class Trunk(nn.Module, kw_only=True):
  """The base class of networks, with methods that apply positions and blocks.

  A subclass calls these methods in `__call__`. Their modules are submodules of the subclass, with
  the names `posemb`, `block_0`, `block_1`, ....

  Attributes:
    posemb: A function that makes the module of positions, which adds positions to the tokens or
      makes the mixers rotate queries and keys.
    norm: A function that makes the normalizations of the blocks.
    block: A function that makes a block.
    token_mixer: A function that makes the mixer of a block.
    initialization: A function `(key, params) -> params`, applied by `vitx.models.initialize`.
    causal: Whether a token attends only to itself and to earlier tokens.
    dropout: The dropout rate after the positions and in the blocks.
    stochastic_depth: The drop probability of the last block's branches; over the blocks, it grows
      linearly from zero.
    remat: Whether the backward pass recomputes a block's activations, which takes less memory and
      about a third more time.
    dtype: The dtype of the computation; parameters are float32.
  """

  # The parts that a config chooses by name. For each field: the table of its choices, its default,
  # and the options that the model sets itself.
  PARTS: ClassVar[Parts] = {
    "posemb": (POSITIONS, "learned", ("name",)),
    "norm": (NORMS, "layer", ("dtype", "name")),
    "block": (BLOCKS, "pre_norm", BLOCK_FROM_MODEL),
    "token_mixer": (MIXERS, "softmax", MIXER_FROM_MODEL),
    "initialization": (INITIALIZATIONS, "as_made", ("key", "params")),
  }

  posemb: Callable[..., Any]
  norm: Callable[..., Any]
  block: Callable[..., Any]
  token_mixer: Callable[..., nn.Module]
  initialization: Callable[[jax.Array, Any], Any]
  causal: bool = False
  dropout: Rate = 0.0
  stochastic_depth: Rate = 0.0
  remat: bool = False
  dtype: DTypeLike = jnp.float32

  def add_positions(
    self, x: jax.Array, layout: TokenLayout, at: jax.Array | None = None
  ) -> jax.Array:
    """Adds positions to tokens (B, N, C).

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of all tokens.
      at: The indices of these tokens in the layout, integers (N,); `None` means all, in order.
    """
    posemb = self.posemb(name=names.POSITIONS)
    return posemb(x, layout) if at is None else posemb(x, layout, at)

  def run_blocks(
    self,
    x: jax.Array,
    layout: TokenLayout,
    *,
    layers: range,
    depth: int,
    num_heads: int,
    mlp_dim: int,
    train: bool,
    mask: jax.Array | None = None,
    at: jax.Array | None = None,
    reduction: TokenReduction = NO_REDUCTION,
    name: str = names.BLOCK,
  ) -> jax.Array:
    """Applies consecutive blocks of the network to tokens.

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of all tokens.
      layers: The numbers of the blocks to apply, counted over the network.
      depth: The number of blocks L of the network.
      num_heads: The number of heads H.
      mlp_dim: The hidden width of the MLPs.
      train: Whether dropout and stochastic depth are active; they draw from the stream "dropout".
      mask: A boolean mask (B, N), True = may be attended; `None` means that all may.
      at: The indices of these tokens in the layout, integers (N,); `None` means all, in order.
      reduction: The token reduction, which removes tokens in some layers.
      name: The beginning of the names of the blocks, to which "_0", "_1", ... are appended.

    Returns:
      The tokens, (B, N, C); after a reduction they may be fewer than N.
    """
    places = {} if at is None else {"at": at}

    def run(block: Any, x: jax.Array, *, layout, mask, reduce) -> Any:
      if reduce is None:
        return block(x, layout, mask=mask, train=train, **places)
      return block(x, layout, mask=mask, train=train, reduce=reduce, **places)

    for number, layer in enumerate(layers):
      block = self.make_block(
        layer, depth=depth, num_heads=num_heads, mlp_dim=mlp_dim, name=f"{name}_{number}"
      )
      reduce = reduction.at(layer)
      run_one = partial(run, layout=layout, mask=mask, reduce=reduce)
      out = (nn.remat(run_one) if self.remat else run_one)(block, x)
      x, mask = (out, mask) if reduce is None else out
      x, layout = reduction.mask_output(x, mask), reduction.layout_after(layout, layer)
      self.sow("intermediates", "tokens", x)
    return x

  def run_sequence(self, x: jax.Array, layout: TokenLayout, **arguments: Any) -> jax.Array:
    """Applies all blocks of a network that is one sequence of blocks.

    The network must have the fields `depth`, `num_heads` and `mlp_dim`.

    Args:
      x: The tokens, (B, N, C).
      layout: The arrangement of all tokens.
      **arguments: The other arguments of `run_blocks`, such as `train`.
    """
    sizes = {field: getattr(self, field) for field in ("depth", "num_heads", "mlp_dim")}
    return self.run_blocks(x, layout, layers=range(sizes["depth"]), **sizes, **arguments)

  def make_block(
    self, layer: int, *, depth: int, num_heads: int, mlp_dim: int, **module: Any
  ) -> nn.Module:
    """Makes one block.

    Args:
      layer: The number of the block, from 0.
      depth: The number of blocks L.
      num_heads: The number of heads H.
      mlp_dim: The hidden width of the MLP.
      **module: The arguments `name` and `parent` of a Flax module.
    """
    return self.block(
      token_mixer=self._bind_mixer(num_heads=num_heads, layer=layer, depth=depth),
      norm=self.norm,
      mlp_dim=mlp_dim,
      dropout=self.dropout,
      stochastic_depth=drop_rate(self.stochastic_depth, layer, depth),
      dtype=self.dtype,
      **module,
    )

  def _bind_mixer(self, *, num_heads: int, layer: int, depth: int) -> Callable[..., nn.Module]:
    """Returns a function that makes the token mixer of a block; its argument is `name`."""
    fields = {"num_heads": num_heads, "dtype": self.dtype, "layer": layer, "depth": depth}
    extra = dict(getattr(self.posemb(parent=None), "mixer_fields", {}))
    if self.causal:
      extra["causal"] = True
    for field in extra:
      _check_free(self.token_mixer, field)
    return partial(self.token_mixer, **fields, **extra)


def _check_free(token_mixer: Callable[..., nn.Module], field: str) -> None:
  """Refuses a field of a mixer that the model sets, if it is missing or the config sets it too."""
  reason = "model.causal=True" if field == "causal" else "model.posemb='rope'"
  mixer = partial(token_mixer)  # its keywords are the fields that the config set
  kind: Any = mixer.func
  if field in mixer.keywords:
    value = mixer.keywords[field]
    raise ConfigError(f"model.token_mixer.{field}={value!r} is set, and {reason} sets it too.")
  if field not in options(kind):
    raise ConfigError(f"{reason} needs a token mixer with {field!r}, not {kind.__name__}.")
