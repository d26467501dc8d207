"""The masked autoencoder: an encoder of some patches, and a decoder that predicts all pixels.

(He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", section 3.) The encoder is the
body of a classifier: the network without its head.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.attention import MIXERS, Properties
from vitx.attention.softmax import SoftmaxAttention
from vitx.blocks.pre_norm import PreNormBlock
from vitx.config.errors import ConfigError, listing
from vitx.layers.norms import layer_norm
from vitx.layers.posemb import POSITIONS
from vitx.models import MODELS, names
from vitx.models.initializers import as_made
from vitx.models.tracing import token_layout
from vitx.models.trunk import Trunk
from vitx.models.vit import ViT
from vitx.ops.layout import TokenLayout

# The methods of `ViT` that the autoencoder calls. It ignores other versions of them in the class of
# the body, so such a body is refused.
CALLED = (
  *("encode", "apply_stem", "add_class_token", "enter_trunk"),
  *("run_sequence", "run_blocks", "apply_norm"),
)


class PixelDecoder(Trunk, kw_only=True):
  """The decoder: mask tokens, positions, pre-norm blocks and a linear map to pixels.

  Attributes:
    width: The number of channels of a token in the decoder.
    depth: The number of blocks.
    num_heads: The number of heads.
    mlp_dim: The hidden width of the MLPs.
    pixels: The number of pixel values of a patch, all image channels included.
  """

  width: int
  depth: int
  num_heads: int
  mlp_dim: int
  pixels: int

  @nn.compact
  def __call__(
    self, x: jax.Array, masked: jax.Array, layout: TokenLayout, *, train: bool
  ) -> jax.Array:
    """Returns the predicted pixel values of all patches, float32 (B, N - prefix, pixels).

    Args:
      x: The encoder's tokens, (B, prefix + n, C): the prefix, then the n visible patches in order.
      masked: Whether each patch is masked, bool (B, N - prefix).
      layout: The arrangement of all N tokens.
      train: Whether dropout is active.
    """
    start = nn.initializers.xavier_uniform()
    x = nn.Dense(self.width, kernel_init=start, dtype=self.dtype, name="embed")(x)
    shape = (1, 1, self.width)
    token = self.param(names.MASK_TOKEN, nn.initializers.normal(0.02), shape, jnp.float32)
    front, visible = jnp.split(x, [layout.prefix], axis=1)
    token = jnp.broadcast_to(token.astype(x.dtype), (x.shape[0], *shape[1:]))
    # A visible patch takes its own token; a masked patch takes the mask token, which is the last.
    place = jnp.where(masked, visible.shape[1], jnp.cumsum(~masked, axis=1) - 1)
    filled = jnp.concatenate([visible, token], axis=1)
    grid = jnp.take_along_axis(filled, place[..., None], axis=1)
    x = self.add_positions(jnp.concatenate([front, grid], axis=1), layout)
    x = self.run_sequence(x, layout, train=train)
    x = self.norm(dtype=self.dtype, name=names.NORM)(x[:, layout.prefix :])
    return nn.Dense(self.pixels, kernel_init=start, name="pixels")(x.astype(jnp.float32))


class MaskedAutoencoder(ViT, kw_only=True):
  """A vision transformer without head that encodes only visible patches, and a decoder.

  The pixels of masked patches become zero (the mean) before the stem, so that no stem passes their
  content on, not even one whose convolutions overlap. Positions are added before the tokens of
  masked patches are left out. The parameters have the names that they have in a classifier, so that
  `init_from` can load them into one; the names of the decoder's parameters begin with "decoder/".

  Attributes:
    grid: The rows and columns of the patches.
    visible: The number n of visible patches.
    decoder: A function that makes the decoder; its argument is `name`.
  """

  grid: tuple[int, ...]
  visible: int
  decoder: Callable[..., nn.Module]

  @nn.compact
  def __call__(  # type: ignore[override]  # the mask is over patches, not over tokens
    self, images: jax.Array, masked: jax.Array | None = None, *, train: bool = False
  ) -> jax.Array:
    """Returns predicted pixel values, float32 (B, rows * columns, pixels of a patch).

    Args:
      images: The images, (B, height, width, channels), normalized floats.
      masked: Whether each patch is masked, bool (B, rows * columns). In each image, `visible`
        patches are not masked. None masks no patch.
      train: Whether dropout and stochastic depth are active; `ViT` describes the streams.
    """
    whole = masked is None
    if masked is None:
      masked = jnp.zeros((images.shape[0], math.prod(self.grid)), bool)
    images = jnp.where(spread(masked, self.grid, images.shape[1:3]), 0, images)
    stem = self.apply_stem(images, self.width, train)
    x, layout, _ = self.add_class_token(stem, self.extra_tokens)
    x, seen = self.enter_trunk(x, layout, train), layout
    if not whole:
      front, x = jnp.split(x, [layout.prefix], axis=1)
      places = jnp.argsort(masked, axis=1, stable=True)[:, : self.visible]  # visible ones first
      x = jnp.concatenate([front, jnp.take_along_axis(x, places[..., None], axis=1)], axis=1)
      seen = TokenLayout((self.visible,), layout.prefix, has_places=False)
    x = self.run_sequence(x, seen, train=train)
    return self.decoder(name=names.DECODER)(self.apply_norm(x), masked, layout, train=train)


def make_autoencoder(
  body: nn.Module,
  shape: tuple[int, int, int],
  *,
  mask_ratio: float,
  width: int,
  depth: int,
  num_heads: int,
  mlp_dim: int,
  posemb: Literal["sincos", "learned"],
) -> MaskedAutoencoder:
  """Makes the masked autoencoder whose encoder is a given classifier without its head.

  Args:
    body: The classifier.
    shape: The shape of an image, (height, width, channels).
    mask_ratio: The share of the patches that is masked.
    width, depth, num_heads, mlp_dim, posemb: The fields of the decoder.

  Raises:
    ConfigError: If the body or its token mixer cannot leave tokens out, or if no patch is visible
      or none is masked.
  """
  _check_body(body)
  assert isinstance(body, ViT)
  bound: Any = body._bind_mixer(num_heads=body.num_heads, layer=0, depth=body.depth)
  mixer = bound(parent=None)
  layout = token_layout(body.clone(depth=1), (1, *shape))  # one block is traced faster than all
  assert layout is not None
  visible = count_visible(math.prod(layout.grid), mask_ratio)
  decoder = partial(
    PixelDecoder,
    posemb=POSITIONS[posemb],
    norm=layer_norm,
    block=PreNormBlock,
    token_mixer=partial(SoftmaxAttention, implementation=getattr(mixer, "implementation", "auto")),
    initialization=as_made,
    remat=body.remat,
    dtype=body.dtype,
    width=width,
    depth=depth,
    num_heads=num_heads,
    mlp_dim=mlp_dim,
    pixels=math.prod(shape) // math.prod(layout.grid),
  )
  inherited = {field.name for field in dataclasses.fields(ViT)} - {"parent", "name"}
  fields: dict[str, Any] = {name: getattr(body, name) for name in inherited}
  return MaskedAutoencoder(**fields, grid=layout.grid, visible=visible, decoder=decoder)


def spread(values: jax.Array, grid: tuple[int, ...], size: tuple[int, ...]) -> jax.Array:
  """Repeats the value of each patch for all of its pixels; returns (B, height, width, 1).

  Args:
    values: One value for each patch, (B, rows * columns).
    grid: The rows and columns of the patches, which divide the image.
    size: The height and width of the image.
  """
  planes = values.reshape(-1, *grid)
  for axis in (0, 1):
    planes = jnp.repeat(planes, size[axis] // grid[axis], axis=axis + 1)
  return planes[..., None]


def to_patches(images: jax.Array, grid: tuple[int, ...]) -> jax.Array:
  """Cuts images (B, height, width, channels) into patches (B, rows * columns, pixels per patch)."""
  batch, height, width, channels = images.shape
  rows, columns = grid
  parts = images.reshape(batch, rows, height // rows, columns, width // columns, channels)
  return parts.swapaxes(2, 3).reshape(batch, rows * columns, -1)


def from_patches(patches: jax.Array, grid: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
  """Returns images (B, height, width, channels) of `shape`, the inverse of `to_patches`."""
  (rows, columns), (height, width, channels) = grid, shape
  parts = patches.reshape(-1, rows, columns, height // rows, width // columns, channels)
  return parts.swapaxes(2, 3).reshape(-1, height, width, channels)


def count_visible(patches: int, mask_ratio: float) -> int:
  """Returns the number of visible patches, which is at least one and not all of them."""
  visible = math.floor(patches * (1 - mask_ratio) + 1e-9)  # 1 - 0.9 is a little less than 0.1
  if not 0 < visible < patches:
    raise ConfigError(
      f"task.mask_ratio={mask_ratio} leaves {visible} of {patches} patches visible."
    )
  return visible


def _overridden(kind: type) -> list[str]:
  """Returns the methods in `CALLED` that a class of networks does not have from `ViT`."""
  return [name for name in CALLED if getattr(kind, name, None) is not getattr(ViT, name)]


def _works_on_subsets(kind: Any) -> bool:
  """Returns whether a class of token mixers states that it can leave any tokens out."""
  stated: Any = getattr(kind, "properties", Properties())
  free = stated.masking_is_deletion and stated.permutation_equivariant
  return free and not stated.fixed_length


def _check_body(body: Any) -> None:
  """Refuses a body whose layers, mixer or token reduction need all tokens."""
  if _overridden(type(body)):
    fitting = listing(name for name, kind in MODELS.items() if not _overridden(kind))
    raise ConfigError(
      f"task.name='masked_autoencoder' runs a body on the visible patches alone, which"
      f" {type(body).__name__} does not allow; set model.name to one of {fitting}."
    )
  mixer: Any = partial(body.token_mixer).func
  if not _works_on_subsets(mixer):
    fitting = listing(name for name, kind in MIXERS.items() if _works_on_subsets(kind))
    raise ConfigError(
      "task.name='masked_autoencoder' leaves out the tokens of masked patches, which"
      f" model.token_mixer={mixer.__name__} does not allow; set model.token_mixer to one of"
      f" {fitting}."
    )
  if body.token_reduction().layers:
    raise ConfigError(
      "model.token_reduction removes tokens that the decoder of task.name='masked_autoencoder'"
      " needs; use model.token_reduction='none' here, and the reduction when you fine-tune."
    )
