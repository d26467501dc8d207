"""BigBird's attention."""

import math
from typing import Literal

import jax
import jax.numpy as jnp

from vitx.attention.pattern import PatternAttention
from vitx.config.checks import PositiveInt, Seed
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import OnGrid, Pattern, QueryParts, bigbird, redraw_blocks


class BigBirdAttention(PatternAttention):
  """Window, global and random blocks (Zaheer et al. 2020, section 2 and appendix D).

  The extended construction (ETC: g learned tokens in front of all blocks, global and carried
  through the network) is `prefix_global=True` with `model.extra_tokens=g`.

  Attributes:
    variant: the parts, joined by "+": "R+W+G", "W+G", "R", ...
    block: tokens in a block; no need to divide N.
    window: blocks in the window, odd.
    random: random blocks of a query block; no more than there are blocks, but for the default,
      which few blocks cut short.
    global_blocks: indices of blocks that attend all and are attended by all.
    keep_self: whether every block attends itself in the variants that do not say so.
    plan: of the random draw: "uniform", or "bigbird", which is that of the released code.
    seed: of the random draw, which differs by head and layer.
    redraw: "never", or "step": in training the random blocks are drawn anew at every step, from the
      stream "graph", the same for all examples and devices; evaluation keeps the fixed draw.
    query_parts: query blocks that attend at all, of "random", "window", "global", as the flags in
      the code of BBViT's authors have it; () for all.
    prefix_global: whether blocks are counted on the grid, and prefix tokens attend all and are
      attended by all; else prefix tokens are the first tokens of block 0, as published.

  `PatternAttention` has the other attributes.
  """

  variant: str = "R+W+G"
  block: PositiveInt = 64
  window: PositiveInt = 3
  random: PositiveInt = 3
  global_blocks: tuple[int, ...] = (0, -1)
  keep_self: bool = True
  plan: Literal["uniform", "bigbird"] = "uniform"
  seed: Seed = 0
  redraw: Literal["never", "step"] = "never"
  query_parts: tuple[Literal["random", "window", "global"], ...] = ()
  prefix_global: bool = False

  def pattern(self, layout: TokenLayout) -> Pattern:
    blocks = -(-(math.prod(layout.grid) if self.prefix_global else layout.length) // self.block)
    if self.random > max(blocks, type(self).random):
      raise ConfigError(
        f"token_mixer.random={self.random}: {layout.length} tokens have {blocks} blocks of"
        f" token_mixer.block={self.block} to draw from; lower one of the two"
      )
    try:
      pattern = bigbird(
        self.variant,
        block=self.block,
        window=self.window,
        random=self.random,
        global_blocks=tuple(self.global_blocks),
        keep_self=self.keep_self,
        plan=self.plan,
        heads=self.num_heads,
        seed=self.seed,
      )
    except ConfigError as error:  # the fields bear the names of the arguments
      raise ConfigError(f"token_mixer.{error}") from error
    parts = tuple(self.query_parts)
    pattern = pattern & QueryParts(parts, self.block) if parts else pattern
    return OnGrid(pattern) if self.prefix_global else pattern

  def training_pattern(self, layout: TokenLayout) -> Pattern:
    if self.redraw == "never":
      return self.full_pattern(layout)
    if self.causal:
      raise ConfigError(
        "token_mixer.redraw='step' draws whole blocks, of which causal=True would hide some tokens;"
        " use redraw='never' or causal=False"
      )
    if not self.has_rng("graph"):
      raise ConfigError(
        "token_mixer.redraw='step' draws blocks in training: apply the model with a key of the"
        " step, rngs={'graph': key}, or set token_mixer.redraw='never'"
      )
    # Flax folds the module's path into the stream's key, so that layers differ.
    key = jax.random.fold_in(self.make_rng("graph"), self.seed)
    seed = jax.random.bits(key, (), jnp.uint32)
    return self.with_prefix(
      redraw_blocks(self.pattern(layout).at(self.layer), layout, seed), layout
    )
