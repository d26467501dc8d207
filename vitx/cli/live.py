"""The display of a running sweep: a table that is redrawn on a terminal, or else plain lines."""

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitx.analysis.comparison import Outcome, figure_format, format_spread
from vitx.analysis.statistics import spread
from vitx.analysis.tables import format_figure, lay_out
from vitx.config.errors import escape
from vitx.runtime.progress import format_seconds
from vitx.sweeps.points import Point
from vitx.sweeps.sweep import State, read_outcome


class Live:
  """Shows the state of a running sweep, and the latest line of the training in progress.

  A method is a combination of values of fields; a point is one run of a method, with one seed. The
  file `log.txt` in a point's workdir has all lines of its training.
  """

  def __init__(self, points: Sequence[Point], directory: str | Path, figure: str):
    """Starts with nothing finished; `figure` is the shown metric on *test*, such as "top1"."""
    self._points, self._directory = points, directory
    self._name, self._scale, self._digits = figure_format(figure)
    self.figure = figure
    # The step and the latest validation of each point that others train.
    self._rows: dict[str, tuple[str, str]] = {}
    self._terminal = sys.stdout
    self._drawn = 0  # The number of lines of the table on the terminal.
    self._outcomes: dict[str, Outcome] = {}
    self._busy: set[str] = set()  # The points in training now, by this process or another.
    self._seconds: list[float] = []  # The duration of each training by this process.

  @contextlib.contextmanager
  def training(self, point: Point) -> Iterator[None]:
    """Shows that a `with` block trains a point, and the latest line that the block prints."""
    start = time.monotonic()
    self._busy.add(point.name)
    self._draw(f"training {point.name} ...")
    try:
      with contextlib.redirect_stdout(_LastLines(self._tell)):
        yield
    finally:
      self._busy.discard(point.name)
      self._seconds.append(time.monotonic() - start)

  def update(self, point: Point, state: State) -> None:
    """Updates the display with the state of a point."""
    if state is State.DONE:
      outcome = read_outcome(point, self._directory)
      assert outcome is not None
      self._outcomes[point.name] = outcome
      self._busy.discard(point.name)
      self._draw(f"{point.name}: {self._describe(outcome)}")
    elif state is State.BUSY and point.name not in self._busy:
      self._busy.add(point.name)
      self._draw(f"{point.name}: another process trains it")

  def show_rows(self, point: Point, rows: Sequence[Mapping[str, Any]]) -> None:
    """Shows the step and the latest validation of a point that another process trains."""
    self.update(point, State.BUSY)
    before = self._rows.get(point.name, ("", ""))
    step = f"step {rows[-1]['step']}" if rows else "has not begun"
    figure = ""
    for row in rows:
      if row["kind"] == "validation" and self.figure in row:  # an earlier phase may lack it
        value = format_figure(row[self.figure] * self._scale, self._digits)
        figure = f"validation {self._name} {value} at step {row['step']}"
    self._rows[point.name] = (step, figure)
    if (step, figure) != before if self._terminal.isatty() else figure != before[1]:
      self._draw(f"{point.name}: {figure or step}")

  def outcomes(self) -> list[Outcome]:
    """Returns the outcomes of all points, in the order of the points."""
    return [self._outcomes[point.name] for point in self._points]

  def _describe(self, outcome: Outcome) -> str:
    if outcome.problem:
      return f"failed: {outcome.problem}"
    value = outcome.test[self.figure] * self._scale
    return f"test {self._name} {format_figure(value, self._digits)}"

  def _draw(self, line: str) -> None:
    """Redraws the table with a line below it; without a terminal, prints the line alone."""
    if not self._terminal.isatty():
      print(f"[{len(self._outcomes)}/{len(self._points)}] {line}", file=self._terminal, flush=True)
      return
    table = self.table()
    above = f"\033[{self._drawn}A\r" if self._drawn else ""
    self._terminal.write(f"{above}\033[J{table}\n")
    self._drawn = table.count("\n") + 1
    self._tell(line)

  def _tell(self, line: str) -> None:
    """Replaces the line below the table on a terminal."""
    if self._terminal.isatty():
      width = shutil.get_terminal_size().columns - 1
      self._terminal.write(f"\r\033[K{escape(line, line=True)[:width]}")
      self._terminal.flush()

  def table(self) -> str:
    """Returns the table as text, with a row for each method.

    The columns are the numbers of points that are done, waiting, in training ("busy") and failed,
    and the mean and standard deviation of the test metric. Lines about the points that other
    processes train, and about the remaining time, follow.
    """
    rows: list[tuple[str, ...]] = [("", "done", "waiting", "busy", "failed", f"test {self._name}")]
    for method in dict.fromkeys(point.method for point in self._points):
      names = [point.name for point in self._points if point.method == method]
      ended = [self._outcomes[name] for name in names if name in self._outcomes]
      good = [x.test[self.figure] * self._scale for x in ended if not x.problem]
      busy = sum(name in self._busy for name in names)
      mean = format_spread(spread(good) if good else None, 1.0, self._digits)
      counts = (len(names) - len(ended) - busy, busy, len(ended) - len(good))
      shown = (str(count or "") for count in counts)
      rows.append((method, f"{len(good)}/{len(names)}", *shown, mean))
    table = lay_out(rows, right=(1, 2, 3, 4, 5))
    others = [(name, *self._rows[name]) for name in self._rows if name in self._busy]
    return "\n".join([table, *([lay_out(others)] if others else []), self._remaining()])

  def _remaining(self) -> str:
    remaining = len(self._points) - len(self._outcomes)
    text = f"{len(self._outcomes)} of {len(self._points)} points"
    if not self._seconds or not remaining:
      return text
    mean = sum(self._seconds) / len(self._seconds)
    return f"{text}, about {format_seconds(remaining * mean)} left for this process alone"


class Lines:
  """The display of a search, which does not know its runs in advance: a line for each that ends."""

  def __init__(self, directory: str | Path, figure: str):
    """Takes the directory of the search and the shown metric on *validation*, such as "top1"."""
    self._directory, self._figure = directory, figure

  def training(self, point: Point) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which the run prints nothing here; `log.txt` has its lines."""
    return contextlib.redirect_stdout(io.StringIO())

  def update(self, point: Point, state: State) -> None:
    """Prints the result of a run that has ended."""
    if outcome := read_outcome(point, self._directory):
      name, scale, digits = figure_format(self._figure)
      value = format_figure(outcome.validation.get(self._figure, 0.0) * scale, digits)
      print(f"{point.name}: {outcome.problem or f'validation {name} {value}'}", flush=True)


class _LastLines(io.TextIOBase):
  """A text stream that passes the last line of each write to a callback."""

  def __init__(self, tell: Callable[[str], None]):
    self._tell = tell

  def write(self, text: str) -> int:
    if text.strip():
      self._tell(text.strip().splitlines()[-1])
    return len(text)
