"""Reads learning curves from the workdirs of runs and sweeps."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitx.analysis.figures.curves import Curve
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.load import build_once
from vitx.checkpoints.metrics import read_metrics
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.config.fields import read_settings


def find_runs(workdirs: Sequence[str | Path]) -> list[str]:
  """Returns the workdirs of single runs, given the workdirs of runs and of sweeps.

  The workdir of a sweep is replaced by the workdirs of its runs that have begun. A run that is
  given twice occurs once.
  """
  listed = []
  for workdir in workdirs:
    runs = [run for run in wd.list_points(workdir) if wd.read_json(wd.find_run(run), "config.json")]
    listed += runs or [str(workdir)]
  return list({Path(run).resolve(): run for run in listed}.values())


def read_curves(runs: Sequence[str]) -> tuple[list[Curve], str]:
  """Reads the learning curves of runs, and the name of the primary figure of their tasks.

  The primary figure is the metric that chooses a run's best checkpoint, such as "top1". The curve
  of a run in a sweep is named after the run's method, any other curve after the run's workdir. If
  curves of different workdirs or sweeps had equal names, the names begin with folders.
  """
  curves, figures = [], {}
  for run, name in zip(runs, _name_curves(runs), strict=True):
    last = wd.find_run(run)
    settings = read_settings(wd.read_config(last))
    with registry.trusting(False):
      figure = build_once(settings)[0].figures[0].name
    figures[figure] = run
    rows = read_metrics(run)
    train = [row for row in rows if row["kind"] == "train"]
    loss = {row["step"]: row["loss"] for row in train}
    training = {row["step"]: row[figure] for row in train if figure in row}
    value = {row["step"]: row[figure] for row in rows if row["kind"] == "validation"}
    examples = (wd.read_json(last, wd.ENVIRONMENT).get("data") or {}).get("examples") or {}
    per_epoch = (examples.get("train") or 0) / settings.batch_size
    phases = [read_metrics(wd.join(run, phase)) for phase in wd.read_phases(run)] or [rows]
    layers = [
      row["alignment_errors"] for part in phases for row in part if "alignment_errors" in row
    ]
    curves.append(Curve(name, loss, value, training, per_epoch, layers[-1] if layers else ()))
  if len(figures) > 1:
    raise ConfigError(f"the runs have different primary figures: {json.dumps(figures)}.")
  return curves, next(iter(figures))


def _name_curves(runs: Sequence[str]) -> list[str]:
  """Returns the name of each run's curve; only runs of one method in one sweep share a name."""
  lines = []
  for run in runs:
    folder, method = Path(run).resolve(), wd.read_json(run, wd.POINT).get("method")
    lines.append(folder.parts if method is None else (*folder.parent.parts, method))
  names = []
  for line in lines:
    ends = ([other[-size:] for other in {*lines} - {line}] for size in range(1, len(line) + 1))
    size = next(size for size, others in enumerate(ends, 1) if line[-size:] not in others)
    names.append("/".join(line[-size:]))
  return names


def find_published_curves(
  published: Mapping[str, Mapping[str, Any]], figure: str
) -> dict[str, Mapping[float, float]]:
  """Returns the published training curves of a metric: its values by epoch, by method.

  The entry `train_METRIC` of a method's results is the curve of METRIC, for example of "top1".
  """
  curves = {method: figures.get(f"train_{figure}") for method, figures in published.items()}
  return {method: values for method, values in curves.items() if isinstance(values, Mapping)}
