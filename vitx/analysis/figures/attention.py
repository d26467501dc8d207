"""Attention of a classifier's layers and heads over the image, for one or several models."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.figures import style
from vitx.analysis.figures.capture import MixerCapture, capture
from vitx.analysis.figures.subject import Subject
from vitx.attention.fnet import FNet
from vitx.config.errors import ConfigError, listing
from vitx.models.network import Network
from vitx.ops.layout import TokenLayout

DRAWN_LAYERS, DRAWN_HEADS = 12, 8


@dataclasses.dataclass(frozen=True)
class Maps:
  """The attention of a model for B examples.

  Attributes:
    label: The label of the model.
    note: A description of the model, for captions.
    images: The normalized images, (B, height, width, channels).
    layouts: The layouts of the tokens, one per layer.
    layers: The attention matrices, one (B, H, N, N) per layer; each row belongs to a query.
    has_class: Whether the first of the tokens in front of a grid is a class token. It is not if
      there are only registers.
  """

  label: str
  note: str
  images: np.ndarray
  layouts: tuple[TokenLayout, ...]
  layers: tuple[np.ndarray, ...]
  has_class: bool = True

  def read_row(self, matrix: np.ndarray, layer: int, query: int | None = None) -> np.ndarray:
    """Returns the attention of one query of a layer to the patches, (..., rows, columns).

    Args:
      matrix: The attention matrices of the layer, (..., N, N).
      layer: The number of the layer.
      query: The number of a patch on the grid of the first layer. `None` means the class token or,
        without one, the mean of all queries.
    """
    layout, place = self.layouts[layer], self.find_query(query, layer)
    if place is not None:
      row = matrix[..., layout.prefix + place, :]
    elif layout.prefix and self.has_class:
      row = matrix[..., 0, :]
    else:
      row = matrix.mean(axis=-2)
    return row[..., layout.prefix :].reshape(*row.shape[:-1], *layout.grid)

  def find_query(self, query: int | None, layer: int) -> int | None:
    """Returns the place of a patch of the first layer's grid on the grid of another layer.

    The layers of a network of several stages have different grids.
    """
    if query is None:
      return None
    (rows, columns), (layer_rows, layer_columns) = self.layouts[0].grid, self.layouts[layer].grid
    row, column = divmod(query, columns)
    return row * layer_rows // rows * layer_columns + column * layer_columns // columns

  def name_query(self, query: int | None) -> str:
    """Returns the words of a caption for a query, see `read_row`."""
    if query is not None:
      return f"patch {query} (green)"
    return "class token" if self.layouts[0].prefix and self.has_class else "mean of all queries"


def draw(inputs: Sequence[Subject], out: Path) -> list[Path]:
  """Draws where classifiers attend in the image: by layer and head, and through all layers.

  A picture for each model shows every layer and head in the first example. One picture for all
  models shows, in every example, the attention of the last layer, averaged over heads, and the
  `rollout` through all layers. The option --queries gives the queries whose attention is drawn. By
  default this is the class token or, in a model without one, the mean over all queries.
  """
  models = [compute_maps(subject) for subject in inputs]
  queries: list[int | None] = [*inputs[0].queries] or [None]
  files = []
  for query in queries:
    end = "" if query is None else f"_query_{query}"
    for maps in models:
      canvas = plot_heads(maps, query=query)
      files.append(style.save(canvas, out, f"attention_{maps.label}_heads{end}"))
    name = "_".join(["attention", *(maps.label for maps in models)])
    files.append(style.save(plot_side_by_side(models, query=query), out, name + end))
  return files


def compute_maps(subject: Subject) -> Maps:
  """Runs a network on its examples and returns the attention matrices of all layers.

  The matrix of shaped attention is α I + β A - γ C: I is the identity, and C attends all tokens
  equally. For this mixer, only the softmax attention A is returned.

  Raises:
    ConfigError: A mixer of the model has no attention between all tokens of a grid of patches, or a
      query does not exist.
  """
  has_grid = subject.layout is not None and len(subject.layout.grid) == 2
  images = subject.inputs(subject.examples) if has_grid else None
  layers = capture(subject.model, subject.variables(), images) if has_grid else []
  wrong = {layer.mixer for layer in layers if not _is_map(layer)}
  if wrong or not layers:
    raise ConfigError(
      f"attention: {listing(wrong) or subject.label} has no matrix of attention between all patches"
      " of an image; use a classifier with a mixer such as softmax, performer or a pattern."
    )
  layouts = tuple(layer.layout for layer in layers)
  subject.choose_queries(math.prod(layouts[0].grid))
  model = subject.model
  has_class = not isinstance(model, Network) or model.pool(parent=None).prefix > 0
  maps = tuple(np.asarray(layer.map) for layer in layers)
  return Maps(subject.label, subject.note, np.asarray(images), layouts, maps, has_class)


def _is_map(layer: MixerCapture) -> bool:
  """Returns whether a layer has attention between all tokens and its tokens are patches."""
  shape = getattr(layer.matrix, "shape", ())[-2:]  # FNet's matrix is a Fourier transform.
  is_square = shape == (layer.layout.length,) * 2
  return is_square and layer.layout.has_places and layer.mixer != FNet.__name__


def rollout(layers: Sequence[np.ndarray], skip: float = 0.5) -> np.ndarray:
  """Computes how much each input token contributes to each output token, over all layers.

  The contributions are the product of s I + (1 - s) A over the layers, with the last layer at the
  left. A is a layer's attention, averaged over heads (Abnar and Zuidema 2020, section 3).

  Args:
    layers: The attention matrices, (B, H, N, N) each; rows sum to one.
    skip: The share s of the skip connection.

  Returns:
    The contributions by output token and input token, (B, N, N); rows sum to one.
  """
  eye = np.eye(layers[0].shape[-1])
  product = np.broadcast_to(eye, (layers[0].shape[0], *eye.shape))
  for layer in layers:
    product = (skip * eye + (1 - skip) * layer.mean(axis=1)) @ product
  return product


def plot_heads(maps: Maps, example: int = 0, query: int | None = None) -> Any:
  """Returns a figure of one example, with a row for each head and a column for each layer."""
  layers = style.choose_some(len(maps.layers), DRAWN_LAYERS)
  heads = style.choose_some(max(layer.shape[1] for layer in maps.layers), DRAWN_HEADS)
  side = min(0.85, style.PAGE / (len(layers) + 1))
  query_name = maps.name_query(query)
  caption = f"{maps.note}. Attention of the {query_name} in example {example}, by layer and"
  caption += " head. Each panel's scale goes from zero to its largest value."
  rows = len(heads)
  width, height = max(style.COLUMN, side * (len(layers) + 1)), side * rows + 0.25
  canvas, panels = style.make_panels(rows, len(layers) + 1, width, height, caption)
  for row, head in zip(panels, heads, strict=True):
    for axes, number in zip(row[1:], layers, strict=True):
      matrix = maps.layers[number][example]
      if head >= len(matrix):
        # The label beside the panel is drawn, so the axes cannot be switched off.
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.patch.set_visible(False)
        continue
      title = f"layer {number}" if head == heads[0] else ""
      style.show_plane(axes, maps.read_row(matrix[head], number, query), title, vmin=0)
      style.mark(axes, maps.find_query(query, number), maps.layouts[number].grid)
    row[1].set_ylabel(f"head {head}", fontsize=style.SMALL, labelpad=2)
    row[0].axis("off")
  panels[0, 0].axis("on")
  style.show_image(panels[0, 0], maps.images[example], "image")
  style.mark(panels[0, 0], query, maps.layouts[0].grid, maps.images.shape[1:3])
  return canvas


def plot_side_by_side(models: Sequence[Maps], query: int | None = None) -> Any:
  """Returns a figure with a row for each example, and one or two columns for each model.

  The first column shows the attention of the last layer, averaged over heads. The second column
  shows the rollout; a model whose layers have different layouts lacks this column.

  Args:
    models: The attention of each model.
    query: The number of a patch on the grid. `None` means the class token or, without one, the mean
      of all queries.
  """
  kinds = [(maps, kind) for maps in models for kind in ("last layer", "rollout")]
  kinds = [(m, kind) for m, kind in kinds if kind != "rollout" or len({*m.layouts}) == 1]
  count = min(len(maps.images) for maps in models)
  side = min(0.95, style.PAGE / (len(kinds) + 1))
  width = max(style.COLUMN, side * (len(kinds) + 1))
  note = "; ".join(f"{maps.label}: {maps.note}" for maps in models)
  query_names = " or ".join(dict.fromkeys(maps.name_query(query) for maps in models))
  caption = f"{note}. Attention of the {query_names}, averaged over heads"
  if any(kind == "rollout" for _, kind in kinds):
    caption += "; rollout with half an identity in each layer"
  caption += ". Each panel's scale goes from zero to its largest value."
  canvas, panels = style.make_panels(count, len(kinds) + 1, width, side * count + 0.4, caption)
  for number, row in enumerate(panels):
    style.show_image(row[0], models[0].images[number], "" if number else "image")
    style.mark(row[0], query, models[0].layouts[0].grid, models[0].images.shape[1:3])
    for axes, (maps, kind) in zip(row[1:], kinds, strict=True):
      layers = [layer[number : number + 1] for layer in maps.layers]
      matrix = layers[-1].mean(axis=1) if kind == "last layer" else rollout(layers)
      plane = maps.read_row(matrix[0], -1, query)
      style.show_plane(axes, plane, "" if number else f"{maps.label}\n{kind}", vmin=0)
      style.mark(axes, maps.find_query(query, -1), maps.layouts[-1].grid)
  return canvas
