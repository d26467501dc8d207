"""Pools the test answers of a sweep's folds: each run tests a part of the data it did not see."""

from collections.abc import Sequence

from vitx.analysis import markdown
from vitx.analysis.classification import join_answers, measure_answers
from vitx.analysis.comparison import Outcome
from vitx.checkpoints.workdir import join
from vitx.config.errors import ConfigError
from vitx.inference.evaluate import evaluate_split
from vitx.sweeps.sweep import Point
from vitx.tasks.classification_figures import shown_figures

TITLE = "## Out of fold"


def pool_folds(points: Sequence[Point], outcomes: Sequence[Outcome], directory: str) -> list[str]:
  """Returns a section in Markdown with figures over the test examples of all folds together.

  With folds, every example is in the test set of exactly one run of a method and seed. The best
  checkpoint of each run answers the test examples of its fold. There is a line for each method and
  seed whose folds are all finished.

  Args:
    points: The points of a finished sweep: a method, seed and fold for each run.
    outcomes: The outcomes of the points, in the order of the points.
    directory: The directory that contains the runs' workdirs.

  Returns:
    The lines of the section; () for a sweep without folds, or of a task without classes.
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
  except ConfigError as error:  # A run's config may name code that is not trusted now.
    return [f"{TITLE}\n\nNone: {markdown.text(error)}"]
  if not all(rows):
    return []
  heads = list(dict.fromkeys(name for row in rows for name in row))
  table = markdown.table([heads, *([row.get(name, "") for name in heads] for row in rows)])
  note = "Every example of train, answered by the best checkpoint of the run whose fold it is in,"
  note += " with 95 % bootstrap intervals over examples."
  return [f"{TITLE}\n\n{table}\n\n{note}"]


def _summarize(method: str, seed: int, runs: Sequence[str]) -> dict[str, str]:
  """Returns the cells of a table's line for a method and seed, by heading.

  The result is {} for a task without classes.
  """
  found = [evaluate_split(run, split="test") for run in runs]
  answers = [each.answers for each in found if each.answers is not None]
  if len(answers) < len(found):
    return {}
  pooled, classes = join_answers(answers), len(found[0].loaded.class_names)
  figures, intervals = measure_answers(pooled, classes)
  row = {"": method, "seed": str(seed), "examples": f"{len(pooled.labels):,}"}
  for key, name, form in shown_figures(figures, classes):
    if ends := intervals[key]:
      row[name] = f"{figures[key]:{form}} ({ends[0]:{form}} to {ends[1]:{form}})"
  return row
