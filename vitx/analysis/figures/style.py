"""One style for all figures: sizes that are readable in a paper's column, and captions."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis import csv_files
from vitx.analysis.figures.subject import make_canvas, save
from vitx.config.errors import ConfigError

COLUMN, PAGE = 3.35, 6.9  # inches: a column of a paper, and both
SMALL, NORMAL = 6, 7  # points
DOTS = 200  # an inch
MAP, SIGNED = "magma", "RdBu_r"  # colors of what is not negative, and of what has a sign


def make_panels(
  rows: int, columns: int, width: float, height: float, caption: str
) -> tuple[Any, np.ndarray]:
  """Returns a picture of so many inches with panels (rows, columns), and what was run below them.

  Raises:
    MissingExtraError: matplotlib is not installed.
  """
  lines = textwrap.wrap(caption, int(width * 22))  # characters of that size in an inch
  canvas = make_canvas(width, height + 0.11 * len(lines))
  canvas.get_layout_engine().set(h_pad=0.05, w_pad=0.03)
  panels = canvas.subplots(rows, columns, squeeze=False)
  for axes in panels.flat:
    axes.tick_params(labelsize=SMALL, length=2)
  canvas.supxlabel("\n".join(lines), fontsize=SMALL, x=0.01, ha="left")
  return canvas, panels


def show_plane(axes: Any, plane: np.ndarray, title: str = "", **colors: Any) -> Any:
  """Draws values (rows, columns) as squares without numbers at the axes; returns the image."""
  axes.set(xticks=[], yticks=[])
  if title:
    axes.set_title(title, fontsize=SMALL, pad=2)
  return axes.imshow(plane, interpolation="nearest", **{"cmap": MAP, **colors})


def name_axes(axes: Any, x: str, y: str, title: str = "") -> None:
  """Names what the axes of a diagram are, and lays a grid under it."""
  axes.set_xlabel(x, fontsize=NORMAL, labelpad=2)
  axes.set_ylabel(y, fontsize=NORMAL, labelpad=2)
  if title:
    axes.set_title(title, fontsize=NORMAL, loc="left", pad=3)
  axes.grid(alpha=0.3, linewidth=0.5)
  axes.set_axisbelow(True)


def add_scale(canvas: Any, image: Any, panels: Any) -> None:
  """Draws the scale of an image's colors beside its panels."""
  scale = canvas.colorbar(image, ax=panels, shrink=0.7, pad=0.02, aspect=25)
  scale.ax.tick_params(labelsize=SMALL, length=2)


def add_legend(canvas: Any, axes: Any, **settings: Any) -> None:
  """Draws the names of the lines of a diagram to the right of all panels."""
  handles, labels = axes.get_legend_handles_labels()
  given = {"loc": "outside right center", "fontsize": SMALL, "frameon": False, **settings}
  canvas.legend(handles, labels, **given)


def keep(canvas: Any, out: Path, name: str) -> Path:
  """Writes a picture as `name`.png.

  Raises:
    ConfigError: it cannot be written.
  """
  return save(canvas, out, name, DOTS)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
  """Writes a table with the keys of its first row as head, floats with six digits.

  Raises:
    ConfigError: it cannot be written.
  """
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    csv_files.write_records(path, [{key: _show(x) for key, x in row.items()} for row in rows])
  except OSError as error:
    raise ConfigError(f"out={str(path.parent)!r} cannot be written: {error}") from error
  return path


def _show(value: Any) -> Any:
  return f"{value:.6g}" if isinstance(value, float) else value


def choose_some(count: int, most: int) -> list[int]:
  """Returns at most so many of the numbers below `count`, the first and the last among them."""
  return np.unique(np.linspace(0, count - 1, min(most, count)).round()).astype(int).tolist()


def color_of(number: int, count: int) -> tuple[float, float, float, float]:
  """Returns the color of one of several things that stand in an order, such as layers."""
  import matplotlib

  return matplotlib.colormaps["viridis"](0.9 * number / max(count - 1, 1))
