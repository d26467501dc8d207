"""The common style of all figures: sizes that can be read in a paper's column, and captions."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitx.analysis import csv_files
from vitx.config.errors import escape, importing

COLUMN, PAGE = 3.35, 6.9  # The widths of one and of two columns of a paper, in inches.
SMALL, NORMAL = 6, 7  # The font sizes in points.
DOTS = 200  # The resolution in dots per inch.
MAP, SIGNED = "magma", "RdBu_r"  # The colors of nonnegative and of signed values.


def make_canvas(width: float, height: float) -> Any:
  """Returns an empty figure; width and height are in inches.

  Raises:
    MissingExtraError: Matplotlib is not installed.
  """
  with importing("the figure", "plot"):
    from matplotlib.figure import Figure  # Without pyplot there is no window and no global state.
  return Figure(figsize=(width, height), layout="constrained")


def save(canvas: Any, out: Path, name: str, dots: int = DOTS) -> Path:
  """Writes a figure as `name`.png with `dots` dots per inch; creates the folder if needed."""
  from matplotlib.text import Text

  for text in canvas.findobj(Text):  # Names and captions; tick labels are set later, when drawn.
    text.set(text=escape(text.get_text()), parse_math=False)  # A name with $ must not become math.
  path = out / f"{name}.png"
  out.mkdir(parents=True, exist_ok=True)
  # Without metadata, equal figures are equal files.
  canvas.savefig(path, dpi=dots, metadata={"Software": None})
  return path


def save_both(canvas: Any, out: Path, name: str, rows: Sequence[dict[str, Any]]) -> list[Path]:
  """Writes a figure as `name`.png and its numbers as `name`.csv, see `save` and `write_rows`."""
  return [save(canvas, out, name), write_rows(out / f"{name}.csv", rows)]


def make_panels(
  rows: int, columns: int, width: float, height: float, caption: str
) -> tuple[Any, np.ndarray]:
  """Returns an empty figure with a caption, and its panels (rows, columns).

  The width and height are in inches, without the caption.
  """
  lines = textwrap.wrap(caption, int(width * 22))  # About 22 characters of the font fit in an inch.
  canvas = make_canvas(width, height + 0.11 * len(lines))
  canvas.get_layout_engine().set(h_pad=0.05, w_pad=0.03)
  panels = canvas.subplots(rows, columns, squeeze=False)
  for axes in panels.flat:
    axes.tick_params(labelsize=SMALL, length=2)
  canvas.supxlabel("\n".join(lines), fontsize=SMALL, x=0.01, ha="left")
  return canvas, panels


def show_plane(axes: Any, plane: np.ndarray, title: str = "", **colors: Any) -> Any:
  """Draws values (rows, columns) as colored squares without ticks; returns matplotlib's image."""
  axes.set(xticks=[], yticks=[])
  if title:
    axes.set_title(title, fontsize=SMALL, pad=2)
  return axes.imshow(plane, interpolation="nearest", **{"cmap": MAP, **colors})


def show_image(axes: Any, image: np.ndarray, title: str = "", **options: Any) -> None:
  """Draws an image (height, width, channels), with its values scaled to full range."""
  low, high = image.min(), image.max()
  picture = (image - low) / max(high - low, 1e-6)
  color = picture[..., :3] if picture.shape[-1] in (3, 4) else picture[..., 0]
  show_plane(axes, color, title, cmap="gray", **options)


def as_rows(grid: Sequence[int]) -> tuple[int, ...]:
  """Returns a grid as (rows, columns, ...); a sequence (N,) becomes one row."""
  return (1, *grid) if len(grid) == 1 else tuple(grid)


def to_plane(values: np.ndarray, grid: Sequence[int]) -> np.ndarray:
  """Returns values of tokens (N,) as the grid's rows and columns; channels are summed."""
  return values.reshape(*as_rows(grid)[:2], -1).sum(axis=-1)


def mark(
  axes: Any, query: int | None, grid: Sequence[int], size: tuple[int, ...] | None = None
) -> None:
  """Draws a small green square at the center of a token, over a picture that is already drawn.

  Args:
    axes: The axes that show the picture.
    query: The index of the token on the grid, counted row by row; `None` draws nothing.
    grid: The grid of the tokens.
    size: The (height, width) of the picture in pixels, if the picture is an image whose patches are
      the tokens. `None` means that each token is one pixel of the picture.
  """
  if query is not None:
    rows = as_rows(grid)
    place = zip(np.unravel_index(query, rows), size or rows[:2], rows, strict=False)
    y, x = ((at + 0.5) * pixels / count - 0.5 for at, pixels, count in place)
    axes.plot(x, y, "s", mec="tab:green", mfc="none", ms=4, mew=0.7)


def name_axes(axes: Any, x: str, y: str, title: str = "") -> None:
  """Labels the axes of a diagram and draws a grid under it."""
  axes.set_xlabel(x, fontsize=NORMAL, labelpad=2)
  axes.set_ylabel(y, fontsize=NORMAL, labelpad=2)
  if title:
    axes.set_title(title, fontsize=NORMAL, loc="left", pad=3)
  axes.grid(alpha=0.3, linewidth=0.5)
  axes.set_axisbelow(True)


def add_scale(canvas: Any, image: Any, panels: Any) -> None:
  """Draws the color scale of an image beside its panels."""
  scale = canvas.colorbar(image, ax=panels, shrink=0.7, pad=0.02, aspect=25)
  scale.ax.tick_params(labelsize=SMALL, length=2)


def add_legend(canvas: Any, axes: Any, **settings: Any) -> None:
  """Draws a legend of the lines of a diagram, to the right of all panels by default."""
  handles, labels = axes.get_legend_handles_labels()
  looks = {"loc": "outside right center", "fontsize": SMALL, "frameon": False, **settings}
  canvas.legend(handles, labels, **looks)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
  """Writes dicts as a CSV table, with a column for each key of any dict.

  Floats are written with six significant digits.
  """
  records = [
    {key: f"{x:.6g}" if isinstance(x, float) else x for key, x in row.items()} for row in rows
  ]
  path.parent.mkdir(parents=True, exist_ok=True)
  csv_files.write_records(path, records)
  return path


def choose_some(count: int, most: int) -> list[int]:
  """Chooses at most `most` numbers below `count`, evenly spread, including first and last."""
  return np.unique(np.linspace(0, count - 1, min(most, count)).round()).astype(int).tolist()
