"""Draws images, their visible patches, and the reconstructions of a masked autoencoder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.figures import style
from vitx.analysis.figures.mistakes import to_color
from vitx.analysis.figures.subject import Subject
from vitx.config.errors import ConfigError
from vitx.models.masked_autoencoder import MaskedAutoencoder

SIDE = 1.3  # The side of an image, in inches.
CAPTION = (
  "Above an image, below it the visible patches and the reconstruction, which has the predicted"
  " pixels where the image was masked. If the loss normalizes pixels by patch, a predicted patch"
  " has the mean and variance of the original one. The number is the loss of the image."
)


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws some images, their visible patches and their reconstructions."""
  if not isinstance(subject.model, MaskedAutoencoder):
    raise ConfigError("reconstructions: choose a run of task.name='masked_autoencoder'.")
  outputs = subject.respond(subject.examples)
  canvas = plot_reconstructions(outputs, f"{subject.note}. {CAPTION}")
  return [style.save(canvas, out, f"reconstructions_{subject.label}")]


def plot_reconstructions(outputs: Mapping[str, np.ndarray], caption: str) -> Any:
  """Returns matplotlib's figure of reconstructions.

  Args:
    outputs: The outputs of `MaskedAutoencoding.respond` for images of side s: image and
      reconstruction, float32 (B, s, s, C) in 0..1; masked, bool (B, s, s, 1); loss (B,).
    caption: The text below the images.
  """
  masked = np.where(outputs["masked"], 0.5, outputs["image"])
  rows = {"image": outputs["image"], "visible": masked, "reconstruction": outputs["reconstruction"]}
  count = len(masked)
  canvas, panels = style.make_panels(3, count, SIDE * count + 0.2, 3 * SIDE + 0.5, caption)
  for line, (name, images) in zip(panels, rows.items(), strict=True):
    for column, (axes, image) in enumerate(zip(line, images, strict=True)):
      title = f"{outputs['loss'][column]:.3f}" if name == "image" else ""
      pixels = np.asarray(image, np.float32) * 255
      style.show_plane(axes, np.asarray(to_color(pixels.round().astype(np.uint8))), title)
    line[0].set_ylabel(name, fontsize=style.SMALL)
  return canvas
