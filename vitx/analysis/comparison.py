"""Compares methods over several runs: the table of a sweep, in Markdown and as CSV.

A sweep trains several methods, each with several seeds and, for cross-validation, folds. One run
trains one method with one seed and fold. An `Outcome` is the result of a run.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vitx.analysis import csv_files, markdown, statistics
from vitx.analysis.statistics import LEVEL, Agreement, Difference, Spread
from vitx.analysis.tables import format_figure

SHOWN = {"top1": ("top-1 %", 100.0, 2), "bits": ("bits", 1.0, 4)}
OMITTED = ("kind", "step")  # The fields of a row of metrics that the CSV file leaves out.


def figure_format(figure: str) -> tuple[str, float, int | None]:
  """Returns the display format of a metric: a name, a factor for its values, and the decimals.

  The decimals are None for a metric whose values may have any size, see `tables.format_figure`.
  """
  return SHOWN.get(figure, (figure, 1.0, None))


@dataclasses.dataclass(frozen=True)
class Method:
  """A method of a comparison, whose runs differ only in seed and fold.

  Attributes:
    name: The name in the table.
    steps: The number of training steps.
    flops: The floating-point operations of a whole training, without evaluations.
    parameters: The number of parameters of the network.
    published: The paper's results by metric: a number, or a mapping from epoch to number.
    ends_early: Whether early stopping may end a run before `steps`; steps and FLOPs are then the
      most that a run can have.
  """

  name: str
  steps: int
  flops: int
  parameters: int
  published: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  ends_early: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The result of one run of a method.

  Attributes:
    method: The name of the method.
    seed: The seed of the run.
    best: The step of the checkpoint with the best validation metric, or `None` if the run failed.
    validation: The validation metrics of the best checkpoint.
    test: The test metrics of the best checkpoint.
    test_curve: The metrics of every evaluation on *test* during the training, if there were any.
    seconds: The duration of the training in seconds.
    problem: The reason for the failure, or "" if the run did not fail.
    fold: The fold of the examples that the run tested, or `None` without folds.
  """

  method: str
  seed: int
  best: int | None = None
  validation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  test: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  test_curve: Sequence[Mapping[str, Any]] = ()
  seconds: float = 0.0
  problem: str = ""
  fold: int | None = None

  @property
  def pair(self) -> tuple[int, int]:
    """Returns the fold and the seed; runs of two methods that agree in both form a pair."""
    return (-1 if self.fold is None else self.fold), self.seed


@dataclasses.dataclass
class MethodSummary:
  """The metrics of one method over all its runs: a line of the table.

  The best checkpoint of a run is the one with the best validation metric.

  Attributes:
    method: The method.
    validation: The validation metric of the best checkpoints, or `None` if no run finished.
    test: The test metric of the best checkpoints, or `None` if no run finished.
    best_on_test: The best test metric of each run's evaluations during the training, or `None` if
      not all runs evaluated on *test* during the training.
    difference: The difference of the test metric from the first method's, paired by fold and seed,
      or `None` for the first method and for a method without pairs.
    rank: The rank of the mean test metric.
    p: The p-value of the difference, corrected for the number of differences in the table.
    published: The metric printed in the paper.
    published_rank: The rank of the published metric among the methods that also have a test metric.
      Of several variants of one published method, only the first has this rank.
  """

  method: Method
  validation: Spread | None = None
  test: Spread | None = None
  best_on_test: Spread | None = None
  difference: Difference | None = None
  rank: float | None = None
  p: float | None = None
  published: float | None = None
  published_rank: float | None = None


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Several methods and their runs.

  Attributes:
    figure: The name of the compared metric, the task's primary metric, such as "top1".
    mode: Whether high ("max") or low ("min") values of the metric are good.
    methods: The methods in the order of the table; the others are compared with the first.
    outcomes: The outcomes of all runs.
  """

  figure: str
  mode: Literal["max", "min"]
  methods: Sequence[Method]
  outcomes: Sequence[Outcome]

  def values(self, method: str, role: str) -> dict[tuple[int, int], float]:
    """Returns the compared metric of each finished run of a method, by (fold, seed).

    Args:
      method: The name of the method.
      role: The split of the metric, "validation" or "test".
    """
    return {
      outcome.pair: getattr(outcome, role)[self.figure]
      for outcome in self.outcomes
      if outcome.method == method and not outcome.problem
    }

  def lines(self) -> list[MethodSummary]:
    """Summarizes each method over its runs, in the order of the table."""
    lines = [self._measure(method) for method in self.methods]
    ran = [(line, line.test.mean) for line in lines if line.test]
    places = statistics.rank([mean for _, mean in ran], self.mode)
    for (line, _), place in zip(ran, places, strict=True):
      line.rank = place
    tested = [(x, x.difference.p) for x in lines if x.difference and x.difference.p is not None]
    for (line, _), p in zip(tested, statistics.adjust([p for _, p in tested]), strict=True):
      line.p = p
    pairs = _find_published(lines)
    places = statistics.rank([published for _, published in pairs], self.mode)
    for (line, _), place in zip(pairs, places, strict=True):
      line.published_rank = place
    return lines

  def agreement(self) -> Agreement | None:
    """Returns the rank correlation of our metrics with the published ones.

    It is `None` if the correlation is undefined, see `vitx.analysis.statistics.agree`.
    """
    pairs = _find_published(self.lines())
    ours = [line.test.mean for line, _ in pairs if line.test]
    return statistics.agree(ours, [published for _, published in pairs])

  def _measure(self, method: Method) -> MethodSummary:
    values = self.values(method.name, "test")
    is_first = method is self.methods[0]
    base = {} if is_first else self.values(self.methods[0].name, "test")
    pairs = [(values[pair], base[pair]) for pair in values if pair in base]
    best = max if self.mode == "max" else min
    runs = [run for run in self.outcomes if run.method == method.name and not run.problem]
    curves = [[row[self.figure] for row in run.test_curve] for run in runs]
    published = method.published.get(self.figure)
    return MethodSummary(
      method,
      validation=_spread([*self.values(method.name, "validation").values()]),
      test=_spread([*values.values()]),
      # A mean over other runs than those of the other columns could not be compared with them.
      best_on_test=_spread([*map(best, curves)] if all(curves) else []),
      difference=statistics.compare_pairs(*zip(*pairs, strict=True)) if pairs else None,
      published=published if isinstance(published, int | float) else None,
    )


def _spread(values: Sequence[float]) -> Spread | None:
  """Returns the spread of values; `None` without any."""
  return statistics.spread(values) if values else None


def _find_published(lines: Sequence[MethodSummary]) -> list[tuple[MethodSummary, float]]:
  """Returns (line, published metric) of the tested lines, once for the variants of one method."""
  pairs = [(line, line.published) for line in lines if line.test and line.published is not None]
  first = {id(line.method.published): line for line, _ in reversed(pairs)}
  return [pair for pair in pairs if pair[0] is first[id(pair[0].method.published)]]


def format_table(comparison: Comparison) -> str:
  """Returns the table of a comparison in Markdown, with an explanation of its columns."""
  name, scale, digits = figure_format(comparison.figure)
  lines = comparison.lines()
  first = comparison.methods[0].name
  has_best = any(line.best_on_test for line in lines)
  has_published = any(line.published is not None for line in lines)
  has_folds = any(outcome.fold is not None for outcome in comparison.outcomes)
  columns: dict[str, Callable[[MethodSummary], str]] = {"": lambda line: line.method.name}
  columns["runs" if has_folds else "seeds"] = lambda line: str(line.test.count if line.test else 0)
  if has_published:
    columns["published"] = lambda line: _number(line.published)
  columns[f"validation {name}"] = lambda line: format_spread(line.validation, scale, digits)
  columns[f"test {name}"] = lambda line: format_spread(line.test, scale, digits)
  if has_best:
    columns[f"best on test {name}"] = lambda line: format_spread(line.best_on_test, scale, digits)
  columns |= {
    f"minus {first} [{LEVEL:.0%} interval]": lambda line: _difference(line, scale, digits),
    "p": lambda line: _number(line.p, ".3g"),
    "rank": lambda line: _number(line.rank),
  }
  if has_published:
    columns["published rank"] = lambda line: _number(line.published_rank)
  columns |= {
    "parameters": lambda line: f"{line.method.parameters:,}",
    "steps": lambda line: f"{_mark_bound(line.method)}{line.method.steps:,}",
    "TFLOP": lambda line: f"{_mark_bound(line.method)}{line.method.flops / 1e12:,.4g}",
  }
  rows = [[show(line) for show in columns.values()] for line in lines]
  return "\n\n".join([markdown.table([list(columns), *rows]), _explain(comparison, has_published)])


def _mark_bound(method: Method) -> str:
  return "≤ " if method.ends_early else ""


def _explain(comparison: Comparison, has_published: bool) -> str:
  first, better = comparison.methods[0].name, {"max": "high", "min": "low"}[comparison.mode]
  first = markdown.text(first)
  text = [
    f"Mean ± standard deviation over seeds; {better} is good. The checkpoint that validates best is"
    f" tested, once. Differences are of the test figures, paired by seed: mean, {LEVEL:.0%} t"
    f" interval, and p of a two-sided paired t-test against {first}; Holm's correction for the"
    " number of lines is in p and not in the intervals. TFLOP: matrix products, convolutions and"
    " Fourier transforms of the training, a multiply-add counted as two."
  ]
  if any(outcome.fold is not None for outcome in comparison.outcomes):
    text[0] = text[0].replace("over seeds", "over folds and seeds").replace("by seed", "by both")
    text.append(
      "Each run tests one fold of train. The runs of different folds share training examples, so"
      " that standard deviations, intervals and p are too small."
    )
  if any(method.ends_early for method in comparison.methods):
    text.append("≤: the most steps and TFLOP of a run, which early stopping may end before.")
  text += _describe_counts(comparison)
  if any(line.best_on_test for line in comparison.lines()):
    text.append(
      "Best on test: the best of all evaluations on test, as some sources report. The examples that"
      " choose the epoch also give the figure, so the figure is too good."
    )
  agreement = comparison.agreement()
  if has_published:
    text.append("Published figures are the source's own, of its own training.")
  if agreement:
    text.append(
      f"Spearman's correlation with the published order over {agreement.count} lines:"
      f" {agreement.rho:.3f} (p = {agreement.p:.2g})."
    )
  failed = [outcome for outcome in comparison.outcomes if outcome.problem]
  for outcome in failed:
    problem = markdown.text(markdown.shorten_paths(outcome.problem))
    fold = "" if outcome.fold is None else f", fold {outcome.fold}"
    text.append(f"{markdown.text(outcome.method)}{fold}, seed {outcome.seed}, failed: {problem}")
  return "\n\n".join(text)


def _describe_counts(comparison: Comparison) -> list[str]:
  """Returns a sentence on the numbers of examples, if all runs state equal ones, in a list."""
  good = [outcome for outcome in comparison.outcomes if outcome.test]
  counts = {(o.validation.get("examples", 0), o.test.get("examples", 0)) for o in good}
  if len(counts) != 1 or 0 in (known := counts.pop()):
    return []
  text = "Figures are of {:,} examples of validation and {:,} of test".format(*known)
  if figure_format(comparison.figure)[1] == 100:
    share = float(np.mean([outcome.test[comparison.figure] for outcome in good]))
    error = 100 * math.sqrt(share * (1 - share) / known[1])
    text += f"; at the mean of {share:.1%} the standard error of one run's test figure is"
    text += f" {error:.1f} points"
  return [f"{text}."]


def format_spread(value: Spread | None, scale: float, digits: int | None) -> str:
  """Returns a mean ± standard deviation, both times `scale`, as text; "" for `None`."""
  if value is None:
    return ""
  deviation = "" if value.sd is None else f" ± {format_figure(value.sd * scale, digits)}"
  return f"{format_figure(value.mean * scale, digits)}{deviation}"


def _difference(line: MethodSummary, scale: float, digits: int | None) -> str:
  value = line.difference
  if value is None:
    return ""
  text = format_figure(value.mean * scale, digits, "+")
  if value.low is not None and value.high is not None:
    low, high = (format_figure(end * scale, digits, "+") for end in (value.low, value.high))
    text += f" [{low}, {high}]"
  return text


def _number(value: float | None, form: str = "g") -> str:
  return "" if value is None else f"{value:{form}}"


def format_csv(comparison: Comparison) -> str:
  """Returns a comparison as CSV text with one line for each training run.

  A line has the method, the seed and the fold, the method's parameters, steps and FLOPs, and the
  run's metrics on *validation* and *test*. Steps and FLOPs are empty if early stopping may end the
  run before. Measured times are left out, since they differ from machine to machine.
  """
  methods = {method.name: method for method in comparison.methods}
  rows = [_flatten(outcome, methods[outcome.method]) for outcome in comparison.outcomes]
  return csv_files.format_records(rows)


def _flatten(outcome: Outcome, method: Method) -> dict[str, Any]:
  row: dict[str, Any] = {"method": outcome.method, "seed": outcome.seed}
  row |= {} if outcome.fold is None else {"fold": outcome.fold}
  row["parameters"] = method.parameters
  row |= {n: None if method.ends_early else getattr(method, n) for n in ("steps", "flops")}
  row |= {"problem": outcome.problem, "best_step": outcome.best}
  for role in ("validation", "test"):
    for name, value in getattr(outcome, role).items():
      if name not in OMITTED and isinstance(value, int | float):
        row[f"{role}_{name}"] = value
  return row
