"""What the yardsticks share: their options, what they say meanwhile, and how they end."""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import Any

from vitx.benchmark.timing import Neighbors
from vitx.cli import main


def make_parser(text: str | None, *, repeats: int = 3) -> argparse.ArgumentParser:
  """Returns a parser of the options that every yardstick has.

  Args:
    text: the description.
    repeats: rounds in a run, by default.
  """
  parser = argparse.ArgumentParser(
    description=text, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--runs", type=int, default=3, help="each gives a ratio")
  parser.add_argument("--repeats", type=int, default=repeats, help="rounds; the median counts")
  parser.add_argument("--seconds", type=float, default=60.0, help="of one program in a run")
  return parser


def start(measure: Callable[..., None], parser: argparse.ArgumentParser) -> int:
  """Calls `measure` with the options of this process; an error is one line, and the status 1.

  Args:
    measure: takes the options, and `effort`: runs, repeats, seconds, and `say` for progress.
    parser: of `make_parser`.
  """
  options = vars(parser.parse_args())
  effort: dict[str, Any] = {name: options.pop(name) for name in ("runs", "repeats", "seconds")}

  def run() -> None:
    with Neighbors() as neighbors:
      measure(effort=effort | {"say": say}, **options)
    neighbors.print()

  return main.run(run)


def say(message: str) -> None:
  """Prints progress, apart from the results."""
  print(message, file=sys.stderr, flush=True)


def format_ratios(found: Mapping[str, list[float]], goals: Mapping[str, float], most: bool) -> str:
  """Returns lines for reading: every run's ratio, the median, and whether the goal is reached.

  Args:
    found: ratios of each run.
    goals: by name, where there is one.
    most: whether the goal is the most that a ratio may be; False: the least.
  """
  lines = []
  for name, ratios in found.items():
    values = "  ".join(f"{ratio:.2f}" for ratio in ratios)
    line = f"{name:<40} {values}  median {statistics.median(ratios):.2f}"
    if name in goals:
      goal = goals[name]
      met = sum(ratio <= goal if most else ratio >= goal for ratio in ratios)
      line += f"  {'<=' if most else '>='} {goal}: {met} of {len(ratios)}"
    lines.append(line)
  return "\n".join(lines)
