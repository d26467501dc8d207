"""The options, the progress and the exit status that the benchmarks have in common."""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vitx.benchmark.timing import Neighbors
from vitx.cli import main


def make_parser(text: str | None, *, repeats: int = 3) -> argparse.ArgumentParser:
  """Returns a parser of the options that every benchmark has.

  Args:
    text: The description of the command.
    repeats: The default number of rounds in a run.
  """
  parser = argparse.ArgumentParser(
    description=text, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--runs", type=int, default=3, help="number of runs; each gives a ratio")
  parser.add_argument("--repeats", type=int, default=repeats, help="number of rounds in a run")
  parser.add_argument("--seconds", type=float, default=60.0, help="limit for one program in a run")
  return parser


def start(measure: Callable[..., None], parser: argparse.ArgumentParser) -> int:
  """Calls `measure` with the options of this process, and returns the exit status.

  An error is printed as one line, and the status is 1.

  Args:
    measure: A function of the options and of `effort`, a dict of runs, repeats, seconds and `say`,
      a function that prints progress.
    parser: A parser from `make_parser`.
  """
  options = vars(parser.parse_args())
  effort: dict[str, Any] = {name: options.pop(name) for name in ("runs", "repeats", "seconds")}

  def run() -> None:
    with Neighbors() as neighbors:
      measure(effort=effort | {"say": say}, **options)
    neighbors.print()

  return main.run(run)


def say(message: str) -> None:
  """Prints progress to the standard error, so that the standard output has only the results."""
  print(message, file=sys.stderr, flush=True)


def format_ratios(
  by_name: Mapping[str, Sequence[float]], goals: Mapping[str, float], most: bool
) -> str:
  """Returns a line for each name: the ratio of every run, the median, and the runs at the goal.

  Args:
    by_name: The ratios of the runs, by name.
    goals: The goals by name; a name may have none.
    most: Whether a goal is the largest ratio that reaches it; otherwise it is the smallest.
  """
  lines = []
  for name, ratios in by_name.items():
    values = "  ".join(f"{ratio:.2f}" for ratio in ratios)
    line = f"{name:<40} {values}  median {statistics.median(ratios):.2f}"
    if name in goals:
      goal = goals[name]
      met = sum(ratio <= goal if most else ratio >= goal for ratio in ratios)
      line += f"  {'<=' if most else '>='} {goal}: {met} of {len(ratios)}"
    lines.append(line)
  return "\n".join(lines)
