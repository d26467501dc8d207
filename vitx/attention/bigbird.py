"""BigBird's attention."""

from vitx.attention.pattern import PatternAttention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Pattern, QueryParts, bigbird


class BigBirdAttention(PatternAttention):
  """Window, global and random blocks (Zaheer et al. 2020, section 2 and appendix D).

  Attributes:
    variant: the parts, joined by "+": "R+W+G", "W+G", "R", ...
    block: tokens in a block, prefix tokens counted; no need to divide N.
    window: blocks in the window, odd.
    random: random blocks of a query block.
    global_blocks: indices of blocks that attend all and are attended by all.
    keep_self: whether every block attends itself in the variants that do not say so.
    plan: of the random draw: "uniform", or "bigbird", which is that of the released code.
    seed: of the random draw, which differs by head and layer.
    query_parts: query blocks that attend at all, of "random", "window", "global", as the flags in
      the code of BBViT's authors have it; empty: all.
  """

  variant: str = "R+W+G"
  block: int = 64
  window: int = 3
  random: int = 3
  global_blocks: tuple[int, ...] = (0, -1)
  keep_self: bool = True
  plan: str = "uniform"
  seed: int = 0
  query_parts: tuple[str, ...] = ()
  prefix_global: bool = False

  def pattern(self, layout: TokenLayout) -> Pattern:
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
    return pattern & QueryParts(parts, self.block) if parts else pattern
