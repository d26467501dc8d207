"""Draws the tokens that a query reads, directly or indirectly, through one or more layers."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from vitx.analysis.edges import from_pattern
from vitx.analysis.figures import style
from vitx.analysis.figures.patterns import LayerPattern, choose_query, list_edges
from vitx.analysis.figures.subject import Subject
from vitx.ops.layout import TokenLayout

PANELS = 6


@dataclasses.dataclass(frozen=True)
class ReceptiveFields:
  """The tokens that Q queries read, directly or through several layers.

  Attributes:
    label: The label of the model.
    note: A description of the model, for captions.
    layout: The layout of the tokens.
    queries: The Q places of the queries on the grid.
    seen: A boolean array (L, Q, N). Entry (l, q, t) is True if query q reads token t through the
      last l + 1 layers.
  """

  label: str
  note: str
  layout: TokenLayout
  queries: tuple[int, ...]
  seen: np.ndarray


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws the tokens that a query reads through the last 1, 2, ... layers, and writes a table.

  The option --queries gives the queries; by default there is one. The table has the number of
  tokens that each query reads through each number of layers.
  """
  fields = compute_fields(subject)
  rows = [
    {"query": query, "layers": number + 1, "tokens": int(seen.sum()), "share": float(seen.mean())}
    for i, query in enumerate(fields.queries)
    for number, seen in enumerate(fields.seen[:, i])
  ]
  return style.save_both(plot_fields(fields), out, f"receptive_field_{subject.label}", rows)


def receptive_fields(layers: Sequence[LayerPattern], queries: np.ndarray) -> np.ndarray:
  """Returns the tokens that each query reads through the last 1, 2, ... L layers.

  A query reads itself, because a skip connection carries each token past the mixer. So the matrix
  I + A says which tokens one layer reads, where A has the edges of all heads.

  Args:
    layers: The patterns of all layers, in the order of the network. All layers have one layout.
    queries: The indices of the query tokens, (Q,). Prefix tokens have the first indices.

  Returns:
    A boolean array (L, Q, N). Entry (l, q, t) is True if query q reads token t through the last
    l + 1 layers.
  """
  n = layers[0].layout.length
  distinct = {layer.pattern: layer for layer in layers}
  steps = {pattern: _step(layer) for pattern, layer in distinct.items()}
  rows = np.zeros((len(queries), n), np.float32)
  rows[np.arange(len(queries)), queries] = 1
  seen = []
  for number in range(len(layers)):
    # Only the last layers count: the output of the layers before them is their input.
    now = rows
    for layer in reversed(layers[len(layers) - number - 1 :]):
      now = np.asarray((now @ steps[layer.pattern]) > 0, np.float32)
    seen.append(now > 0)
  return np.stack(seen)


def _step(layer: LayerPattern) -> scipy.sparse.csr_array:
  """Returns the edges of all heads and of the skip connection as a sparse 0-1 matrix, (N, N)."""
  total = scipy.sparse.eye_array(layer.layout.length, format="csr")
  for head in range(min(layer.pattern.head_period, layer.heads)):
    total = total + from_pattern(layer.pattern, layer.layout, head)
  return total.sign().astype(np.float32)


def compute_fields(subject: Subject) -> ReceptiveFields:
  """Returns the receptive fields of the subject's queries.

  Without queries, the query of `choose_query` is taken.
  """
  layers = list_edges(subject.model, subject.input_spec)
  layout = layers[0].layout
  queries = subject.choose_queries(layout.length - layout.prefix, [choose_query(layout)])
  seen = receptive_fields(layers, np.array(queries) + layout.prefix)
  return ReceptiveFields(subject.label, subject.network, layout, queries, seen)


def plot_fields(fields: ReceptiveFields) -> Any:
  """Returns a figure with a row for each query and a column for each number of layers, from 1.

  Darker places are read through fewer layers.
  """
  full = np.flatnonzero(fields.seen.all(axis=(1, 2)))
  depth = min(PANELS, len(fields.seen), *(full[:1] + 1))
  side = min(1.3, style.PAGE / depth)
  rows, columns = style.as_rows(fields.layout.grid)[:2]
  height = max(0.35, side * min(rows / columns, 2.0)) + 0.2
  caption = f"{fields.note}. Places that a query (green) reads through the last layers, darker"
  caption += " where fewer suffice; edges of any head, and the skip past each layer."
  width = max(style.COLUMN, side * depth)
  aspect = "equal" if columns <= 2 * rows else "auto"  # A sequence would be one pixel high.
  canvas, panels = style.make_panels(
    len(fields.queries), depth, width, height * len(fields.queries) + 0.15, caption
  )
  for i, (row, query) in enumerate(zip(panels, fields.queries, strict=True)):
    for number, axes in enumerate(row):
      depths = fields.seen[: number + 1, i, fields.layout.prefix :].sum(axis=0)
      plane = style.to_plane(depths.astype(float), fields.layout.grid)
      share = fields.seen[number, i].mean()
      title = f"{number + 1} layer{'s' if number else ''}\n{share:.0%} of tokens"
      style.show_plane(axes, plane, title, cmap="Blues", vmin=0, vmax=depth, aspect=aspect)
      style.mark(axes, query, fields.layout.grid)
  return canvas
