"""Trains a config over values of its fields and seeds, and compares: `vitx sweep`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitx.analysis.comparison import Comparison
from vitx.analysis.figures.subject import make_canvas
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.own_files import check_output
from vitx.checks import check_integer
from vitx.cli.configs import split_text
from vitx.cli.live import Live
from vitx.cli.points import ROW, expand, find_published, make_points, parse_grid
from vitx.cli.results import measure_methods, write_results
from vitx.errors import ConfigError, MissingExtraError
from vitx.training import cache, failures, phases
from vitx.training.sweep import Point, train_points


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
  together: int,
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
    together: how many points one program trains at most.
    trust_code: whether code that the configs name may be imported.

  Raises:
    ConfigError: `together` is out of range, or the directory is the workdir of a run.
    MissingExtraError: matplotlib is not installed and `plot` is set; nothing was trained.
  """
  check_integer(together, "together", "[1, 1000]")
  if wd.read_json(workdir, "config.json") or wd.read_json(workdir, wd.PHASES):
    raise ConfigError(
      f"workdir={workdir!r} is the workdir of one run; name another directory, in which each run of"
      " the sweep gets its own"
    )
  if plot:
    try:
      make_canvas(1, 1)  # what is missing is said before the long part
    except MissingExtraError as error:
      raise MissingExtraError("the plot (--no-plot does without)", "plot") from error
  check_output(out)
  cache.enable()
  phases.use_cores(point.config for point in points)
  print(f"checking {len({point.method for point in points})} methods ...", flush=True)
  methods, (figure, mode) = measure_methods(points, published, workdir, trust_code=trust_code)
  live = Live(points, workdir, figure)
  if not train_points(points, workdir, live, together=together, trust_code=trust_code):
    print("\nstopped; the same command goes on", flush=True)
    return failures.leave(failures.EXIT_INTERRUPTED)
  outcomes = live.outcomes()
  comparison = Comparison(figure, mode, methods, outcomes)
  named = name or workdir.rstrip("/").rpartition("/")[2]
  print(f"\n{live.table()}")
  for path in write_results(
    comparison, points, workdir, Path(out), named, plot=plot, trust_code=trust_code
  ):
    print(path)
  return 1 if any(outcome.problem for outcome in outcomes) else 0
