"""Computes the figures of a task over the test examples of all folds together.

The folds are those of a sweep with cross-validation.
"""

from collections.abc import Sequence

from vitx.analysis import markdown
from vitx.analysis.comparison import Outcome
from vitx.checkpoints.workdir import join
from vitx.config.errors import ConfigError
from vitx.inference.evaluate import evaluate_together
from vitx.interop.repository import load
from vitx.sweeps.sweep import Point
from vitx.tasks.classification_figures import shown_figures

TITLE = "## Out of fold"


def pool_folds(points: Sequence[Point], outcomes: Sequence[Outcome], directory: str) -> list[str]:
  """Returns a Markdown section with the task's figures over all folds together.

  Every example is in the test set of exactly one fold, and each run of a method and seed leaves out
  one fold. The best checkpoint of a run answers the test examples of its fold. The section has a
  table with a line for each method and seed whose folds are all finished.

  Returns:
    A list with the section, or [] if no method has finished all folds.
  """
  groups: dict[tuple[str, int], list[str]] = {}
  for point, outcome in zip(points, outcomes, strict=True):
    if point.fold is not None and not outcome.problem:
      groups.setdefault((point.method, point.seed), []).append(join(directory, point.name))
  folds = {point.method: point.config.data.folds for point in points}
  whole = {key: runs for key, runs in groups.items() if len(runs) == folds[key[0]]}
  if not whole:
    return []
  try:
    rows = [_summarize(*key, runs) for key, runs in whole.items()]
  except ConfigError as error:  # A run that was finished before may lack its data by now.
    return [f"{TITLE}\n\nNone: {markdown.text(error)}"]
  heads = list(dict.fromkeys(name for row in rows for name in row))
  table = markdown.table([heads, *([row.get(name, "") for name in heads] for row in rows)])
  note = "Every example of train, answered by the best checkpoint of the run whose fold it is in"
  if all("figures" not in row for row in rows):
    note += " with 95 % bootstrap intervals over examples"
  return [f"{TITLE}\n\n{table}\n\n{note}."]


def _summarize(method: str, seed: int, runs: Sequence[str]) -> dict[str, str]:
  """Returns the table's line for a method and seed, by heading."""
  models = [load(run) for run in runs]
  figures, task = evaluate_together(models), models[0].task
  row = {"": method, "seed": str(seed), "examples": f"{figures['examples']:,}"}
  intervals = figures.get("intervals")
  if intervals is None:
    return row | {"figures": task.describe(figures)}
  for key, name, form in shown_figures(figures, len(models[0].class_names)):
    ends = intervals[key]
    interval = f" ({ends[0]:{form}} to {ends[1]:{form}})" if ends else ""
    row[name] = f"{figures[key]:{form}}{interval}"
  return row
