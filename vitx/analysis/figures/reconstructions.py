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


def draw_reconstructions(subject: Subject, out: Path) -> list[Path]:
  """Draws some images, their visible patches and their reconstructions.

  Raises:
    ConfigError: The model is not a masked autoencoder.
  """
  if not isinstance(subject.model, MaskedAutoencoder) or subject.respond is None:
    raise ConfigError(
      "figure='reconstructions' needs a run of task.name='masked_autoencoder', whose model predicts"
      " pixels; choose such a run."
    )
  found = subject.respond(subject.examples)
  canvas = plot_reconstructions(found, f"{subject.note}. {CAPTION}")
  return [style.save(canvas, out, f"reconstructions_{subject.label}")]


def plot_reconstructions(found: Mapping[str, np.ndarray], caption: str) -> Any:
  """Returns matplotlib's figure of reconstructions.

  Args:
    found: The outputs of `MaskedAutoencoding.respond` for images of side s: image and
      reconstruction, float32 (B, s, s, C) in 0..1; masked, bool (B, s, s, 1); loss (B,).
    caption: The text below the images.
  """
  masked = np.where(found["masked"], 0.5, found["image"])
  rows = {"image": found["image"], "visible": masked, "reconstruction": found["reconstruction"]}
  count = len(masked)
  canvas, panels = style.make_panels(3, count, SIDE * count + 0.2, 3 * SIDE + 0.5, caption)
  for line, (name, images) in zip(panels, rows.items(), strict=True):
    for column, (axes, image) in enumerate(zip(line, images, strict=True)):
      title = f"{found['loss'][column]:.3f}" if name == "image" else ""
      pixels = np.asarray(image, np.float32) * 255
      style.show_plane(axes, np.asarray(to_color(pixels.round().astype(np.uint8))), title)
    line[0].set_ylabel(name, fontsize=style.SMALL)
  return canvas
