"""Draws the landmarks of Nyströmformer: the tokens and the attention of each landmark."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from vitx.analysis.figures import approximation, style
from vitx.analysis.figures.capture import MixerCapture
from vitx.analysis.figures.subject import Subject
from vitx.attention.nystromformer import Nystromformer
from vitx.config.errors import ConfigError
from vitx.ops.kernels.nystrom import segment_means
from vitx.ops.kernels.softmax import masked_softmax
from vitx.ops.layout import TokenLayout

COUNTS = (2, 4, 8, 16, 32, 64)
DRAWN_LAYERS, DRAWN_LANDMARKS = 4, 8


@dataclasses.dataclass(frozen=True)
class Landmarks:
  """The landmarks of Nyströmformer's layers for one example.

  Attributes:
    label: The label of the model.
    note: A description of the model, for captions.
    image: The normalized image, (height, width, channels).
    layout: The layout of the tokens.
    segments: The index of the landmark to which each token belongs, (N,).
    attended: The attention of each landmark to the tokens, averaged over heads, (L, M, N). The
      query of a landmark is the mean query of its tokens.
    errors: The error of Nyström's approximation of the attention matrix, by number of landmarks.
  """

  label: str
  note: str
  image: np.ndarray
  layout: TokenLayout
  segments: np.ndarray
  attended: np.ndarray
  errors: approximation.Errors


def draw_landmarks(subject: Subject, out: Path) -> list[Path]:
  """Draws Nyströmformer's landmarks over the image, and the error by the number of landmarks.

  The error is that of the approximate attention matrix. A table lists it.

  Raises:
    ConfigError: The model has no Nyströmformer mixers, or is not a model of images.
  """
  found = compute_landmarks(subject)
  name = f"landmarks_{subject.label}"
  caption = f"{subject.note}. Relative error of the attention matrix by landmarks M,"
  caption += f" {subject.examples} examples."
  error = approximation.plot_errors(found.errors, "landmarks M", caption)
  return [
    style.save(plot_landmarks(found), out, name),
    style.save(error, out, f"{name}_error"),
    style.write_rows(out / f"{name}.csv", approximation.list_errors(found.errors)),
  ]


def compute_landmarks(subject: Subject) -> Landmarks:
  """Runs a network on its first example and returns its landmarks.

  Raises:
    ConfigError: The model has no Nyströmformer mixers, is not a model of images, or has several
      grids.
  """
  mixer: Any = getattr(subject.model, "token_mixer", None)
  if getattr(mixer, "func", None) is not Nystromformer or subject.layout is None:
    raise ConfigError(
      f"landmarks: {subject.label} has no landmarks; use a classifier with"
      " model.token_mixer='nystromformer'."
    )
  count = mixer.keywords.get("landmarks", Nystromformer.landmarks)
  layers = approximation.capture_layers(subject)
  layout = layers[0].layout
  subject.check_one_grid("landmarks", (layer.layout for layer in layers))
  # The captured queries and keys lack the padding, which belongs to the first landmark.
  if mixer.keywords.get("padding") == "front" and layout.length % count:
    raise ConfigError(
      f"landmarks: {subject.label} pads tokens; use model.token_mixer.padding='masked'."
    )
  counts = [each for each in COUNTS if each <= layout.length]
  errors = approximation.measure_errors(layers, {"landmarks": approximation.landmarks}, counts, 1)
  length = math.ceil(layout.length / count)
  return Landmarks(
    subject.label,
    subject.note,
    np.asarray(subject.inputs(1)[0]),
    layout,
    np.arange(layout.length) // length,
    np.stack([attend_from_landmarks(layer, count)[0].mean(axis=0) for layer in layers]),
    errors,
  )


def attend_from_landmarks(layer: MixerCapture, count: int) -> np.ndarray:
  """Returns the softmax attention of each landmark to the tokens, (B, H, M, N).

  The query of a landmark is the mean query of its tokens.

  Args:
    layer: A layer with queries and keys.
    count: The largest number of landmarks to make.
  """
  means, _ = segment_means(jnp.asarray(layer.q), count)
  logits = jnp.einsum("bmhd,bnhd->bhmn", means, layer.k, precision="highest") * layer.scale
  return np.asarray(masked_softmax(logits, None))


def plot_landmarks(landmarks: Landmarks) -> Any:
  """Returns a figure of some landmarks: the tokens of each landmark, and its attention by layer."""
  layers = style.choose_some(len(landmarks.attended), DRAWN_LAYERS)
  some = style.choose_some(landmarks.attended.shape[1], DRAWN_LANDMARKS)
  rows, columns = len(layers) + 1, len(some) + 1
  side = min(0.8, style.PAGE / columns)
  caption = f"{landmarks.note}. {landmarks.attended.shape[1]} landmarks, each the mean of"
  caption += " consecutive tokens (white); below, the attention of its mean query by layer,"
  caption += " averaged over heads."
  width = max(style.COLUMN, side * columns)
  canvas, panels = style.make_panels(rows, columns, width, side * rows + 0.2, caption)
  grid, prefix = landmarks.layout.grid, landmarks.layout.prefix
  style.show_image(panels[0, 0], landmarks.image, "image")
  for axes, landmark in zip(panels[0, 1:], some, strict=True):
    own = (landmarks.segments[prefix:] == landmark).reshape(grid)
    style.show_plane(axes, own, f"landmark {landmark}", cmap="gray", vmin=0, vmax=1)
  for row, layer in zip(panels[1:], layers, strict=True):
    row[0].axis("off")
    row[0].text(0.5, 0.5, f"layer {layer}", fontsize=style.SMALL, ha="center", va="center")
    for axes, landmark in zip(row[1:], some, strict=True):
      plane = landmarks.attended[layer, landmark, prefix:].reshape(grid)
      style.show_plane(axes, plane, vmin=0)
  return canvas
