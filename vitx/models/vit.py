"""The vision transformer: stem, positions, L blocks, head."""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax

from vitx.blocks.token_reduction import TOKEN_REDUCTIONS, NoReduction, TokenReduction
from vitx.config.checks import Depth, NonNegativeInt, PositiveInt
from vitx.config.errors import ConfigError
from vitx.models.network import Network
from vitx.models.trunk import Parts
from vitx.ops.layout import TokenLayout


class ViT(Network):
  """Vision transformer (Dosovitskiy et al. 2021) with any stem, positions, pooling and token mixer.

  Also MLP-Mixer (token mixer "mlp_mixing", no positions, pool "mean") and FNet ("fnet"). Sown in
  "intermediates" are `patch_tokens` (B, N - prefix, C), what the last normalization makes of the
  grid, unless `pool_first`.

  Attributes:
    width: C.
    depth: L.
    num_heads: H.
    mlp_dim: hidden width of the MLPs.
    extra_tokens: g learned tokens in front of the grid beside the class token (Darcet et al. 2024:
      registers). With a pattern mixer whose prefix is global they are the global tokens of
      BigBird's extended construction (Zaheer et al. 2020, section 2; ETC). Pooling by the mean
      leaves them out.
    token_reduction: gives up tokens in some layers; its pool must have a class token, by whose
      attention they are ranked.
    pool_first: pool before the last normalization instead of after it, as vit-pytorch does; without
      effect on a class token.
  """

  PARTS: ClassVar[Parts] = {
    **Network.PARTS,
    "token_reduction": (TOKEN_REDUCTIONS, "none", ()),
  }

  token_reduction: Callable[..., TokenReduction] = NoReduction
  width: PositiveInt = 192
  depth: Depth = 12
  num_heads: PositiveInt = 3
  mlp_dim: PositiveInt = 768
  extra_tokens: NonNegativeInt = 0
  pool_first: bool = False

  @nn.compact
  def __call__(
    self, images: jax.Array, *, mask: jax.Array | None = None, train: bool = False
  ) -> jax.Array:
    """Returns float32 logits (B, num_classes).

    Args:
      images: (B, height, width, channels), normalized floats.
      mask: boolean (B, N), True = may be attended, over all tokens, those in front of the grid
        included; `None` means that all may. Pooling by a mean counts masked tokens all the same.
      train: whether dropout, stochastic depth (stream "dropout") and batch statistics (collection
        "batch_stats", then mutable) are those of training.
    """
    x, layout, pool = self.encode(images, mask=mask, train=train)
    if self.pool_first:
      return self.apply_head(self.apply_norm(pool(x, layout)))
    x = self.apply_norm(x)
    self.sow("intermediates", "patch_tokens", x[:, layout.prefix :])
    return self.apply_head(pool(x, layout))

  def encode(
    self, images: jax.Array, *, mask: jax.Array | None, train: bool
  ) -> tuple[jax.Array, TokenLayout, Any]:
    """Returns the tokens (B, N, C) after the last block, their layout and the pool of the head."""
    grid = self.apply_stem(images, self.width, train)
    x, layout, pool = self.add_class_token(grid, self.extra_tokens)
    reduction = self._make_reduction(pool.prefix)
    x = self.run_blocks(
      self.enter_trunk(x, layout, train),
      layout,
      layers=range(self.depth),
      depth=self.depth,
      num_heads=self.num_heads,
      mlp_dim=self.mlp_dim,
      mask=mask,
      train=train,
      reduction=reduction,
    )
    for layer in reduction.layers:
      layout = reduction.layout_after(layout, layer)
    return x, layout, pool

  def _make_reduction(self, class_tokens: int) -> TokenReduction:
    """Returns what gives up tokens.

    Raises:
      ConfigError: layers that are not there, no class token, or a mixer bound to N.
    """
    reduction = self.token_reduction()
    reduction.check(self.depth)
    if reduction.layers and not class_tokens:
      raise ConfigError(
        "model.token_reduction ranks tokens by the class token's attention, and model.pool has no"
        " class token; use pool='cls', or model.token_reduction='none'"
      )
    mixer: Any = self._bind_mixer(num_heads=self.num_heads, layer=0, depth=self.depth)
    fixed = getattr(getattr(mixer.func, "properties", None), "fixed_length", False)
    if fixed and not reduction.keeps_places:
      raise ConfigError(
        f"model.token_reduction: parameters of {mixer.func.__name__} belong to the places of"
        " tokens, some of which would be given up; use model.token_reduction='zeroed', which keeps"
        " all places, or token_mixer='softmax'"
      )
    return reduction
