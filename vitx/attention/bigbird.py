"""BigBird's attention: blocks of tokens attend window, global and random blocks."""

import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from vitx.attention.pattern import PatternAttention
from vitx.config.checks import PositiveInt, Range, Seed, SquaredSize
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import OnGrid, Pattern, QueryParts, bigbird, redraw_blocks


class BigBirdAttention(PatternAttention):
  """Attention to window, global and random blocks (Zaheer et al. 2020, section 2, appendix D).

  BigBird's extended construction (ETC) puts g learned global tokens in front of all blocks; the
  global tokens pass through the whole network. For ETC, set `prefix_global=True` and
  `model.extra_tokens=g`.

  Attributes:
    variant: The parts (R random, W window, G global), joined by "+": "R+W+G", "W+G", "R", ...
    block: The number of tokens in a block, which need not divide N.
    window: The number of blocks in the window, the query's own block included; odd.
    random: The number of random blocks of a query block. If the sequence has fewer blocks, a value
      up to the default means all blocks.
    global_blocks: The indices of blocks that attend all blocks and are attended by all.
    keep_self: Whether every block attends itself even if the variant has no window.
    plan: The rule of the random draw: "uniform", or "bigbird" as in the released code.
    seed: The seed of the random draw; heads and layers have different draws.
    redraw: The time of new random draws: "never", or "step" for every training step. A step's draw
      comes from the stream "graph" and is shared by all examples and devices. Evaluation always
      uses the draw of `seed`.
    query_parts: The query blocks that attend; the others have the output zero. The names are flags
      in the code of BBViT's authors: "random" is block 0, "global" is the last block, and "window"
      is all blocks between them. () means that all blocks attend.
    prefix_global: Whether block 0 begins behind the prefix tokens, and prefix tokens attend all
      tokens and are attended by all. If not, prefix tokens are the first tokens of block 0, as
      published.

  `PatternAttention` has the other attributes.
  """

  variant: str = "R+W+G"
  block: SquaredSize = 64
  window: Annotated[int, Range("[1, 9999], odd")] = 3
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
        f"token_mixer.random={self.random} exceeds the number of blocks, {blocks}, of"
        f" {layout.length} tokens with token_mixer.block={self.block}. Lower one of the two."
      )
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
    parts = tuple(self.query_parts)
    pattern = pattern & QueryParts(parts, self.block) if parts else pattern
    return OnGrid(pattern) if self.prefix_global else pattern

  def training_pattern(self, layout: TokenLayout) -> Pattern:
    if self.redraw == "never":
      return self.full_pattern(layout)
    if self.causal:
      raise ConfigError("token_mixer.redraw='step' draws whole blocks; set causal=False.")
    # Flax folds the module's path into the key of the stream, so that layers differ.
    key = jax.random.fold_in(self.make_rng("graph"), self.seed)
    seed = jax.random.bits(key, (), jnp.uint32)
    return self.with_prefix(
      redraw_blocks(self.pattern(layout).at(self.layer), layout, seed), layout
    )
