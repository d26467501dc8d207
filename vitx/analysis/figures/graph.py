"""Draws graph properties of a model's attention patterns as bars, and writes them as a table."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitx.analysis.figures import style
from vitx.analysis.figures.patterns import group_layers, list_edges
from vitx.analysis.figures.subject import Subject
from vitx.analysis.graph import GraphFigures, graph_figures

OMITTED = ("in_degree", "clustering_directed")  # The properties without a column.
SHOWN = {
  "density": "density",
  "path_length": "mean path length",
  "clustering": "clustering",
  "spectral_gap": "spectral gap",
}


def draw(subjects: Sequence[Subject], out: Path) -> list[Path]:
  """Draws graph properties of the layers' patterns, such as density and path length, with a table.

  The table has a row for each distinct pattern; if heads differ, it has a row for each head.
  `vitx.analysis.graph.GraphFigures` describes the columns.
  """
  rows = [row for subject in subjects for row in compute_graph(subject)]
  name = "_".join(["graph", *(subject.label for subject in subjects)])
  note = "; ".join(dict.fromkeys(subject.network for subject in subjects))
  return style.save_both(plot_graph(rows, note), out, name, rows)


def compute_graph(subject: Subject) -> list[dict[str, Any]]:
  """Returns a table row for each distinct pattern and head: its layers and its graph properties."""
  layers = group_layers(list_edges(subject.model, subject.input_spec))
  return [
    {"model": subject.label, "layers": " ".join(map(str, numbers)), "head": head}
    | _flatten(graph_figures(layer.pattern, layer.layout, head=head))
    for layer, numbers in layers.items()
    for head in range(layer.distinct_heads)
  ]


def _flatten(graph: GraphFigures) -> dict[str, Any]:
  row: dict[str, Any] = {}
  for name, value in vars(graph).items():
    if name == "out_degree":
      row |= zip(("keys_least", "keys_mean", "keys_most"), value, strict=True)
    elif name not in OMITTED:
      row[name] = value
  return row


def plot_graph(rows: Sequence[dict[str, Any]], note: str) -> Any:
  """Returns a figure with a panel for each of four properties; a panel has a bar for each row."""
  caption = f"{note}. Graphs of attention patterns, an edge from each query to each of its keys."
  height = 0.45 + 0.16 * len(rows)
  canvas, panels = style.make_panels(1, len(SHOWN), style.PAGE, height, caption)
  names = [_name(row, rows) for row in rows]
  for axes, (figure, words) in zip(panels[0], SHOWN.items(), strict=True):
    values = [float(row[figure]) for row in rows]
    axes.barh(range(len(rows)), [0 if math.isnan(x) else x for x in values], color="C0")
    for place, value in enumerate(values):
      axes.annotate(
        f" {value:.3g}", (0 if math.isnan(value) else value, place), va="center", fontsize=5
      )
    axes.set(ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.margins(x=0.3)
    style.name_axes(axes, words, "")
  panels[0, 0].set_yticks(range(len(rows)), names, fontsize=style.SMALL)
  return canvas


def _name(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
  """Returns a row's model, with its layers and head unless all rows of the model share them."""
  siblings = [other for other in rows if other["model"] == row["model"]]
  parts = [row["model"]]
  if len({other["layers"] for other in siblings}) > 1:
    first = row["layers"].split()
    parts.append(f"layer {first[0]}" + (", ..." if len(first) > 1 else ""))
  if len({other["head"] for other in siblings}) > 1:
    parts.append(f"head {row['head']}")
  return ", ".join(parts)
