"""The parallel block: token mixer and MLP side by side."""

import jax

from vitx.blocks.base_block import Block, Mix


class ParallelBlock(Block):
  """y = norm(x), then x + mixer(y) + MLP(y), with one normalization for both branches.

  This is GPT-J's block (Wang and Komatsuzaki 2021). ViT-22B's block (Dehghani et al. 2023, section
  2.1) also normalizes queries and keys and has no biases in their projections; for it, set the
  token mixer to `dict(name="softmax", use_bias=False, qk_norm=True)`.

  Attributes:
    separate_norms: Whether each branch has a normalization of its own, as in GPT-NeoX (Black et al.
      2022, section 2.1).
  """

  separate_norms: bool = False

  def arrange(self, x: jax.Array, mix: Mix, train: bool) -> jax.Array:
    """Maps tokens (B, N, C) to (B, N, C); `Block` describes the arguments."""
    y = self.normalize(x, "norm")
    mixed = mix(y)
    if self.separate_norms:
      y = self.normalize(x, "mlp_norm")
    return x + self.drop_branch(mixed, train) + self.drop_branch(self.apply_mlp(y, train), train)
