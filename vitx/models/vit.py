"""The vision transformer: stem, positions, L blocks, head."""

import flax.linen as nn
import jax

from vitx.layers.dropout import Dropout
from vitx.models.network import Network


class ViT(Network):
  """Vision transformer (Dosovitskiy et al. 2021) with any stem, positions, pooling and token mixer.

  Also MLP-Mixer (token mixer "mlp_mixing", no positions, pool "mean") and FNet ("fnet").

  Attributes:
    width: C.
    depth: L.
    num_heads: H.
    mlp_dim: hidden width of the MLPs.
    extra_tokens: g learned tokens in front of the grid beside the class token (Darcet et al. 2024:
      registers). With a pattern mixer whose prefix is global they are the global tokens of
      BigBird's extended construction (Zaheer et al. 2020, section 2; ETC). Pooling by the mean
      leaves them out.
    pool_first: pool before the last normalization instead of after it, as vit-pytorch does; the
      same for a class token.
    others: see `Network`.
  """

  width: int = 192
  depth: int = 12
  num_heads: int = 3
  mlp_dim: int = 768
  extra_tokens: int = 0
  pool_first: bool = False

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    """Returns float32 logits (B, num_classes).

    Args:
      images: (B, height, width, channels), normalized floats.
      train: whether dropout, stochastic depth (stream "dropout") and batch statistics (collection
        "batch_stats", then mutable) are those of training.
    """
    grid = self.stem(width=self.width, dtype=self.dtype, name="stem")(images)
    x, layout, pool = self.with_class_token(grid, self.extra_tokens)  # (B, N, C)
    x, token_mixer = self.positioned(x, layout)
    x = Dropout(self.dropout)(x, train)
    x = self.run_blocks(
      x,
      layout,
      token_mixer,
      train,
      layers=range(self.depth),
      depth=self.depth,
      num_heads=self.num_heads,
      mlp_dim=self.mlp_dim,
    )
    norm = self.norm(dtype=self.dtype, name="norm")
    return self.logits(norm(pool(x, layout)) if self.pool_first else pool(norm(x), layout))
