"""Learning curves out of workdirs, and out of the workdirs of a sweep."""

import json
from collections.abc import Sequence
from pathlib import Path

from etils import epath

from vitx import registry
from vitx.analysis.figures.curves import Curve
from vitx.checkpoints import workdir as wd
from vitx.errors import ConfigError
from vitx.tasks import build_task
from vitx.training.log import read_metrics
from vitx.training.sweep import POINT


def find_runs(workdirs: Sequence[str | Path]) -> list[str]:
  """Returns the workdirs, that of a sweep replaced by those of its points."""
  found = []
  for workdir in workdirs:
    points = sorted(epath.Path(workdir).glob(f"*/{POINT}"))
    found += [str(path.parent) for path in points] or [str(workdir)]
  return found


def read_curves(runs: Sequence[str], *, trust_code: bool = False) -> tuple[list[Curve], str]:
  """Returns the curves of runs and the name of their tasks' primary figure.

  A point of a sweep goes by its method, another run by the name of its workdir.

  Args:
    runs: workdirs.
    trust_code: whether code that their configs name may be imported.

  Raises:
    ConfigError: one is no workdir, or they have different primary figures.
  """
  curves, figures = [], {}
  for run in runs:
    with registry.trusting(trust_code):
      figure = build_task(wd.read_config(wd.find_run(run))).primary
    figures[figure] = run
    rows = read_metrics(run)
    loss = {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}
    value = {row["step"]: row[figure] for row in rows if row["kind"] == "validation"}
    training = {
      row["step"]: row[figure] for row in rows if row["kind"] == "train" and figure in row
    }
    method = wd.read_json(run, POINT).get("method", Path(run).resolve().name)
    curves.append(Curve(method, loss, value, training))
  if len(figures) > 1:
    raise ConfigError(f"the runs have different primary figures: {json.dumps(figures)}")
  return curves, next(iter(figures))
