"""Draws the attention of Sparsifiner's queries, and the learned bases (Wei et al. 2023).

A layer has a basis (N, S): S vectors over the N tokens. Each query has S coefficients. The score of
a key is the sum of its S basis entries, weighted by these coefficients, and the query keeps the
keys with the largest scores.
"""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict

from vitx.analysis.figures import style
from vitx.analysis.figures.subject import Subject
from vitx.analysis.matrices import sow
from vitx.config.errors import ConfigError
from vitx.models.sown import collect
from vitx.ops.layout import TokenLayout

DRAWN_LAYERS, DRAWN_HEADS = 3, 4
BASIS_LAYERS = 6
Sown = dict[str, dict[str, np.ndarray]]  # by array name and mixer path


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws the attention that Sparsifiner keeps for a few queries, and its bases.

  One figure for each example (supplement, Figures 1 and 2) shows, for a few layers and heads, the
  keys that a query of the grid keeps, its attention to these keys, and its attention to all keys if
  there is no mask. Another figure shows the absolute values of the bases over the grid (Figure 3).
  A table has the numbers of `describe_layer` for each layer.
  """
  layout, images = subject.layout, subject.inputs(subject.examples)
  layers = capture(subject.model, subject.variables(), images)
  if layout is None or any(layer["sparse"].shape[-1] != layout.length for layer in layers):
    raise ConfigError(f"sparsifiner: {subject.label} has not one grid of patches in all layers.")
  rows, columns = layout.grid
  corners = itertools.product((rows // 4, 3 * rows // 4), (columns // 4, 3 * columns // 4))
  default = [row * columns + column for row, column in corners]
  queries = subject.choose_queries(rows * columns, default)
  name = f"sparsifiner_{subject.label}"
  files = [
    style.save(
      plot_example(np.asarray(image), i, layers, queries, layout, subject.note), out, f"{name}_{i}"
    )
    for i, image in enumerate(images)
  ]
  files.append(style.save(plot_bases(layers, layout, subject.note), out, f"{name}_basis"))
  table = [{"layer": i, **describe_layer(layer, layout)} for i, layer in enumerate(layers)]
  return [*files, style.write_rows(out / f"{name}.csv", table)]


def capture(
  model: nn.Module, variables: Mapping[str, Any], images: jax.Array
) -> list[dict[str, np.ndarray]]:
  """Runs a model of Sparsifiner mixers twice, with the masks and without.

  S is the number of basis vectors of a layer, and of coefficients of a query.

  Args:
    model: A model with mixers that compute their matrices.
    variables: The model's variable collections.
    images: The normalized images, (B, height, width, channels).

  Returns:
    A dict for each layer.

    - sparse, full: The attention with the mask and without it, (B, H, N, N).
    - coefficients: The coefficients after the thresholds, (B, H, N - prefix, S); the prefix tokens
      have none.
    - pruned_basis: The basis after its threshold, (N, S).
    - basis: The learned basis, (N, S).
  """
  mixer: Any = getattr(model, "token_mixer", None)
  fields = getattr(mixer, "keywords", {})
  sparse = _collect_sown(model, variables, images)
  if not sparse["coefficients"] or not fields.get("sparse", True):
    raise ConfigError("sparsifiner: this model has no masks; use a run of token_mixer.sparse=True.")
  dense = model.clone(token_mixer=partial(mixer.func, **{**fields, "sparse": False}))
  full = _collect_sown(dense, variables, images)
  params = flatten_dict(dict(variables["params"]), sep="/")
  return [
    {
      "sparse": sparse["attention"][path],
      "full": full["attention"][path],
      "coefficients": sparse["coefficients"][path],
      "pruned_basis": sparse["pruned_basis"][path],
      "basis": np.asarray(params[f"{path}/basis"]),
    }
    for path in sparse["coefficients"]
  ]


def describe_layer(layer: Mapping[str, np.ndarray], layout: TokenLayout) -> dict[str, float]:
  """Summarizes the arrays of a layer from `capture`.

  Returns:
    A dict of means over examples, heads and the queries of the grid.

    - basis_zeros, coefficient_zeros: The shares of zeros in the pruned basis and the coefficients.
    - kept_keys: The number of keys that a query keeps.
    - attention_kept: The share of full attention on kept keys.
    - overlap_of_queries: The intersection over union of the keys that two queries of an image keep
      in a head, averaged over pairs of queries.
    - overlap_of_images: The intersection over union of the keys that one query keeps in two images,
      averaged over pairs of images: 1 if masks do not depend on the image, NaN for one image.
  """
  rows = layer["sparse"].shape[-1] - layout.prefix
  mask = (layer["sparse"] > 0)[:, :, -rows:].astype(np.float64)  # (B, H, n, N)
  full = layer["full"][:, :, -rows:]
  return {
    "basis_zeros": float(np.mean(layer["pruned_basis"] == 0)),
    "coefficient_zeros": float(np.mean(layer["coefficients"] == 0)),
    "kept_keys": float(mask.sum(-1).mean()),
    "attention_kept": float((full * mask).sum(-1).mean()),
    "overlap_of_queries": _measure_overlap(mask),
    "overlap_of_images": _measure_overlap(np.moveaxis(mask, 0, -2)),
  }


def _measure_overlap(mask: np.ndarray) -> float:
  """Returns the mean intersection over union of the pairs of rows of masks (..., rows, N)."""
  rows = mask.shape[-2]
  if rows == 1:
    return float("nan")
  shared = mask @ np.swapaxes(mask, -1, -2)
  sizes = mask.sum(-1)
  union = sizes[..., :, None] + sizes[..., None, :] - shared
  apart = ~np.eye(rows, dtype=bool)
  return float((shared / np.maximum(union, 1))[..., apart].mean())


def _collect_sown(model: nn.Module, variables: Mapping[str, Any], images: Any) -> Sown:
  """Returns the arrays that the mixers sow in a run, by array name and mixer path."""
  sown = jax.device_get(jax.jit(partial(sow, model))(variables, images))
  return {name: collect(sown, name) for name in ("attention", "coefficients", "pruned_basis")}


def plot_example(
  image: np.ndarray,
  example: int,
  layers: Sequence[Mapping],
  queries: Sequence[int],
  layout: TokenLayout,
  note: str = "",
) -> Any:
  """Returns a figure with three rows for each query, and a column for each head of each layer.

  The rows show over the grid which keys the query attends ("mask"), its attention to these keys
  ("sparse"), and its attention to all keys without the mask ("full").
  """
  chosen = style.choose_some(len(layers), DRAWN_LAYERS)
  heads = min(DRAWN_HEADS, layers[0]["sparse"].shape[1])
  columns = [(layer, head) for layer in chosen for head in range(heads)]
  count = len(columns) + 1
  rows = 3 * len(queries)
  height = (style.PAGE / count + 0.06) * rows + 0.2
  canvas, panels = style.make_panels(rows, count, style.PAGE, height, note)
  for number, query in enumerate(queries):
    for kind, row in zip(("mask", "sparse", "full"), panels[3 * number :], strict=False):
      row[0].set_ylabel(kind, fontsize=style.SMALL, labelpad=2)
      style.show_image(row[0], image)
      style.mark(row[0], query, layout.grid, image.shape[:2])
      for axes, (layer, head) in zip(row[1:], columns, strict=True):
        matrices = layers[layer]["full" if kind == "full" else "sparse"]
        weights = matrices[example, head, layout.prefix + query]
        plane = weights[layout.prefix :].reshape(layout.grid)
        if kind == "mask":
          title = "" if number else f"layer {layer}\nhead {head}"
          style.show_plane(axes, plane > 0, title, cmap="gray")
        else:
          style.show_plane(axes, plane)
        style.mark(axes, query, layout.grid)
  return canvas


def plot_bases(layers: Sequence[Mapping], layout: TokenLayout, note: str = "") -> Any:
  """Returns a figure of the first layers (rows) and their basis vectors (columns)."""
  some = layers[:BASIS_LAYERS]
  slots = some[0]["basis"].shape[1]
  width = min(style.PAGE, 0.5 * slots + 0.5)
  canvas, panels = style.make_panels(
    len(some), slots, width, (width / slots + 0.06) * len(some) + 0.1, note
  )
  for number, (row, layer) in enumerate(zip(panels, some, strict=True)):
    for axes, slot in zip(row, np.abs(layer["basis"])[layout.prefix :].T, strict=True):
      style.show_plane(axes, slot.reshape(layout.grid), vmin=0)
    row[0].set_ylabel(f"layer {number}", fontsize=style.SMALL, labelpad=2)
  return canvas
