"""Trains a config over values of its fields and seeds, and compares: `vitx sweep`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitx.analysis.comparison import Comparison
from vitx.analysis.figures.subject import make_canvas
from vitx.checkpoints import workdir as wd
from vitx.cli.live import Live
from vitx.cli.tables import check_file, check_folder
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.config.loader import split_text
from vitx.sweeps.points import ROW, expand, find_published, make_points, parse_grid
from vitx.sweeps.results import measure_methods, write_results
from vitx.sweeps.sweep import Point, train_points
from vitx.training import cache, failures, phases


def run(config: str, over: str | None, seeds: int, workdir: str, **output: Any) -> int:
  """Trains, writes the results and returns the exit status."""
  grid = parse_grid(over) if over is not None else {}
  points = make_points(expand(config, grid), seeds)
  published = find_published(split_text(config)[0]) if list(grid) == [ROW] else {}
  return compare(points, published, workdir, **output)


def compare(
  points: Sequence[Point],
  published: Mapping[str, Mapping[str, Any]],
  workdir: str,
  *,
  out: str,
  name: str | None,
  plot: bool,
  trust_code: bool,
) -> int:
  """Trains the points, writes their results and returns the exit status.

  Args:
    points: of all methods.
    published: the source's figures, by method.
    workdir: directory of the runs.
    out: folder of the results.
    name: of the results; None for the name of the workdir.
    plot: whether to draw the curves.
    trust_code: whether code that the configs name may be imported.

  Raises:
    ConfigError: the directory is the workdir of a run, or the results cannot be written; nothing
      was trained.
    MissingExtraError: matplotlib is not installed and `plot` is set; nothing was trained.
  """
  if wd.read_json(workdir, "config.json") or wd.read_json(workdir, wd.PHASES):
    raise ConfigError(
      f"workdir={workdir!r} is the workdir of one run; name another directory, in which each run of"
      " the sweep gets its own"
    )
  named = workdir.rstrip("/").rpartition("/")[2] if name is None else name
  _check_output(out, named)
  if plot:
    try:
      make_canvas(1, 1)  # what is missing is said before the long part
    except MissingExtraError as error:
      raise MissingExtraError("the plot (--no-plot does without)", "plot") from error
  cache.enable()
  phases.use_cores(point.config for point in points)
  print(f"checking {len({point.method for point in points})} methods ...", flush=True)
  methods, (figure, mode) = measure_methods(points, published, workdir)
  live = Live(points, workdir, figure)
  if not train_points(points, workdir, live):
    print("\nstopped; the same command goes on", flush=True)
    return failures.leave(failures.EXIT_INTERRUPTED)
  outcomes = live.outcomes()
  comparison = Comparison(figure, mode, methods, outcomes)
  print(f"\n{live.table()}")
  for path in write_results(
    comparison, points, workdir, Path(out), named, plot=plot, trust_code=trust_code
  ):
    print(path)
  return 1 if any(outcome.problem for outcome in outcomes) else 0


def _check_output(out: str, name: str) -> None:
  """Raises ConfigError if the results cannot be written, see `write_results`."""
  check_folder(out, "out")
  if name in ("", ".", "..") or "/" in name or "\0" in name:
    raise ConfigError(f"name={name!r} names no files of results; give one without a slash (--name)")
  if Path(out).is_dir():
    for end in (".md", ".csv", "_curves.png"):
      check_file(Path(out) / f"{name}{end}", "name")
