"""The parallel block: token mixer and MLP side by side."""

import flax.linen as nn
import jax

from vitx.blocks.base_block import Block
from vitx.ops.layout import TokenLayout


class ParallelBlock(Block):
  """y = norm(x), then x + mixer(y) + MLP(y), with one normalization for both branches.

  This is GPT-J's block (Wang and Komatsuzaki 2021). ViT-22B's block (Dehghani et al. 2023, section
  2.1) also normalizes queries and keys and has no biases in their projections: token mixer
  `dict(name="softmax", use_bias=False, qk_norm=True)`.

  Attributes:
    separate_norms: Whether each branch has a normalization of its own, as in GPT-NeoX (Black et al.
      2022, section 2.1).
  """

  separate_norms: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layout: TokenLayout,
    *,
    mask: jax.Array | None = None,
    at: jax.Array | None = None,
    train: bool,
  ) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments."""
    y = self.normalize(x, "norm")
    mixed = self.mix_tokens(y, layout, mask, at, train)
    if self.separate_norms:
      y = self.normalize(x, "mlp_norm")
    return x + self.drop_branch(mixed, train) + self.drop_branch(self.apply_mlp(y, train), train)
