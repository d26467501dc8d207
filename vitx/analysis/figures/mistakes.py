"""Draws a classifier's most confident mistakes and least certain examples, with its attention."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitx.analysis.classification import Predictions
from vitx.analysis.figures import style

COLUMNS = 4
SIDE = 2.3  # The side of a picture, in inches.
SMALLEST, LARGEST = 256, 768  # The bounds of a picture's longer side, in pixels.
DIM = 0.45  # The brightness of a photo where attention is lowest.
SHOWN = (
  "Bright and colored: high attention in the last layer, mean of its heads, each picture by its own"
  " scale, on which the highest tenth is as bright as the photo; the model does not see a dim frame"
)
TINT, ORANGE = 0.4, (255, 140, 0)  # The share of orange in a gray photo where attention is high.
TITLES = {"mistakes": "Most confident mistakes", "doubts": "Least certain examples"}


@dataclasses.dataclass(frozen=True)
class Picture:
  """An example as a picture, with a classifier's prediction.

  Attributes:
    name: The name of the example, such as the path of its file.
    label: The name of the true class.
    prediction: The name of the most probable class.
    confidence: The probability of the most probable class.
    image: The whole photo, uint8 (height, width, C).
    attention: The attention over the photo from 0 to 1, (height, width). It is 0 in parts of the
      photo that the model does not see, and `None` if the model has no attention maps.
  """

  name: str
  label: str
  prediction: str
  confidence: float
  image: np.ndarray
  attention: np.ndarray | None = None

  def render(self) -> Image.Image:
    """Returns the photo at a convenient size, dim and gray where attention is low."""
    picture = scale_side(to_color(self.image))
    if self.attention is None:
      return picture
    plane = Image.fromarray(self.attention.astype(np.float32)).resize(picture.size)
    share = np.asarray(plane)[..., None].clip(0, 1)
    bright, dim = np.asarray(picture), DIM * np.asarray(picture.convert("L"))[..., None]
    if self.image.shape[-1] not in (3, 4):  # In a gray photo, brightness alone would be misleading.
      bright = (1 - TINT) * bright + TINT * np.array(ORANGE)
    mixed = bright * share + dim * (1 - share)
    return Image.fromarray(mixed.round().astype(np.uint8))


@dataclasses.dataclass(frozen=True)
class PredictedSplit:
  """A classifier's predictions on a split, with a function that shows the examples.

  Attributes:
    label: The name of the run in file names.
    note: A description of the model and the split, for captions.
    class_names: The names of the K classes.
    predictions: The predictions.
    show: A function that takes indices into `predictions`, and returns these examples as pictures.
    examples: The number of examples to draw.
  """

  label: str
  note: str
  class_names: tuple[str, ...]
  predictions: Predictions
  show: Callable[[Sequence[int]], list[Picture]]
  examples: int = 8


def draw(split: PredictedSplit, out: Path) -> list[Path]:
  """Draws the most confident mistakes and the least certain examples, and lists them as CSV.

  The attention over a photo is that of the class token in the last layer, averaged over heads. In a
  model without a class token, it is also averaged over all queries.
  """
  files, rows = [], []
  for kind, pictures in choose_pictures(split, split.examples).items():
    for rank, picture in enumerate(pictures):
      texts = {"name": picture.name, "label": picture.label, "prediction": picture.prediction}
      rows.append({"kind": kind, "rank": rank, **texts, "confidence": picture.confidence})
    if pictures:
      canvas = plot_pictures(pictures, f"{TITLES[kind]}. {split.note}.")
      files.append(style.save(canvas, out, f"{kind}_{split.label}"))
  files.append(style.write_rows(out / f"mistakes_{split.label}.csv", rows))
  return files


def choose_pictures(split: PredictedSplit, most: int) -> dict[str, list[Picture]]:
  """Returns at most `most` pictures of each kind: "mistakes", and "doubts", the least certain.

  A picture in "mistakes" is not repeated in "doubts".
  """
  mistakes = split.predictions.mistakes[:most].tolist()
  doubts = [at for at in split.predictions.least_certain.tolist() if at not in mistakes][:most]
  return {"mistakes": split.show(mistakes), "doubts": split.show(doubts)}


def plot_pictures(pictures: Sequence[Picture], caption: str) -> Any:
  """Returns matplotlib's figure of pictures, with the classes above each and its name below."""
  columns = min(COLUMNS, len(pictures))
  rows = -(-len(pictures) // columns)
  attended = any(picture.attention is not None for picture in pictures)
  caption += f" {SHOWN}." * attended
  width, height = SIDE * columns, (SIDE + 0.45) * rows
  canvas, panels = style.make_panels(rows, columns, width, height, caption)
  for axes in panels.flat:
    axes.axis("off")
  for axes, picture in zip(panels.flat, pictures, strict=False):
    axes.axis("on")
    label, rate = shorten(picture.label), f"{picture.confidence:.1%}"
    title = f"{label}, taken for\n{shorten(picture.prediction)} {rate}"
    if picture.label == picture.prediction:
      title = f"{label}, recognized\nwith {rate}"
    style.show_plane(axes, np.asarray(picture.render()), title)
    axes.set_xlabel(shorten(picture.name, 34, end=True), fontsize=style.SMALL - 1, labelpad=2)
  return canvas


def to_color(image: np.ndarray) -> Image.Image:
  """Returns an image (height, width, C) as an RGB picture, which is gray unless C is 3 or 4."""
  if image.shape[-1] in (3, 4):
    return Image.fromarray(image[..., :3])
  return Image.fromarray(image.mean(axis=-1).astype(np.uint8)).convert("RGB")


def scale_side(picture: Image.Image) -> Image.Image:
  """Resizes a picture so that its longer side is between `SMALLEST` and `LARGEST` pixels.

  A picture that grows to more than twice its size keeps sharp pixels.
  """
  side = max(picture.size)
  target = min(max(side, SMALLEST), LARGEST)
  if side == target:
    return picture
  size = tuple(max(round(length * target / side), 1) for length in picture.size)
  how = Image.Resampling.NEAREST if target > 2 * side else Image.Resampling.LANCZOS
  return picture.resize(size, how)  # type: ignore[arg-type]


def shorten(text: str, most: int = 26, *, end: bool = False) -> str:
  """Shortens a text to at most `most` characters by cutting its end or, with `end`, its start."""
  if len(text) <= most:
    return text
  return f"…{text[1 - most :]}" if end else f"{text[: most - 1]}…"
