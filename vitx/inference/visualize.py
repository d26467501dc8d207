"""Draws the figures of `vitx visualize`: of a model, a config, runs, a sweep or patterns."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitx.analysis import figures
from vitx.analysis.figures.curves import RunCurves
from vitx.analysis.figures.gallery import NamedPatterns
from vitx.analysis.figures.papers.memory import SweepResults
from vitx.analysis.figures.style import make_canvas
from vitx.checkpoints.outputs import check_folder
from vitx.config import registry
from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError, listing
from vitx.config.loader import find_published, split_text
from vitx.inference.evaluate import evaluate_split
from vitx.inference.subject import Options, open_subject, show_predictions
from vitx.interop.repository import load
from vitx.runtime.curves import find_published_curves, find_runs, read_curves

# The arguments of each kind of figure that must be given, and those that may be given.
ARGUMENTS = {
  "model": ((), ("workdir", "config", "inputs")),
  "models": ((), ("workdir", "config", "inputs")),
  "runs": (("workdir",), ("config",)),
  "results": (("results", "config"), ()),
  "patterns": ((), ("patterns",)),
  "split": (("workdir",), ("split",)),
}


def visualize(
  figure: str,
  out: str | Path,
  *,
  workdir: str | Sequence[str] | None = None,
  config: str | None = None,
  results: Callable[[str], SweepResults] | None = None,
  checkpoint: str = "best",
  split: str | None = None,
  options: Options | None = None,
  patterns: Sequence[str] = (),
  grid: Sequence[int] = (),
  trust_code: bool = False,
) -> list[Path]:
  """Draws a figure, writes it to files and returns their paths.

  Args:
    figure: The name of the figure, a key of `vitx.analysis.figures.FIGURES`.
    out: The folder of the files.
    workdir: The workdir of a training run, or several for a figure that shows several.
    config: `FILE:ROW,field=value` or a config.json, instead of a workdir. For the figure "curves",
      a config file with the training curves that its paper printed, in addition to the workdirs.
    results: A function of the config that reads the results of a sweep over its rows and measures
      their memory, such as `partial(measure_sweep, "results.csv")` with the function of
      `vitx.sweeps.results`, for the figure "memory".
    checkpoint: The checkpoint of the workdir: "best", "latest" or a step.
    split: The split of a figure of a classifier's answers, as `vitx.evaluate` takes it; `None`
      means "validation".
    options: The options of a model's figure.
    patterns: The patterns of the figure "gallery": names of `vitx.ops.patterns.PATTERNS`, or
      `module:NAME`; () draws eight of the named ones.
    grid: The numbers of rows and columns of the token grid of the figure "gallery".
    trust_code: Whether to import the objects that the config names as `module:Name`.

  Raises:
    ConfigError: The figure is unknown (the message names the nearest), its arguments are not those
      of `ARGUMENTS`, or it cannot show the model.
    MissingExtraError: Matplotlib is not installed.
  """
  kind, _ = figures.FIGURES[check_choice(figure, "figure", tuple(figures.FIGURES))]
  options, workdirs = options or Options(), [workdir] if isinstance(workdir, str) else workdir or ()
  values = {"workdir": workdirs, "config": config, "inputs": options.inputs, "results": results}
  values |= {"split": split, "patterns": patterns}
  names, (required, optional) = {name for name in values if values[name]}, ARGUMENTS[kind]
  is_one = len(workdirs) < 2 or kind in ("models", "runs")
  if not (is_one and set(required) <= names <= {*required, *optional}):
    takes = listing({*required, *optional}) + " of one run" * (not is_one)
    raise ConfigError(f"figure={figure!r} takes {takes}; given: {listing(names) or 'none'}.")
  check_folder(out, "out")
  make_canvas(1, 1)  # A missing matplotlib is reported before the long computation.
  # Code that the caller names is his own; that of a workdir may be a stranger's.
  with registry.trusting(trust_code or (False if workdirs else None)):
    inputs: Any
    if kind == "runs":
      inputs = _read_runs(workdirs, config)
    elif results is not None:  # the kind "results"
      inputs = results(str(config))
    elif kind == "patterns":
      inputs = NamedPatterns(patterns, grid)
    elif kind == "split":
      evaluated = evaluate_split(load(workdirs[0], checkpoint), split=split or "validation")
      inputs = dataclasses.replace(show_predictions(evaluated), examples=options.examples)
    else:
      chosen: dict[str, Any] = {"config": config, "checkpoint": checkpoint, "options": options}
      inputs = [open_subject(workdir=run, **chosen) for run in workdirs or (None,)]
      labels = [subject.label for subject in inputs]
      if len(set(labels)) < len(labels):
        raise ConfigError(f"workdir: two runs have one name ({', '.join(labels)}); rename one.")
      inputs = inputs if kind == "models" else inputs[0]
    return figures.DRAW[figure](inputs, Path(out))


def _read_runs(workdirs: Sequence[str], config: str | None) -> RunCurves:
  curves, value = read_curves(find_runs(workdirs))
  printed = find_published_curves(find_published(split_text(config)[0]), value) if config else {}
  methods = {curve.method: curve.method.rpartition("/")[2] for curve in curves}  # without folders
  published = {name: printed[method] for name, method in methods.items() if method in printed}
  if config and not published:
    raise ConfigError(f"config={config!r} has no printed training {value} of {listing(methods)}.")
  return RunCurves(curves, value, f"curves_{Path(workdirs[0]).resolve().name}", published)
