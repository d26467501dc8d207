"""Plots two columns of a table against each other, with the Pareto front."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitx.analysis.figures import style

FRONT, OTHERS = "C3", "0.45"  # The colors of the front and of other rows.
WIDE = 10.0  # An axis is logarithmic if its largest value is above this many times its smallest.
# The candidate positions of a name: distances from its point, in points, the nearest first.
DISTANCES = (3, 9, 16)
DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))

Points = Mapping[str, tuple[float, float]]


def find_front(points: Points, more: tuple[bool, bool]) -> list[str]:
  """Returns the Pareto front: the rows that no other row beats.

  A row beats another if it is at least as good in both columns and better in one of them. The
  rows are returned in ascending order of the first column.

  Args:
    points: The values of both columns, by row.
    more: Whether more is better, for each column.
  """
  good = {
    name: tuple(value if up else -value for value, up in zip(values, more, strict=True))
    for name, values in points.items()
  }

  def beaten(row: tuple[float, ...]) -> bool:
    return any(one >= row[0] and two >= row[1] and (one, two) != row for one, two in good.values())

  return sorted((name for name in points if not beaten(good[name])), key=lambda name: points[name])


def plot_pareto(
  points: Points, columns: tuple[str, str], more: tuple[bool, bool], note: str
) -> Any:
  """Returns a figure of two columns of a table, with a line through the Pareto front.

  Rows of the front have their names beside their points; other rows have them if there is room.
  `more` says for each column whether more is better.
  """
  front = find_front(points, more)
  better = " and ".join(
    f"{'more' if up else 'less'} {column}" for column, up in zip(columns, more, strict=True)
  )
  caption = f"{note} Better is {better}; on the line are the rows that no other beats."
  canvas, panels = style.make_panels(1, 1, style.COLUMN * 1.5, 3.4, caption)
  axes = panels[0, 0]
  line = [points[name] for name in front]
  others = [name for name in points if name not in front]
  # A row of the front is the best choice up to the next row's cost, so the line consists of steps.
  where = "pre" if more[0] else "post"
  axes.step(*zip(*line, strict=True), where=where, c=FRONT, lw=0.8, zorder=1)
  for names, color, size in ((others, OTHERS, 9), (front, FRONT, 16)):
    if names:
      axes.scatter(*zip(*(points[name] for name in names), strict=True), c=color, s=size, zorder=2)
  axes.margins(0.12)
  for number, axis in enumerate((axes.xaxis, axes.yaxis)):
    _scale(axis, [point[number] for point in points.values()])
  style.name_axes(axes, *columns)
  canvas.set_dpi(style.DOTS)  # The resolution of the file.
  canvas.draw_without_rendering()  # This fixes the position of every point.
  _name_points(axes, points, front, others, where == "post")
  return canvas


def _scale(axis: Any, values: Sequence[float]) -> None:
  """Makes an axis logarithmic, labeled 1, 2, 5, 10, ..., if values are positive and far apart."""
  from matplotlib.ticker import LogLocator, NullLocator

  if min(values) > 0 and max(values) > WIDE * min(values):
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
  axis.set_major_formatter("{x:g}")


def _name_points(
  axes: Any, points: Points, front: Sequence[str], others: Sequence[str], post: bool
) -> None:
  """Writes the name of every point of the front, and of other points where there is room."""
  from matplotlib.transforms import Bbox

  places = {name: axes.transData.transform(point) for name, point in points.items()}
  taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in places.values()]
  for (x, y), (right, above) in itertools.pairwise(places[name] for name in front):
    level, side = (y, right) if post else (above, x)  # the two parts of the line between two points
    taken += [Bbox([[x, level - 1], [right, level + 1]])]
    taken += [Bbox([[side - 1, min(y, above)], [side + 1, max(y, above)]])]
  for name in (*front, *others):
    color = FRONT if name in front else OTHERS
    label = None
    for offset, place in _candidates():
      if label is not None:
        label.remove()
      looks = {"textcoords": "offset points", "fontsize": style.SMALL, "color": color, **place}
      label = axes.annotate(name, points[name], offset, **looks)
      label.set_in_layout(False)
      box = label.get_window_extent()
      inside = axes.bbox.contains(box.x0, box.y0) and axes.bbox.contains(box.x1, box.y1)
      if inside and not any(box.overlaps(other) for other in taken):
        taken.append(box)
        break
    else:
      if label is not None and name not in front:
        label.remove()


def _candidates() -> Iterator[tuple[tuple[float, float], dict[str, Any]]]:
  """Yields the offset of a name from its point, and arguments of `Axes.annotate`."""
  for distance in DISTANCES:
    for x, y in DIRECTIONS:
      ha = {1: "left", 0: "center", -1: "right"}[x]
      va = {1: "bottom", 0: "center", -1: "top"}[y]
      line = {"arrowprops": {"arrowstyle": "-", "lw": 0.3}} if distance > DISTANCES[0] else {}
      yield (distance * x, distance * y), {"ha": ha, "va": va, **line}
