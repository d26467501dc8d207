"""The parallel block: token mixer and MLP side by side."""

import flax.linen as nn
import jax

from vitx.blocks.base_block import Block
from vitx.ops.layout import TokenLayout


class ParallelBlock(Block):
  """y = norm(x), then x + mixer(y) + MLP(y), one normalization for both.

  GPT-J's block (Wang and Komatsuzaki 2021). ViT-22B's (Dehghani et al. 2023, section 2.1) is this
  with normalized queries and keys and no biases in their projections: token mixer
  `dict(name="softmax", use_bias=False, qk_norm=True)`.

  Attributes:
    separate_norms: a normalization for each branch: GPT-NeoX's (Black et al. 2022, section 2.1).
    others: see `Block`.
  """

  separate_norms: bool = False

  @nn.compact
  def __call__(
    self, x: jax.Array, layout: TokenLayout, mask: jax.Array | None, train: bool
  ) -> jax.Array:
    """See `Block`."""
    y = self.normalized(x, "norm")
    mixed = self.mixed(y, layout, mask, train)
    if self.separate_norms:
      y = self.normalized(x, "mlp_norm")
    return x + self.branch(mixed, train) + self.branch(self.through_mlp(y, train), train)
