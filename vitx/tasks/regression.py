"""Regression of a number from an image."""

import dataclasses
import functools
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from vitx.config.checks import Finite, Positive
from vitx.config.fields import RunSettings
from vitx.data.dataset import ArraySpec, Examples, read_encoded
from vitx.data.images.statistics import LARGEST_SAMPLE, sample
from vitx.tasks.base import Task
from vitx.tasks.classification import Classification, resolve_images
from vitx.tasks.figures import Figure


@dataclasses.dataclass(frozen=True)
class Regression(Classification):
  """Predicts a number for an image.

  The data have the array `target`, float32 (). The network has one output, which predicts the
  normalized target, (`target` - `target_mean`) / `target_std`.

  Attributes:
    target_mean: The mean of the training targets.
    target_std: The standard deviation of the training targets.
  """

  target_mean: float = 0.0
  target_std: float = 1.0

  targets: ClassVar[tuple[str, ...]] = ("target",)
  answer: ClassVar[ArraySpec] = ArraySpec((), "float32")
  measured = (*Classification.measured, "target_mean", "target_std")
  figures = (
    Figure("mae", "min", "{:.4g}", "mean absolute error", "MAE"),
    Figure("rmse", "min", "{:.4g}", "root mean square", "RMSE"),
    Figure("r2", None, "{:.4f}", "R²"),  # no schedule follows it: it may be undefined
  )
  predictions = Task.predictions

  @classmethod
  def resolve(cls, config, source):
    """Sets sizes, channels, pixel statistics, `target_mean` and `target_std` from the data."""
    train = getattr(source, "train", None)
    resolve_images(config, source, {"target": ("float32", 0)}, 1)
    fields = {name: value for name, value in config.task.items() if value is not None}
    if train is not None and not {"target_mean", "target_std"} <= fields.keys():
      mean, std = _measure_targets(train)
      config.task = ConfigDict({"target_mean": mean, "target_std": std, **fields})

  @classmethod
  def state_info(cls, config):
    """Returns the description of the images and targets that follows from `data.image_size`."""
    info = super().state_info(config)
    return info and dataclasses.replace(info, class_names=None)

  @classmethod
  def from_config(  # type: ignore[override]  # its losses are no losses of classes
    cls,
    config: RunSettings,
    *,
    loss: Literal["squared", "huber"] = "squared",
    huber_delta: Positive = 1.0,
    target_mean: Finite | None = None,
    target_std: Positive | None = None,
  ) -> Self:
    """Returns the task of resolved settings.

    Args:
      config: The resolved settings.
      loss: The loss: "squared" is the squared error, "huber" the Huber loss, on which far outliers
        have less effect.
      huber_delta: The error, in standard deviations, beyond which the Huber loss is linear.
      target_mean: The number that an output of 0 means; None is the mean of the training targets.
      target_std: The unit of the output; None is the standard deviation of the training targets.
    """
    huber = functools.partial(optax.huber_loss, delta=huber_delta)
    losses = huber if loss == "huber" else optax.squared_error
    task = super().from_config(config)
    return dataclasses.replace(
      task,
      target_mean=0.0 if target_mean is None else target_mean,
      target_std=1.0 if target_std is None else target_std,
      mean_loss=lambda outputs, targets: jnp.mean(losses(outputs, targets)),
    )

  def draw(self, batch, key):
    """Returns augmented images (B, height, width, C) and normalized targets (B, 1) of a batch."""
    return self.augmented(batch, key, self._normalize(batch["target"])[:, None])

  def metrics(self, outputs, targets):
    """Returns the mean absolute error on an augmented batch."""
    return {"mae": self.target_std * jnp.mean(jnp.abs(outputs - targets))}

  def evaluate(self, params, state, constants, batch):
    """Returns the predictions (B,) of a batch, and gathers them with the targets."""
    inputs = self.model_inputs(batch)
    outputs: Any = self.model.apply({"params": params, **state}, inputs, train=False)
    rows = {"prediction": outputs[:, 0] * self.target_std + self.target_mean}
    count = jnp.sum(batch["mask"], dtype=jnp.float32)
    gathered = {**rows, "target": batch["target"]}
    return {"sums": {"count": count}, "gathered": gathered, "rows": rows}

  def summarize(self, sums):
    """Returns the number of `examples`, `mae`, `rmse` and `r2`, None if all targets are equal."""
    prediction, target = (np.asarray(sums[x], np.float64) for x in ("prediction", "target"))
    squared, spread = np.square(prediction - target), np.square(target - target.mean())
    return {
      "examples": len(target),
      "mae": float(np.abs(prediction - target).mean()),
      "rmse": float(squared.mean() ** 0.5),
      "r2": 1 - float(squared.sum() / spread.sum()) if np.ptp(target) else None,
    }

  def _normalize(self, targets: jax.Array) -> jax.Array:
    # XLA turns a division by a constant into this product, so a program that contains the numbers
    # has the same bits.
    return (targets - self.target_mean) * (1 / jnp.float32(self.target_std))


def _measure_targets(train: Examples) -> tuple[float, float]:
  """Returns the mean and standard deviation of up to 5,000 training targets."""
  chosen = sample(train, LARGEST_SAMPLE)
  values = np.array([read_encoded(train, i)["target"] for i in chosen], np.float64)
  return float(values.mean()), float(values.std())
