"""Trains a config with several values of its fields and seeds, and compares them in a table.

    vitx sweep --config digits.py --over "row=[softmax,fnet]" --seeds 8 --workdir runs/mixers
    vitx sweep --config digits.py:softmax,duration=500 \\
      --over "learning_rate=[1e-3,2e-3],optimizer.weight_decay=[0,0.05]" --workdir runs/rates

A method is one combination of values in --over. It is trained once per seed, and each of these runs
has an ordinary workdir of its own below --workdir. `{seed}` in the config or in a value stands for
the seed of each run, such as `init_from=runs/dense/vit_seed-{seed}`. After a stop, the same command
resumes the sweep. The command may also be started several times at once, on one machine or on
several that share the directory; each run is trained by one of the processes. `--parallel N` starts
N processes on this machine. `--launch slurm` submits the runs that are missing as a job of Slurm,
and `--wait` shows them until all are done, and then writes the results.

`--search N` tries N combinations instead of all, proposed by Optuna from ranges such as
`learning_rate=log(1e-4,1e-2)`, `uniform(0,1)`, `int(2,6)` and lists, with all seeds and folds of
each. The mean figure on validation decides. The same command, also several at once, continues. It
ends with the best combinations and a file trials.csv in OUT/NAME.

At the end, three files in OUT/NAME compare the methods: a table (table.md), a line for each run
(runs.csv) and the training curves (curves.png). The table has the mean of each method, its paired
difference from the first method with a confidence interval, and its rank. OUT/README.md becomes the
index of all tables in OUT.

The exit status is 0 if all runs finished, 75 if a signal stopped the sweep with everything saved,
and 1 otherwise.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitx.checkpoints.outputs import check_folder
from vitx.cli.flags import CONFIG, add_trust, positive
from vitx.config.errors import ConfigError
from vitx.config.loader import split_text

if TYPE_CHECKING:
  from vitx.cli.launch import Launcher
  from vitx.cli.live import Live
  from vitx.sweeps.points import Point


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--config", required=True, help=f"{CONFIG} It sets no seed; {{seed}} stands for the run's.")
  add("--over", help="Lists as field=[value,value],...; row=[a,b] are rows of the file.")
  add("--seeds", type=positive, default=1, help="The number of seeds, which begin at 0.")
  words = "Searches the ranges in --over by this number of trials."
  add("--search", type=positive, metavar="N", help=words)
  words = "The directory of the runs, which may be gs://..."
  add("--workdir", required=True, metavar="DIR", help=words)
  add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments about the files of results, and `--trust_code`, to a parser."""
  add = parser.add_argument
  add("--out", default="results", help="The folder of the results of all sweeps.")
  add("--name", help="The folder of this sweep in --out; the default is the workdir's name.")
  add("--plot", action=argparse.BooleanOptionalAction, default=True, help="Draws the curves.")
  words = "The number of processes that train; the default is 1, and on Slurm one for each run."
  add("--parallel", type=positive, metavar="N", help=words)
  words = "Trains on Slurm, or in processes in the background, and returns at once."
  add("--launch", choices=("slurm", "local"), help=words)
  words = "Options of sbatch, such as partition=gpu,time=2:00:00,cpus-per-task=4."
  add("--slurm", default="", metavar="NAME=VALUE,...", help=words)
  words = "Trains nothing in this process, and shows the runs until others have ended them."
  add("--wait", action="store_true", help=words)
  add_trust(add)


def run(config: str, over: str | None, seeds: int, search: int | None, **options: Any) -> int:
  """Trains, writes the results and returns the exit status."""
  from vitx.sweeps.points import FOLD, ROW, expand, make_points, parse_grid

  if search is not None:
    return _search(config, over or "", seeds, search, **options)
  grid = parse_grid(over) if over is not None else {}
  folds = grid.pop(FOLD, None)
  points = make_points(expand(config, grid), seeds, folds)
  return run_points(points, split_text(config)[0] if list(grid) == [ROW] else None, **options)


def run_points(points: "Sequence[Point]", source: str | None, workdir: str, **output: Any) -> int:
  """Shows a finished sweep again, or checks and trains its points; returns the exit status.

  Args:
    points: The points of the sweep, not yet checked.
    source: The config file whose published figures are compared; None if there are none.
    workdir: The directory of the points' workdirs.
    **output: Further arguments of `compare`.
  """
  from vitx.sweeps.points import check_points, match_published, read_record
  from vitx.sweeps.workers import WORKER, restore_cores

  if done := read_record(points, workdir, output["out"], output["name"], output["plot"]):
    print(done["shown"])
    return done["status"]
  kind, slurm = output.pop("launch"), output.pop("slurm")
  restore_cores(workdir, 1 if kind == "slurm" else output["parallel"] or 1)
  from vitx.cli.launch import Launcher  # imports JAX, which reads the restored variables

  if slurm and kind != "slurm":
    raise ConfigError("--slurm needs --launch slurm.")
  if kind and WORKER not in os.environ:
    output["launcher"] = Launcher(kind, slurm, workdir)
  check_points(points)
  return compare(points, match_published(source, points) if source else {}, workdir, **output)


def compare(
  points: "Sequence[Point]",
  published: Mapping[str, Mapping[str, Any]],
  workdir: str,
  *,
  out: str,
  name: str | None,
  plot: bool,
  parallel: int | None = None,
  launcher: "Launcher | None" = None,
  wait: bool = False,
) -> int:
  """Trains the points of a sweep, writes their results and returns the exit status.

  Args:
    points: The runs of the sweep, called points, of all methods and seeds.
    published: The figures that the paper publishes for each method, by the method's name.
    workdir: The directory of the runs' workdirs.
    out: The folder of the results of all sweeps.
    name: The folder of this sweep in it, or `None` for the name of the workdir.
    plot: Whether to draw the curves.
    parallel: The number of processes that train, see `add_output`.
    launcher: The launcher of the tasks that train; None if this process trains.
    wait: Whether to train nothing here, and to wait until all points are done.

  Raises:
    ConfigError: The points cannot be trained, or the results cannot be written.
  """
  from vitx.analysis.comparison import Comparison
  from vitx.analysis.figures.style import make_canvas
  from vitx.cli.launch import follow
  from vitx.cli.live import Live
  from vitx.inference.folds import pool_folds
  from vitx.runtime import cache
  from vitx.sweeps.points import identify, record
  from vitx.sweeps.results import group_folds, measure_methods, write_results
  from vitx.sweeps.workers import WORKER, record_cores
  from vitx.training import phases

  named = workdir.rstrip("/").rpartition("/")[2] if name is None else name
  check_folder(Path(out, named), "out")
  if plot:
    make_canvas(1, 1)  # A missing matplotlib is reported before the long training.
  identity = identify(points, out, name, plot)
  cache.enable()
  phases.use_cores(point.config for point in points)
  worker = os.environ.get(WORKER)
  if worker is None:
    print(f"checking {len({point.method for point in points})} methods ...", flush=True)
    methods, (figure, mode) = measure_methods(points, published, workdir)
    if launcher or not wait:  # the machine that only shows a sweep may have other cores
      record_cores(workdir, launcher.cores if launcher else None)
    if launcher:
      launcher.submit(points, parallel, figure)
      if not wait:
        return 0
  live = Live(points, workdir, worker or figure)
  if wait and worker is None:
    follow(points, workdir, live, launcher)
  elif (status := _train(points, workdir, live, 1 if worker else parallel or 1)) or worker:
    return status
  outcomes = live.outcomes()
  comparison = Comparison(figure, mode, methods, outcomes)
  more = pool_folds(group_folds(points, outcomes, workdir))
  paths = write_results(comparison, points, workdir, Path(out), named, plot=plot, more=more)
  shown = "\n".join([f"\n{live.table()}", *(f"\n{part}" for part in more), *map(str, paths)])
  status = 1 if any(outcome.problem for outcome in outcomes) else 0
  record(identity, workdir, paths, shown=shown, status=status)
  print(shown)
  return status


def _train(points: "Sequence[Point]", workdir: str, live: "Live", count: int) -> int:
  """Trains points in this process, or in `count` others; returns the exit status."""
  from vitx.runtime import signals
  from vitx.sweeps.sweep import train_points
  from vitx.sweeps.workers import ONLY_ONE, train_in_workers

  rest, status = points, 0
  if count > 1:
    rest, status = train_in_workers(count, points, workdir, live.update, live.figure)
  if not status and not train_points(rest, workdir, live, only_one=ONLY_ONE in os.environ):
    status = signals.EXIT_INTERRUPTED
  return _say_stopped() if status == signals.EXIT_INTERRUPTED else status


def _search(config: str, over: str, seeds: int, count: int, workdir: str, **output: Any) -> int:
  """Searches in this process, prints and writes the trials, and returns the exit status."""
  from vitx.sweeps.workers import record_cores, restore_cores

  if output["launch"] or output["parallel"] or output["wait"]:
    raise ConfigError("--search runs in this process; start the command several times at once.")
  if "://" in workdir:
    raise ConfigError(
      f"--search needs a directory, since a file has its trials; {workdir} is a URL."
    )
  restore_cores(workdir, 1)
  from vitx.cli.live import Lines  # imports JAX, which reads the restored variables
  from vitx.runtime import cache
  from vitx.sweeps.search import Search

  search = Search(config, over, seeds, workdir)
  record_cores(workdir)
  cache.enable()
  if not search.run(count, Lines(workdir, search.figure.name)):
    return _say_stopped()
  path = search.write(Path(output["out"], output["name"] or Path(workdir).name))
  print(f"\n{search.summary()}\n{path}")
  return 0


def _say_stopped() -> int:
  """Prints that a signal stopped the sweep, and returns the exit status."""
  from vitx.runtime import signals

  print("\nstopped; run the same command again to resume", flush=True)
  return signals.EXIT_INTERRUPTED
