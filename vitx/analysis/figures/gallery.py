"""Draws a gallery of named attention patterns: connected pairs, and one token's receptive field."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis.figures.patterns import LayerPattern, choose_query
from vitx.analysis.figures.receptive_field import receptive_fields
from vitx.analysis.figures.style import make_canvas, save
from vitx.analysis.graph import graph_figures
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.ops.dispatch import dense_mask
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import PATTERNS, Pattern

CHOSEN = (
  *("window", "dilated_window", "longformer", "neighborhood"),
  *("shifted_window", "strided_merged_axial", "bigbird_R+W+G", "watts_strogatz"),
)
GRID = (12, 12)
MOST = 2_304  # The most tokens, since the matrix of pairs is stored.
COLUMNS, LAYERS = 4, 3
# The colors of the query, of the tokens that it sees after 1, 2 and 3 layers, and of all other
# tokens.
COLORS = ("#d95f02", "#08519c", "#6baed6", "#c6dbef", "#ffffff")


@dataclasses.dataclass(frozen=True)
class NamedPatterns:
  """Patterns to draw on a grid.

  Attributes:
    names: Names of `PATTERNS`, or `module:NAME`; () means eight of the named ones.
    grid: The numbers of rows and columns; () means `GRID`.
  """

  names: Sequence[str] = ()
  grid: Sequence[int] = ()


def draw(chosen: NamedPatterns, out: Path) -> list[Path]:
  """Draws named patterns on a grid: the connected pairs, and a query's receptive field by layers.

  If a pattern differs by head or layer, head 0 of layer 0 is drawn.
  """
  names, grid = chosen.names or CHOSEN, tuple(chosen.grid or GRID)
  patterns = {name: registry.lookup(PATTERNS, name, "patterns").at(0) for name in names}
  if len(grid) != 2 or min(grid) < 2 or math.prod(grid) > MOST:
    raise ConfigError(f"grid={grid} must be two numbers from 2, with at most {MOST:,} tokens.")
  return [save(plot_gallery(patterns, TokenLayout(grid)), out, "gallery", 150)]


def plot_gallery(chosen: Mapping[str, Pattern], layout: TokenLayout) -> Any:
  """Returns a figure with a matrix and a receptive field for each pattern of one layer."""
  columns = min(COLUMNS, len(chosen))
  rows = -(-len(chosen) // columns)
  canvas = make_canvas(2.8 * columns, 1.9 * rows + 0.3)
  panels = canvas.subplots(rows, 2 * columns, squeeze=False).reshape(-1, 2)
  for pair, (name, pattern) in zip(panels, chosen.items(), strict=False):
    _draw_pair(pair, name, pattern, layout)
  for axes in panels[len(chosen) :].ravel():
    axes.axis("off")
  _draw_legend(canvas)
  return canvas


def _draw_pair(pair: Any, name: str, pattern: Pattern, layout: TokenLayout) -> None:
  """Draws the connected pairs of tokens as a matrix and, beside it, one token's receptive field."""
  from matplotlib.colors import ListedColormap

  mask = np.asarray(dense_mask(pattern, layout, num_heads=1)[0])
  left, right = pair
  left.imshow(mask, cmap=ListedColormap(("#ffffff", COLORS[1])), vmin=0, vmax=1)
  query = choose_query(layout)
  layers = [LayerPattern(i, pattern, layout, 1) for i in range(LAYERS)]
  # The number of the layer after which the query has seen a token; LAYERS + 1 if none.
  depth = LAYERS + 1 - receptive_fields(layers, np.array([query])).sum(axis=(0, 1))
  depth[query] = 0
  right.imshow(
    depth.reshape(layout.grid), cmap=ListedColormap(COLORS), vmin=0, vmax=len(COLORS) - 1
  )
  mixing = graph_figures(pattern, layout).layers_to_mixing
  # A name may be as wide as both panels, and must not push them apart.
  name_at = {"xycoords": "axes fraction", "in_layout": False, "annotation_clip": False}
  left.annotate(name, (0, 1.2), fontsize=10, weight="bold", **name_at)
  left.set_title(f"\n{mask.mean():.1%} of pairs", fontsize=9, loc="left")
  joined = "not all joined" if math.isinf(mixing) else f"joined in {mixing:.0f} layers"
  right.set_title(joined, fontsize=9, loc="left")
  for axes in (left, right):
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color="gray", linewidth=0.5)  # A wider frame hides the outer tokens.
  left.set_xlabel("keys", fontsize=8, labelpad=2)
  left.set_ylabel("queries", fontsize=8, labelpad=2)
  right.set_xlabel("the image", fontsize=8, labelpad=2)


def _draw_legend(canvas: Any) -> None:
  from matplotlib.patches import Patch

  texts = ("a query", *(f"seen after {i} layer{'s' * (i > 1)}" for i in range(1, LAYERS + 1)))
  handles = [
    Patch(facecolor=color, edgecolor="gray", label=text)
    for color, text in zip(COLORS, (*texts, "not by then"), strict=True)
  ]
  canvas.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)
