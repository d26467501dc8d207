"""What Sparsifiner's queries attend, and the bases they choose from (Wei et al. 2023)."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict

from vitx.analysis.figures import style
from vitx.analysis.figures.attention import mark_patch, show_image
from vitx.analysis.figures.subject import Subject
from vitx.config.errors import ConfigError
from vitx.models.sown import collect
from vitx.ops.layout import TokenLayout

DRAWN_LAYERS, DRAWN_HEADS, DRAWN_QUERIES = 3, 4, 4
BASIS_LAYERS = 6


def draw_sparsifiner(subject: Subject, out: Path) -> list[Path]:
  """Sparsifiner's masks, sparse and full attention of a few queries, and its bases.

  One picture for each example (supplement, Figures 1 and 2): for a few layers and heads, which keys
  a query of the grid keeps, what it attends of them, and what it attends with the same weights
  where no mask is in force. One picture of the absolute values of the bases over the grid (Figure
  3). The table has by layer the share of zeros of basis and coefficients, the share of full
  attention that falls on kept keys, and how much the kept keys of two queries of a head overlap
  (intersection over union, the mean over pairs).

  Raises:
    ConfigError: a model without Sparsifiner's mixers or with all attended, or a query that there is
      not.
  """
  layout = subject.layout
  if layout is None or len(layout.grid) != 2:
    raise ConfigError(
      "sparsifiner shows the queries of images; this model has none: use a classifier with"
      " model.token_mixer='sparsifiner'"
    )
  queries = _choose_queries(subject.queries, layout)
  images = subject.inputs(subject.examples)
  layers = capture(subject.model, subject.variables(), images)
  name = f"sparsifiner_{subject.label}"
  files = [
    style.keep(
      plot_example(np.asarray(image), i, layers, queries, layout, subject.note), out, f"{name}_{i}"
    )
    for i, image in enumerate(images)
  ]
  files.append(style.keep(plot_bases(layers, layout, subject.note), out, f"{name}_basis"))
  rows = [{"layer": i, **describe_layer(layer, layout)} for i, layer in enumerate(layers)]
  return [*files, style.write_rows(out / f"{name}.csv", rows)]


def capture(
  model: nn.Module, variables: Mapping[str, Any], images: jax.Array
) -> list[dict[str, np.ndarray]]:
  """Runs a model with Sparsifiner's mixers, with its masks and without.

  Args:
    model: whose mixers hold their matrices.
    variables: its collections.
    images: (B, height, width, channels), normalized.

  Returns:
    By layer: `sparse` and `full` attention (B, H, N, N), `coefficients` (B, H, N - prefix, S) and
    `pruned_basis` (N, S), and `basis` (N, S) as learned.

  Raises:
    ConfigError: the model has no such mixers, or they attend all.
  """
  mixer: Any = getattr(model, "token_mixer", None)
  fields = getattr(mixer, "keywords", {})
  sparse = _sown(model, variables, images)
  if not sparse["coefficients"] or not fields.get("sparse", True):
    raise ConfigError(
      "sparsifiner shows the masks of a network whose model.token_mixer is 'sparsifiner', with"
      " token_mixer.sparse=True; use --workdir of such a run"
    )
  dense = model.clone(token_mixer=partial(mixer.func, **{**fields, "sparse": False}))
  full = _sown(dense, variables, images)
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
  """Returns the figures of a layer's row of the table, of the queries of the grid."""
  rows = layer["sparse"].shape[-1] - layout.prefix
  kept = (layer["sparse"] > 0)[:, :, -rows:].astype(np.float64)  # (B, H, n, N)
  full = layer["full"][:, :, -rows:]
  both = kept @ np.swapaxes(kept, -1, -2)
  sizes = kept.sum(-1)
  either = sizes[..., :, None] + sizes[..., None, :] - both
  apart = ~np.eye(rows, dtype=bool)
  return {
    "basis_zeros": float(np.mean(layer["pruned_basis"] == 0)),
    "coefficient_zeros": float(np.mean(layer["coefficients"] == 0)),
    "kept_keys": float(sizes.mean()),
    "attention_kept": float((full * kept).sum(-1).mean()),
    "overlap": float((both / np.maximum(either, 1))[..., apart].mean()),
  }


def _sown(
  model: nn.Module, variables: Mapping[str, Any], images: Any
) -> dict[str, dict[str, np.ndarray]]:
  """Returns what the mixers sowed, by its name and theirs."""

  def look(variables, images):
    return model.apply(variables, images, train=False, mutable=["intermediates"])[1]

  found = jax.device_get(jax.jit(look)(variables, images)).get("intermediates", {})
  return {name: collect(found, name) for name in ("attention", "coefficients", "pruned_basis")}


def _choose_queries(given: Sequence[int], layout: TokenLayout) -> list[int]:
  """Returns places on the grid: those given, or a few, spread evenly."""
  n = layout.length - layout.prefix
  for query in given:
    if not 0 <= query < n:
      raise ConfigError(f"queries={query} is no place of the grid; choose from 0 to {n - 1}")
  rows, columns = layout.grid
  some = [(rows * (1 + 2 * (i // 2)) // 4, columns * (1 + 2 * (i % 2)) // 4) for i in range(4)]
  return list(given) or [row * columns + column for row, column in some][:DRAWN_QUERIES]


def plot_example(
  image: np.ndarray,
  example: int,
  layers: Sequence[Mapping],
  queries: Sequence[int],
  layout: TokenLayout,
  note: str = "",
) -> Any:
  """Returns a picture with three rows for each query, and a column for each head of each layer.

  Args:
    image: (height, width, channels), normalized.
    example: its number in what was captured.
    layers: of `capture`.
    queries: places on the grid.
    layout: of the tokens.
    note: what was run, for the caption.
  """
  chosen = style.choose_some(len(layers), DRAWN_LAYERS)
  heads = min(DRAWN_HEADS, layers[0]["sparse"].shape[1])
  columns = [(layer, head) for layer in chosen for head in range(heads)]
  count = len(columns) + 1
  rows = 3 * len(queries)
  height = (style.PAGE / count + 0.06) * rows + 0.2
  canvas, panels = style.make_panels(rows, count, style.PAGE, height, note)
  for axes in panels.flat:
    axes.set(xticks=[], yticks=[])
  for number, query in enumerate(queries):
    for kind, row in zip(("mask", "sparse", "full"), panels[3 * number :], strict=False):
      row[0].set_ylabel(kind, fontsize=style.SMALL, labelpad=2)
      show_image(row[0], image)
      mark_patch(row[0], query, layout, image.shape[:2])
      for axes, (layer, head) in zip(row[1:], columns, strict=True):
        matrices = layers[layer]["full" if kind == "full" else "sparse"]
        weights = matrices[example, head, layout.prefix + query]
        plane = (weights > 0) if kind == "mask" else weights
        axes.imshow(
          plane[layout.prefix :].reshape(layout.grid), cmap="gray" if kind == "mask" else "magma"
        )
        mark_patch(axes, query, layout)
        if number == 0 and kind == "mask":
          axes.set_title(f"layer {layer}\nhead {head}", fontsize=style.SMALL, pad=2)
  return canvas


def plot_bases(layers: Sequence[Mapping], layout: TokenLayout, note: str = "") -> Any:
  """Returns a picture with a row for each of the first layers, and a column for each slot.

  Args:
    layers: of `capture`.
    layout: of the tokens.
    note: what was run, for the caption.
  """
  some = layers[:BASIS_LAYERS]
  slots = some[0]["basis"].shape[1]
  width = min(style.PAGE, 0.5 * slots + 0.5)
  canvas, panels = style.make_panels(
    len(some), slots, width, (width / slots + 0.06) * len(some) + 0.1, note
  )
  for number, (row, layer) in enumerate(zip(panels, some, strict=True)):
    for axes, slot in zip(row, np.abs(layer["basis"])[layout.prefix :].T, strict=True):
      axes.imshow(slot.reshape(layout.grid), cmap="magma", vmin=0)
      axes.set(xticks=[], yticks=[])
    row[0].set_ylabel(f"layer {number}", fontsize=style.SMALL, labelpad=2)
  return canvas
