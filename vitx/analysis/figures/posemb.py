"""Draws the similarity of position embeddings (Dosovitskiy et al. 2021, Figure 7)."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from vitx.analysis.figures import style
from vitx.analysis.figures.subject import Subject
from vitx.analysis.statistics import divide
from vitx.config.errors import ConfigError
from vitx.models import names
from vitx.ops.layout import TokenLayout

MOST = 16  # The most rows and columns of tiles.


@dataclasses.dataclass(frozen=True)
class Positions:
  """The position embeddings of a model.

  Attributes:
    table: The embeddings, (N, C), with prefix tokens first.
    layout: The layout of the N tokens.
  """

  table: np.ndarray
  layout: TokenLayout

  def similarity(self) -> np.ndarray:
    """Returns the cosine similarity of the embeddings of every two of the grid's n tokens, (n, n).

    The similarity to a zero vector is 0.
    """
    grid = self.table[self.layout.prefix :].astype(np.float64)
    norms = np.linalg.norm(grid, axis=1)
    return divide(grid @ grid.T, norms[:, None] * norms)


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws the cosine similarity of each place's position embedding to all places' embeddings."""
  canvas = plot_similarity(compute_positions(subject), subject.note)
  return [style.save(canvas, out, f"posemb_{subject.label}")]


def compute_positions(subject: Subject) -> Positions:
  """Returns the position embeddings that a network adds to its tokens.

  For a network of several stages, these are the positions of the first.
  """
  layouts: list[TokenLayout] = []

  def look(variables: Any, inputs: Any) -> list[jax.Array]:
    added = []

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
      out = call(*args, **kwargs)
      path = context.module.path
      if path and path[-1] == names.POSITIONS and context.method_name == "__call__":
        layouts.append(args[1] if len(args) > 1 else kwargs["layout"])
        added.append((out - args[0])[0])
      return out

    with nn.intercept_methods(note):
      subject.model.apply(variables, inputs, train=False, mutable=["intermediates"])
    return added

  spec = subject.input_spec
  blank = np.zeros(spec.shape, spec.dtype)
  added = jax.device_get(jax.jit(look)(subject.variables(), blank))
  if not added or not added[0].any():
    raise ConfigError(f"posemb: {subject.label} adds no positions; use posemb=learned or sincos.")
  return Positions(added[0], layouts[0])


def plot_similarity(positions: Positions, note: str) -> Any:
  """Returns a figure with a tile for each place, which shows the similarity to all other places."""
  grid = positions.layout.grid
  alike = positions.similarity()
  rows, columns = style.as_rows(grid)[:2]
  place = int(np.prod(grid[2:]))
  places = [style.choose_some(count, MOST) for count in (rows, columns)]
  caption = f"{note}. Cosine similarity of the position embedding of each patch (a tile, at its"
  caption += " place in the grid) to those of all patches."
  height = max(0.5, 0.85 * style.COLUMN * len(places[0]) / len(places[1]))
  canvas, panels = style.make_panels(len(places[0]), len(places[1]), style.COLUMN, height, caption)
  for axes_row, row in zip(panels, places[0], strict=True):
    for axes, column in zip(axes_row, places[1], strict=True):
      tile = style.to_plane(alike[(row * columns + column) * place], grid) / place
      image = style.show_plane(axes, tile, cmap="viridis", vmin=-1, vmax=1)
  style.add_scale(canvas, image, panels)
  return canvas
