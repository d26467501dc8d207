"""The residual block of the Sparse Transformer."""

import jax

from vitx.blocks.pre_norm import PreNormBlock
from vitx.layers.dropout import Dropout
from vitx.layers.mlp import MLP, Activation, gelu


class SparseTransformerBlock(PreNormBlock):
  """x + a + b with a = mixer(norm(x)), b = MLP(norm(x + a)) (Child et al. 2019, section 5.2).

  The MLP's activation is x · sigmoid(1.702 x). Dropout is applied only at the end of each branch.
  """

  activation: Activation = "quick_gelu"

  def apply_mlp(self, x: jax.Array, train: bool, activation=gelu) -> jax.Array:
    """Applies the MLP with the given activation to (B, N, C), then dropout."""
    mlp = MLP(self.mlp_dim, activation=activation, dtype=self.dtype, name="mlp")
    return Dropout(self.dropout)(mlp(x, train), train)
