"""The vision transformer: stem, positions, L blocks, head."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax

from vitx.blocks.token_reduction import TOKEN_REDUCTIONS, TokenReduction
from vitx.config.checks import Depth, PositiveInt, Range
from vitx.config.errors import ConfigError
from vitx.models.network import Network
from vitx.models.trunk import Parts
from vitx.ops.layout import TokenLayout


class ViT(Network):
  """Vision transformer (Dosovitskiy et al. 2021) with any stem, positions, pooling and token mixer.

  With other parts this class is MLP-Mixer (token mixer "mlp_mixing", no positions, pool "mean") or
  FNet (token mixer "fnet"). Unless `pool_first` is set, the network sows the tokens of the grid
  after the last normalization into "intermediates", as `patch_tokens` (B, N - prefix, C).

  Attributes:
    width: The number of channels C of a token.
    depth: The number of blocks L.
    num_heads: The number of heads H.
    mlp_dim: The hidden width of the MLPs.
    extra_tokens: The number g of learned tokens between the class token and the grid, such as
      registers (Darcet et al. 2024). If the token mixer is BigBird's with `prefix_global`, these
      tokens are the global tokens of its extended construction (Zaheer et al. 2020, section 2;
      ETC). The pool "mean" leaves the extra tokens out.
    token_reduction: A function that makes the token reduction. It needs a pool with a class token.
    pool_first: Whether to pool before the last normalization, as in vit-pytorch, instead of after
      it. With the pool "cls", both choices give equal logits.
  """

  PARTS: ClassVar[Parts] = {**Network.PARTS, "token_reduction": (TOKEN_REDUCTIONS, "none", ())}

  token_reduction: Callable[..., TokenReduction] = TokenReduction
  width: PositiveInt = 192
  depth: Depth = 12
  num_heads: PositiveInt = 3
  mlp_dim: PositiveInt = 768
  extra_tokens: Annotated[int, Range("[0, 4096]")] = 0
  pool_first: bool = False

  @nn.compact
  def __call__(
    self, images: jax.Array, *, mask: jax.Array | None = None, train: bool = False
  ) -> jax.Array:
    """Returns float32 logits (B, num_classes).

    Args:
      images: The images, (B, height, width, channels), normalized floats.
      mask: A boolean mask (B, N), True = may be attended, over all tokens, also those in front of
        the grid; `None` means that all may. A pool of more than the class token still counts
        masked tokens.
      train: Whether dropout and stochastic depth are active (stream "dropout"), and batch
        normalization uses statistics of the batch; the collection "batch_stats" must then be
        mutable.
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
    """Applies the stem, the positions and the blocks to images, but no last normalization.

    Returns:
      The tokens (B, N, C) after the last block, their layout, and the module that pools them.
    """
    grid = self.apply_stem(images, self.width, train)
    x, layout, pool = self.add_class_token(grid, self.extra_tokens)
    reduction = self._make_reduction(pool.prefix)
    x = self.enter_trunk(x, layout, train)
    x = self.run_sequence(x, layout, mask=mask, train=train, reduction=reduction)
    for layer in reduction.layers:
      layout = reduction.layout_after(layout, layer)
    return x, layout, pool

  def _make_reduction(self, class_tokens: int) -> TokenReduction:
    """Makes the token reduction, which must suit the pool and the token mixer."""
    reduction = self.token_reduction()
    reduction.check(self.depth)
    if reduction.layers and not class_tokens:
      raise ConfigError("model.token_reduction needs a class token; use model.pool='cls'.")
    mixer: Any = partial(self.token_mixer).func
    fixed = getattr(getattr(mixer, "properties", None), "fixed_length", False)
    if fixed and not reduction.keeps_places:
      raise ConfigError(
        f"model.token_reduction removes tokens, but parameters of {mixer.__name__} belong to places"
        " of tokens; use model.token_reduction='zeroed', which keeps all places."
      )
    return reduction
