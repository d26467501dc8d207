"""Token reduction: some layers remove the tokens that the class token attends least.

A reduction works inside a block, between the token mixer and the MLP, and keeps shapes static. It
needs the attention of the class token, which not every mixer can return.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from vitx.config.checks import NonNegativeInt, Share
from vitx.config.errors import ConfigError
from vitx.ops.inputs import hide_tokens
from vitx.ops.kernels.selection import count_kept, keep_first
from vitx.ops.kernels.top_k import kept_mask
from vitx.ops.layout import TokenLayout

Reduce = Callable[..., tuple[jax.Array, jax.Array | None]]


@dataclasses.dataclass(frozen=True)
class TokenReduction:
  """No reduction: all tokens stay to the end. This is also the base class of token reductions.

  Attributes:
    layers: The layers, from 0, in which tokens are removed. Here there are none; each
      subclass makes this a field.
    keeps_places: Whether removed tokens are only masked. Then no token changes its place in the
      sequence, and every mixer that accepts a mask works.
  """

  layers: ClassVar[tuple[int, ...]] = ()
  keeps_places: ClassVar[bool] = True

  def check(self, depth: int) -> None:
    """Checks the layers in which tokens are removed.

    Raises:
      ConfigError: If a layer does not exist, or if the layers are not in ascending order.
    """
    layers = list(self.layers)
    if layers != sorted(set(layers)) or (layers and layers[-1] >= depth):
      raise ConfigError(
        f"model.token_reduction.layers={tuple(layers)} must name layers of 0 ... {depth - 1}"
        f" in ascending order, each once, because model.depth={depth}."
      )

  def at(self, layer: int) -> Reduce | None:
    """Returns the function by which the block of a layer removes tokens; None if it removes none.

    The arguments of the function are the tokens (B, N, C), their layout, a mask (B, N) or None, and
    the attention of the class token, float32 (B, N). It returns the remaining tokens, (B, N', C),
    and their mask, (B, N') or None.
    """
    return partial(self.reduce, number=self.layers.index(layer)) if layer in self.layers else None

  def reduce(self, x, layout: TokenLayout, mask, attention, *, number: int):
    """Removes tokens, or masks them.

    Args:
      x, layout, mask, attention: The arguments of the function that `at` returns.
      number: The number of earlier reductions in the network.

    Returns:
      The remaining tokens, (B, N', C), and their mask, (B, N') or None.
    """
    raise NotImplementedError

  def layout_after(self, layout: TokenLayout, layer: int) -> TokenLayout:
    """Returns the layout of the tokens after a layer, given their layout before it."""
    return layout

  def mask_output(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Changes masked tokens in the output (B, N, C) of a block; here, it leaves all unchanged."""
    return x


@dataclasses.dataclass(frozen=True)
class FuseInattentive(TokenReduction):
  """EViT: the tokens that the class token attends least become one (Liang et al. 2022, 3.2).

  A reduction chooses from the n tokens after the prefix. It keeps the ceil(keep n) tokens to which
  the class token attends most, on average over the heads. The sum of the other tokens, weighted by
  this attention, becomes one more token, which later layers may remove like any other. If
  ceil(keep n) is n, nothing is removed. The remaining tokens have no order and no places in a grid,
  so the model needs a mixer that uses neither.

  Attributes:
    layers: The layers, from 0, in which tokens are removed.
    keep: The share of the tokens that each reduction keeps.
    fuse: Whether the other tokens become one token; if not, they are dropped.
  """

  layers: tuple[NonNegativeInt, ...] = (3, 6, 9)  # type: ignore[misc]
  keep: Share = 0.7
  fuse: bool = True
  keeps_places: ClassVar = False

  def reduce(self, x, layout, mask, attention, *, number):
    P, n = layout.prefix, layout.length - layout.prefix
    count = count_kept(self.keep, n)
    if count == n:
      return x, mask
    front, tokens, weights = x[:, :P], x[:, P:], attention[:, P:]
    chosen, _ = keep_first(jax.lax.stop_gradient(weights), count)
    parts = [front, jnp.take_along_axis(tokens, chosen[..., None], axis=1)]
    stay = kept_mask(chosen, None, n)
    if self.fuse:
      rest = jnp.where(stay, 0, weights)
      fusible = hide_tokens(tokens, None if mask is None else mask[:, P:])
      fused = jnp.einsum("bn,bnc->bc", rest, fusible.astype(jnp.float32))
      parts.append(fused[:, None].astype(x.dtype))
    if mask is not None:
      shown = mask[:, P:]
      seen = [mask[:, :P], jnp.take_along_axis(shown, chosen, axis=1)]
      seen += [jnp.any(shown & ~stay, axis=1, keepdims=True)] if self.fuse else []
      mask = jnp.concatenate(seen, axis=1)
    return jnp.concatenate(parts, axis=1), mask

  def layout_after(self, layout, layer):
    n = layout.length - layout.prefix
    count = count_kept(self.keep, n)
    if layer not in self.layers or count == n:
      return layout
    return TokenLayout((count + self.fuse,), layout.prefix, has_places=False)


@dataclasses.dataclass(frozen=True)
class ZeroInattentive(TokenReduction):
  """The tokens that the class token attends least become zeros (Sparsifiner's released code).

  The i-th reduction (from 1) keeps ceil(keep^i n) of the n tokens of the grid. It chooses them from
  the tokens that earlier reductions kept, by the largest attention of the class token, averaged
  over the heads. The others become zeros, which no token attends. No token changes its place, so
  parameters whose shape depends on N still fit. Only mixers that skip masked tokens save time. A
  pool over more than the class token includes the zeros. (In the released code, the zeros still
  count in the denominator of the class token's softmax.)

  Attributes:
    layers: The layers, from 0, in which tokens are removed.
    keep: The share of the tokens that each reduction keeps.
  """

  layers: tuple[NonNegativeInt, ...] = (3, 6, 9)  # type: ignore[misc]
  keep: Share = 0.7

  def reduce(self, x, layout, mask, attention, *, number):
    P, n = layout.prefix, layout.length - layout.prefix
    shown = jnp.ones(x.shape[:2], bool) if mask is None else mask
    weights = jnp.where(shown[:, P:], jax.lax.stop_gradient(attention[:, P:]), -jnp.inf)
    stay = kept_mask(*keep_first(weights, count_kept(self.keep ** (number + 1), n)), n)
    return x, jnp.concatenate([shown[:, :P], stay], axis=1)

  def mask_output(self, x, mask):
    return hide_tokens(x, mask)


def check_reduces(block: Any) -> None:
  """Checks that a block supports token reduction: its call must have an argument `reduce`.

  Raises:
    ConfigError: If the block's call has no such argument.
  """
  if "reduce" not in inspect.signature(type(block).__call__).parameters:
    raise ConfigError(
      f"model.token_reduction removes tokens between the token mixer and the MLP of a block, which"
      f" {type(block).__name__} does not support; use model.block='pre_norm'."
    )


TOKEN_REDUCTIONS = {
  "evit": FuseInattentive,
  "none": TokenReduction,
  "zeroed": ZeroInattentive,
}
