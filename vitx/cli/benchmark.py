"""Measures token mixers: `vitx benchmark mixers`.

Every token mixer as a module in both implementations, forward and backward, side by side with dense
softmax in the same run: time, compiled temporary memory and FLOPs as ratios; then the named cases
with the figures they are to reach. On a CPU no absolute time is shown: its cores are shared.
"""

import argparse
import sys
from typing import Any

import jax

from vitx.attention.registry import MIXERS
from vitx.benchmark import mixers, named, plot, report
from vitx.benchmark.cases import CASES
from vitx.benchmark.timing import Neighbors


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
  add = what.add_parser("mixers", help="token mixers side by side with dense softmax").add_argument
  add("--tokens", type=_numbers, default="256,1024,4096", help="N, separated by commas")
  add(
    "--mixers",
    type=lambda text: text.split(","),
    default=list(MIXERS),
    help="names separated by commas, or your own as module:Name; else all",
  )
  add("--batch", type=_positive, default=1, help="B")
  add("--heads", type=_positive, default=4, help="H")
  add("--head_dim", type=_positive, default=64, help="D; the width is H D")
  add("--dtype", choices=("float32", "bfloat16"), default="float32")
  add("--repeats", type=_positive, default=3, help="rounds; the median counts")
  add("--seconds", type=float, default=10.0, help="one program may take per N; then fewer rounds")
  add("--runs", type=int, default=3, help="of the named cases; 0: leave them out")
  add("--csv", metavar="FILE", help="write a row per N, mixer and implementation")
  add("--plot", metavar="FILE", help="write a picture of time and memory against N")


def run(what: str, **options: Any) -> None:
  """Measures `what`, of which there is one kind today: "mixers"."""
  run_mixers(argparse.Namespace(**options))


def run_mixers(options: argparse.Namespace) -> None:
  """Measures the mixers and then the named cases, prints tables and writes files."""
  setting = mixers.Setting(options.batch, options.heads, options.head_dim, options.dtype)
  effort = {"repeats": options.repeats, "seconds": options.seconds, "say": _say}
  if options.plot:
    plot.import_figure()  # what is missing is said before the long part
  with Neighbors() as neighbors:
    rows = mixers.measure(options.mixers, options.tokens, setting, **effort)
    print(report.format_rows(rows, setting), flush=True)
    if options.csv:
      report.write_csv(options.csv, rows)
    if options.plot:
      plot.write_plot(options.plot, rows)
    if options.runs:
      outcomes = named.measure(CASES, runs=options.runs, **effort)
      print(f"\n{report.format_named(outcomes)}")
  if jax.default_backend() == "cpu":
    print(f"\nMeanwhile other processes used {neighbors.cores:.1f} cores of this machine.")


def _say(message: str) -> None:
  print(message, file=sys.stderr, flush=True)


def _numbers(text: str) -> list[int]:
  numbers = [int(part) for part in text.split(",")]
  if min(numbers) < 1:
    raise ValueError
  return numbers


def _positive(text: str) -> int:
  return _numbers(text)[0]
