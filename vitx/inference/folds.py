"""Computes the figures of a task over the test examples of all folds together.

The folds are those of a sweep with cross-validation.
"""

import csv
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitx.analysis import csv_files, markdown
from vitx.config.errors import ConfigError
from vitx.files import reading
from vitx.inference.evaluate import evaluate_split, evaluate_together
from vitx.interop.repository import load
from vitx.tasks.figures import describe, table_rows

TITLE = "## Out of fold"


def pool_folds(groups: Mapping[tuple[str, int], Sequence[str]]) -> list[str]:
  """Returns a Markdown section with the task's figures over all folds together.

  Every example is in the test set of exactly one fold, and each run of a method and seed leaves out
  one fold. The best checkpoint of a run answers the test examples of its fold. The section has a
  table with a line for each method and seed.

  Args:
    groups: The workdirs of the runs of all folds, by method and seed.

  Returns:
    A list with the section, or [] without groups.
  """
  if not groups:
    return []
  try:
    rows = [_summarize(*key, runs) for key, runs in groups.items()]
  except ConfigError as error:  # A run that was finished before may lack its data by now.
    return [f"{TITLE}\n\nNone: {markdown.text(error)}"]
  heads = list(dict.fromkeys(name for row in rows for name in row))
  table = markdown.table([heads, *([row.get(name, "") for name in heads] for row in rows)])
  note = "Every example of train, answered by the best checkpoint of the run whose fold it is in"
  if all("figures" not in row for row in rows):
    note += " with 95 % bootstrap intervals over examples"
  return [f"{TITLE}\n\n{table}\n\n{note}."]


def predict_folds(directory: str, class_names: Sequence[str]) -> dict[str, np.ndarray]:
  """Predicts examples by the runs of a sweep that test them, and so did not learn from them.

  Args:
    directory: The directory of the sweep.
    class_names: The names of the K classes.

  Returns:
    The probabilities of the classes, (K,), by the name of an example; if several runs test it, such
    as those of several seeds, their mean.

  Raises:
    ConfigError: The runs are no finished runs of one method, or predict other classes.
  """
  with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "predictions.csv")
    evaluate_split(directory, file=file)
    with reading(f"{directory} predicts other classes"), csv_files.open_file(file) as lines:
      rows = {row["name"]: [row[f"p({x})"] for x in class_names] for row in csv.DictReader(lines)}
  return {name: np.array(row, float) for name, row in rows.items()}


def _summarize(method: str, seed: int, runs: Sequence[str]) -> dict[str, str]:
  """Returns the table's line for a method and seed, by heading."""
  models = [load(run) for run in runs]
  figures, task = evaluate_together(models), models[0].task
  row = {"": method, "seed": str(seed), "examples": f"{figures['examples']:,}"}
  if "intervals" not in figures:
    return row | {"figures": describe(task.figures, figures)}
  shown = table_rows(task.figures, figures)
  return row | {title: f"{value} ({ends})" if ends else value for title, value, ends in shown}
