"""Masked autoencoding: the pixels of masked patches are predicted from the other patches."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np

from vitx.config.checks import Depth, PositiveInt, Range
from vitx.config.fields import RunSettings
from vitx.data.images.settings import sides
from vitx.models.masked_autoencoder import (
  MaskedAutoencoder,
  from_patches,
  make_autoencoder,
  spread,
  to_patches,
)
from vitx.tasks.base import Task, run_model
from vitx.tasks.classification import Classification, resolve_images
from vitx.tasks.figures import Figure

EPSILON = 1e-6  # added to the variance of a patch's pixels (He et al. 2022, released code)
FACTOR = 2654435761  # an odd number, which spreads the places of pixels over 32 bits (Knuth)


@dataclasses.dataclass(frozen=True)
class MaskedAutoencoding(Classification):
  """The prediction of masked patches from visible ones (He et al. 2022).

  The loss is the mean squared error of the pixels of the masked patches. Pixels are normalized by
  the mean and standard deviation of their own patch, or of the data set if `normalize_pixels` is
  False. The data need no labels.

  In training, the mask of an example is drawn from (seed, step, index). In evaluation, the mask is
  a function of the image's pixels alone. So the loss of an image is equal in every evaluation,
  whatever the seed, the batch and the other examples.

  Attributes:
    model: The network, called as `model.apply(variables, images, masked, train=...)`; it returns
      the P values of each of the N patches, (B, N, P).
    normalize_pixels: Whether each patch is normalized by its own mean and standard deviation.
    mean: The mean per channel, for pixels in 0..1.
    std: The standard deviation per channel, for pixels in 0..1.
  """

  model: MaskedAutoencoder
  normalize_pixels: bool = True
  mean: tuple[float, ...] = ()
  std: tuple[float, ...] = ()

  targets: ClassVar[tuple[str, ...]] = ()
  figures = (Figure("loss", "min", "{:.4f}", "squared error", "loss"),)
  predictions = Task.predictions
  summarize = Task.summarize

  @classmethod
  def resolve(cls, config, source):
    """Sets sizes, channels, mean and standard deviation from the data."""
    resolve_images(config, source, {})

  @classmethod
  def from_config(  # type: ignore[override]  # its loss is no loss of classes
    cls,
    config: RunSettings,
    *,
    mask_ratio: Annotated[float, Range("(0, 1)")] = 0.75,
    normalize_pixels: bool = True,
    decoder_width: PositiveInt = 512,
    decoder_depth: Depth = 8,
    decoder_heads: PositiveInt = 16,
    decoder_mlp_dim: PositiveInt | None = None,
    decoder_posemb: Literal["sincos", "learned"] = "sincos",
  ) -> Self:
    """Returns the task of resolved settings.

    Args:
      config: The resolved settings; their model is the encoder, without its head.
      mask_ratio: The share of the patches that is masked.
      normalize_pixels: Whether the pixels of a patch are normalized by their mean and variance.
      decoder_width: The number of channels of a token in the decoder.
      decoder_depth: The number of blocks of the decoder.
      decoder_heads: The number of heads of the decoder.
      decoder_mlp_dim: The hidden width of the decoder's MLPs; None is 4 times its width.
      decoder_posemb: The positions of the decoder: "sincos" is fixed, "learned" a table.
    """
    task = super().from_config(config)
    shape = (*sides(task.image_size), task.channels)
    model = make_autoencoder(
      task.model,
      shape,
      mask_ratio=mask_ratio,
      width=decoder_width,
      depth=decoder_depth,
      num_heads=decoder_heads,
      mlp_dim=decoder_mlp_dim or 4 * decoder_width,
      posemb=decoder_posemb,
    )
    return dataclasses.replace(
      task,
      model=model,
      normalize_pixels=normalize_pixels,
      mean=config.data.mean or (),
      std=config.data.std or (),
    )

  def draw(self, batch, key):
    """Returns augmented images (B, height, width, C) of `image_size`, and masks (B, N)."""
    images, _ = self.augmented(batch, key)
    key = jax.random.fold_in(key, 3)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, batch["index"])
    return images, self.draw_masks(keys)

  def draw_masks(self, keys: jax.Array) -> jax.Array:
    """Draws a mask for each of B random keys, bool (B, N), True for masked patches."""
    rows, columns = self.model.grid
    noise = jax.vmap(lambda key: jax.random.uniform(key, (rows * columns,)))(keys)
    return jnp.argsort(jnp.argsort(noise, axis=1), axis=1) >= self.model.visible

  def masks_of(self, images: jax.Array) -> jax.Array:
    """Returns the masks of an evaluation, bool (B, N), for images uint8 (B, height, width, C).

    The images have the size `decode_size`. The mask of an image depends on its pixels alone.
    """
    pixels = images.reshape(images.shape[0], -1).astype(jnp.uint32)
    factors = np.arange(pixels.shape[1], dtype=np.uint32) * np.uint32(FACTOR) | np.uint32(1)
    codes = jnp.sum(pixels * factors, axis=1, dtype=jnp.uint32)
    key = jax.random.key(0, impl="threefry2x32")
    return self.draw_masks(jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, codes))

  def errors(self, predicted: jax.Array, images: jax.Array, masked: jax.Array) -> jax.Array:
    """Returns the mean squared error of the masked patches of each image, float32 (B,).

    Args:
      predicted: The P predicted values of each patch, (B, N, P).
      images: The images of `image_size`, (B, height, width, C).
      masked: Whether each patch is masked, bool (B, N).
    """
    target = to_patches(images, self.model.grid)
    mean, std = self._moments(target)
    errors = jnp.mean(jnp.square(predicted - (target - mean) / std), axis=2)
    return jnp.mean(errors, axis=1, where=masked)

  def loss(self, params, state, constants, batch, key, step):
    """Computes the mean error of the masked patches of a batch, and the new state."""
    images, masked = self.draw(batch, key)
    predicted, new_state, sown = run_model(
      self.model, params, state, images, batch, key, masked=masked
    )
    return jnp.mean(self.errors(predicted, images, masked)) + sown, (new_state, {})

  def evaluate(self, params, state, constants, batch):
    """Returns sums for `summarize` and the loss of each image (B,)."""
    images, masked, predicted = self._predict(params, state, batch)
    loss = self.errors(predicted, images, masked)
    sums = {
      "count": jnp.sum(batch["mask"], dtype=jnp.float32),
      "loss": jnp.sum(jnp.where(batch["mask"], loss, 0.0)),
    }
    return {"sums": sums, "rows": {"loss": loss}}

  def respond(self, params, state, inputs):
    """Returns the loss of each image and its reconstruction.

    Returns:
      A dict with loss, (B,); image, the prepared image with pixels in 0..1, (B, height, width, C);
      masked, bool (B, height, width, 1); and reconstruction, the image with predicted pixels where
      it is masked, (B, height, width, C). If `normalize_pixels` is True, a predicted patch gets the
      mean and variance of the original patch.
    """
    images, masked, predicted = self._predict(params, state, inputs)
    loss, grid = self.errors(predicted, images, masked), self.model.grid
    mean, std = self._moments(to_patches(images, grid))
    reconstructed = from_patches(predicted * std + mean, grid, images.shape[1:])
    hidden = spread(masked, grid, images.shape[1:3])
    shown = self._to_pixels(images), self._to_pixels(jnp.where(hidden, reconstructed, images))
    return {"loss": loss, "image": shown[0], "masked": hidden, "reconstruction": shown[1]}

  def _predict(self, params: Any, state: Any, batch: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the prepared images, the masks (B, N), and P predictions per patch (B, N, P)."""
    images, masked = self.model_inputs(batch), self.masks_of(batch["image"])
    predicted: Any = self.model.apply({"params": params, **state}, images, masked, train=False)
    return images, masked, predicted

  def _moments(self, patches: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the mean and standard deviation that normalize patches (B, N, P) of P values.

    They are 0 and 1 if `normalize_pixels` is False.
    """
    if not self.normalize_pixels:
      return jnp.float32(0), jnp.float32(1)
    mean = jnp.mean(patches, axis=2, keepdims=True)
    return mean, jnp.sqrt(jnp.var(patches, axis=2, keepdims=True, ddof=1) + EPSILON)

  def _to_pixels(self, images: jax.Array) -> jax.Array:
    """Converts images that are normalized by the data set's statistics to pixels in 0..1."""
    mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
    return jnp.clip(images * std + mean, 0.0, 1.0)
