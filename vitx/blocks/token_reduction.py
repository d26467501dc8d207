"""Token reduction: some layers remove tokens that matter little, or merge similar ones.

A reduction works inside a block, between the token mixer and the MLP, and keeps shapes static. It
needs the attention of the class token, or the keys, which not every mixer can return.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.config.checks import NonNegativeInt, PositiveInt, Share
from vitx.config.errors import ConfigError
from vitx.ops.inputs import hide_tokens
from vitx.ops.kernels.selection import count_kept, keep_first
from vitx.ops.kernels.top_k import kept_mask
from vitx.ops.layout import TokenLayout


@dataclasses.dataclass(frozen=True)
class TokenReduction:
  """No reduction: all tokens stay to the end. This is also the base class of token reductions.

  Attributes:
    layers: The layers, from 0, in which tokens are removed. Here there are none; each
      subclass makes this a field.
    needs: The quantity of the token mixer by which tokens are compared, see `SoftmaxAttention`:
      "class_attention", the attention of the class token, float32 (B, N); or "keys", the mean key
      of each token over the heads, float32 (B, N, D).
    keeps_places: Whether removed tokens are only masked. Then no token changes its place in the
      sequence, and every mixer that accepts a mask works.
  """

  layers: ClassVar[tuple[int, ...]] = ()
  needs: ClassVar[str] = "class_attention"
  keeps_places: ClassVar[bool] = True

  def check(self, depth: int) -> None:
    """Refuses layers that do not exist or are not in ascending order."""
    layers = list(self.layers)
    if layers != sorted(set(layers)) or (layers and layers[-1] >= depth):
      raise ConfigError(
        f"model.token_reduction.layers={tuple(layers)} must name layers of 0 ... {depth - 1}"
        f" in ascending order, each once, because model.depth={depth}."
      )

  def at(self, layer: int) -> "Reduce | None":
    """Returns the reduction in one layer, for its block; None if the layer removes no tokens."""
    return Reduce(self, self.layers.index(layer)) if layer in self.layers else None

  def reduce(self, x, layout: TokenLayout, mask, compared, *, number: int):
    """Removes tokens, masks them, or merges them.

    Args:
      x: The tokens, (B, N, C).
      layout: The layout of the tokens.
      mask: The mask or the sizes of the tokens, (B, N), or None.
      compared: The quantity that `needs` names.
      number: The number of earlier reductions in the network.

    Returns:
      The remaining tokens, (B, N', C), and their mask or sizes, (B, N') or None.
    """
    raise NotImplementedError

  def layout_after(self, layout: TokenLayout, layer: int) -> TokenLayout:
    """Returns the layout of the tokens after a layer, given their layout before it."""
    return layout

  def mask_output(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Changes masked tokens in the output (B, N, C) of a block; here, it leaves all unchanged."""
    return x


class Reduce(NamedTuple):
  """A token reduction in one layer.

  Attributes:
    reduction: The token reduction.
    number: The number of earlier reductions in the network.
  """

  reduction: TokenReduction
  number: int

  @property
  def needs(self) -> str:
    """Returns the quantity by which tokens are compared, see `TokenReduction`."""
    return self.reduction.needs

  def __call__(self, x, layout: TokenLayout, mask, compared):
    """Removes tokens; `TokenReduction.reduce` describes arguments and results."""
    return self.reduction.reduce(x, layout, mask, compared, number=self.number)


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

  def reduce(self, x, layout, mask, compared, *, number):
    P, n = layout.prefix, layout.length - layout.prefix
    count = count_kept(self.keep, n)
    if count == n:
      return x, mask
    front, tokens, weights = x[:, :P], x[:, P:], compared[:, P:]
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

  def reduce(self, x, layout, mask, compared, *, number):
    P, n = layout.prefix, layout.length - layout.prefix
    shown = jnp.ones(x.shape[:2], bool) if mask is None else mask
    weights = jnp.where(shown[:, P:], jax.lax.stop_gradient(compared[:, P:]), -jnp.inf)
    stay = kept_mask(*keep_first(weights, count_kept(self.keep ** (number + 1), n)), n)
    return x, jnp.concatenate([shown[:, :P], stay], axis=1)

  def mask_output(self, x, mask):
    return hide_tokens(x, mask)


@dataclasses.dataclass(frozen=True)
class MergeSimilar(TokenReduction):
  """ToMe: in each layer, similar tokens become one (Bolya et al. 2023, section 3 and appendix D).

  The tokens are divided into two sets in turns. Each token of the first set is linked to the token
  of the second set whose key is most similar (by the cosine of the mean keys over the heads). The
  tokens with the `remove` most similar links are merged into the tokens at the other ends, at most
  half of the tokens after the prefix. A merged token is the mean of its patches, and its size is
  their number. Attention counts a token of size s as s tokens. Prefix tokens are never merged.

  There are no parameters, so published weights can be used without training. The remaining tokens
  have no places in a grid, so the model needs a mixer without positions. The pool "mean_of_all"
  counts a merged token once.

  Attributes:
    layers: The layers, from 0, in which tokens are merged.
    remove: The number r of tokens that each layer removes.
  """

  layers: tuple[NonNegativeInt, ...] = tuple(range(12))  # type: ignore[misc]
  remove: PositiveInt = 8
  needs: ClassVar = "keys"
  keeps_places: ClassVar = False

  def _count(self, layout: TokenLayout) -> int:
    """Returns the number of tokens that a layer removes, given the layout before it."""
    return min(self.remove, (layout.length - layout.prefix) // 2)

  def reduce(self, x, layout, mask, compared, *, number):
    P, count = layout.prefix, self._count(layout)
    if mask is not None and mask.dtype == bool:
      raise ConfigError(
        "mask is given, but model.token_reduction='tome' would merge masked tokens with others."
      )
    if not count:
      return x, mask
    sources, remaining, targets = match_tokens(compared, P, count)
    route = jax.nn.one_hot(targets, layout.length // 2)  # (B, count, N / 2), float32

    def merge(y: jax.Array) -> jax.Array:
      """Adds the merged tokens of (B, N, C) to their targets, and returns the remaining tokens."""
      first, second = y[:, ::2], y[:, 1::2]
      moved = jnp.take_along_axis(first, sources[..., None], axis=1)
      stay = jnp.take_along_axis(first, remaining[..., None], axis=1)
      merged = second + jnp.einsum("bsn,bsc->bnc", route, moved, precision="highest")
      # The prefix tokens, of which P // 2 are in the second set, stay first and in order.
      p = P // 2
      prefix = jnp.stack([stay[:, :p], merged[:, :p]], axis=2).reshape(
        y.shape[0], 2 * p, y.shape[2]
      )
      return jnp.concatenate([prefix, stay[:, p:], merged[:, p:]], axis=1)

    sizes = jnp.ones(x.shape[:2], jnp.float32) if mask is None else mask
    total = merge(sizes[..., None])
    tokens = merge(x.astype(jnp.float32) * sizes[..., None]) / total
    return tokens.astype(x.dtype), total[..., 0]

  def layout_after(self, layout, layer):
    count = self._count(layout) if layer in self.layers else 0
    if not count:
      return layout
    return TokenLayout((layout.length - layout.prefix - count,), layout.prefix, has_places=False)


def match_tokens(
  keys: jax.Array, prefix: int, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Chooses the tokens that are merged: bipartite soft matching (Bolya et al. 2023, appendix D).

  The first set has the tokens 0, 2, 4, ..., the second has the tokens 1, 3, 5, ....

  Args:
    keys: The keys by which tokens are compared, (B, N, D).
    prefix: The number of prefix tokens, which come first and are not merged.
    count: The number s of tokens to remove.

  Returns:
    Three integer arrays: the tokens of the first set that are merged into others, (B, s), the most
    similar first; those that are kept, ascending, (B, ceil(N / 2) - s); and the tokens of the
    second set into which the former are merged, (B, s).
  """
  keys = jax.lax.stop_gradient(keys.astype(jnp.float32))
  norms = jnp.linalg.norm(keys, axis=-1, keepdims=True)
  keys = keys / jnp.where(norms == 0, 1, norms)
  scores = jnp.einsum("bmd,bnd->bmn", keys[:, ::2], keys[:, 1::2], precision="highest")
  is_prefix = [np.arange(start, keys.shape[1], 2) < prefix for start in (0, 1)]
  scores = jnp.where(is_prefix[0][:, None] | is_prefix[1], -jnp.inf, scores)
  order = jnp.argsort(-jnp.max(scores, axis=-1), axis=-1)  # stable: of equals, the first ones
  sources, remaining = order[:, :count], jnp.sort(order[:, count:], axis=-1)
  return sources, remaining, jnp.take_along_axis(jnp.argmax(scores, axis=-1), sources, axis=1)


TOKEN_REDUCTIONS = {
  "evit": FuseInattentive,
  "none": TokenReduction,
  "tome": MergeSimilar,
  "zeroed": ZeroInattentive,
}
