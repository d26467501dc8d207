"""Draws the landmarks of Nyströmformer: the tokens and the attention of each landmark."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx import ops
from vitx.analysis.figures import style
from vitx.analysis.figures.capture import MixerCapture, softmax_map
from vitx.analysis.figures.papers import approximation
from vitx.analysis.figures.subject import Subject
from vitx.attention.nystromformer import Nystromformer
from vitx.config.errors import ConfigError
from vitx.ops.kernels.nystrom import segment_means
from vitx.ops.layout import TokenLayout

COUNTS = (2, 4, 8, 16, 32, 64)
DRAWN_LAYERS, DRAWN_LANDMARKS = 4, 8


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws Nyströmformer's landmarks over the image, and the error by the number of landmarks.

  The error is that of the approximate attention matrix. A table lists it.
  """
  mixer: Any = getattr(subject.model, "token_mixer", None)
  if getattr(mixer, "func", None) is not Nystromformer or subject.layout is None:
    raise ConfigError(
      f"landmarks: {subject.label} is no classifier with token_mixer=nystromformer."
    )
  number = mixer.keywords.get("landmarks", Nystromformer.landmarks)
  layers = approximation.capture_layers(subject)
  layout = layers[0].layout
  # The captured queries and keys lack the padding, which belongs to the first landmark.
  if mixer.keywords.get("padding") == "front" and layout.length % number:
    raise ConfigError(f"landmarks: {subject.label} pads tokens; use token_mixer.padding='masked'.")
  attended = np.stack([attend_from_landmarks(layer, number)[0].mean(axis=0) for layer in layers])
  counts = [count for count in COUNTS if count <= layout.length]
  errors = {"landmarks": approximation.measure_errors(layers, approximate, counts, 1)}
  name = f"landmarks_{subject.label}"
  caption = f"{subject.note}. Relative error of the attention matrix by landmarks M,"
  caption += f" {subject.examples} examples."
  over_image = plot_landmarks(attended, np.asarray(subject.inputs(1)[0]), layout, subject.note)
  by_count = approximation.plot_errors(errors, counts, "landmarks M", caption)
  return [
    style.save(over_image, out, name),
    style.save(by_count, out, f"{name}_error"),
    style.write_rows(out / f"{name}.csv", approximation.list_errors(errors, counts)),
  ]


def approximate(q: jax.Array, k: jax.Array, count: int, key: jax.Array) -> jax.Array:
  """Returns Nyströmformer's approximation (B, H, N, N) of the attention matrix; `key` is unused."""
  return jnp.asarray(ops.nystrom_attention(q, k, k, count, implementation="masked")[1])


def attend_from_landmarks(layer: MixerCapture, count: int) -> np.ndarray:
  """Returns the softmax attention of at most `count` landmarks to the tokens, (B, H, M, N).

  The query of a landmark is the mean query of its tokens.
  """
  means, _ = segment_means(jnp.asarray(layer.q), count)
  return softmax_map(means, layer.k, layer.scale)


def plot_landmarks(
  attended: np.ndarray, image: np.ndarray, layout: TokenLayout, note: str = ""
) -> Any:
  """Returns a figure of some landmarks: the tokens of each landmark, and its attention by layer.

  Args:
    attended: The attention of each landmark to the tokens, averaged over heads, (L, M, N).
    image: The normalized image, (height, width, channels).
    layout: The layout of the tokens.
    note: A description of the model, for the caption.
  """
  layers = style.choose_some(len(attended), DRAWN_LAYERS)
  some = style.choose_some(attended.shape[1], DRAWN_LANDMARKS)
  rows, columns = len(layers) + 1, len(some) + 1
  side = min(0.8, style.PAGE / columns)
  caption = f"{note}. {attended.shape[1]} landmarks, each the mean of"
  caption += " consecutive tokens (white); below, the attention of its mean query by layer,"
  caption += " averaged over heads."
  width = max(style.COLUMN, side * columns)
  canvas, panels = style.make_panels(rows, columns, width, side * rows + 0.2, caption)
  grid, prefix = layout.grid, layout.prefix
  segments = np.arange(layout.length) // math.ceil(layout.length / attended.shape[1])
  style.show_image(panels[0, 0], image, "image")
  for axes, landmark in zip(panels[0, 1:], some, strict=True):
    members = (segments[prefix:] == landmark).reshape(grid)
    style.show_plane(axes, members, f"landmark {landmark}", cmap="gray", vmin=0, vmax=1)
  for row, layer in zip(panels[1:], layers, strict=True):
    row[0].axis("off")
    row[0].text(0.5, 0.5, f"layer {layer}", fontsize=style.SMALL, ha="center", va="center")
    for axes, landmark in zip(row[1:], some, strict=True):
      plane = attended[layer, landmark, prefix:].reshape(grid)
      style.show_plane(axes, plane, vmin=0)
  return canvas
