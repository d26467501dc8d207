"""Measures token mixers, density models and Sparsifiner: `vitx benchmark mixers | density | ...`.

Mixers: every token mixer as a module in both implementations, forward and backward, side by side
with dense softmax in the same run: time, compiled temporary memory and FLOPs as ratios; then the
named cases with the figures they are to reach. Density: the Sparse Transformer's patterns beside
causal flash, whole training steps beside the article's Table 2, and a sampled token from the cache
beside computing all anew. Sparsifiner: its attention by keys and by blocks with the figures to
reach, and its multiply-adds as published and as made. On a CPU no absolute time is shown: its cores
are shared.
"""

import argparse
import sys
from collections.abc import Collection
from typing import Any

import jax

from vitx.analysis import mhsa_flops
from vitx.attention.registry import MIXERS
from vitx.benchmark import density, density_steps, mixers, named, plot, report, sparsifiner
from vitx.benchmark.cases import CASES
from vitx.benchmark.timing import Neighbors
from vitx.errors import ConfigError, listing, nearest

DENSITY_PARTS = ("attention", "steps", "sampling")
SPARSIFINER_PARTS = ("attention", "flops")
SHARES = (0.9, 0.7, 0.5, 0.25, 0.1, 0.05)  # of keys, in the table of multiply-adds


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
  add = what.add_parser(
    "density", help="attention, steps and samples of density models"
  ).add_argument
  add(
    "--parts",
    type=lambda text: text.split(","),
    default=list(DENSITY_PARTS),
    help=f"of {', '.join(DENSITY_PARTS)}, separated by commas; else all",
  )
  add("--tokens", type=_numbers, default="3072,12288", help="N of attention, separated by commas")
  add("--stride", type=_positive, default=128, help="l of the patterns of attention")
  add("--summary", type=_positive, default=32, help="c of the fixed one")
  add("--setups", type=lambda text: text.split(","), default=list(density_steps.SETUPS))
  add("--depth", type=_positive, default=4, help="layers of the models")
  add("--runs", type=_positive, default=3, help="each gives a ratio; their median is shown")
  add("--repeats", type=_positive, default=3, help="rounds in a run; the median counts")
  add("--seconds", type=float, default=60.0, help="one program may take per run; then fewer rounds")
  add = what.add_parser("sparsifiner", help="attention to predicted keys and blocks").add_argument
  add(
    "--parts",
    type=lambda text: text.split(","),
    default=list(SPARSIFINER_PARTS),
    help=f"of {', '.join(SPARSIFINER_PARTS)}, separated by commas; else all",
  )
  add("--block", type=_positive, default=sparsifiner.BLOCK, help="tokens in a block")
  add("--runs", type=_positive, default=3, help="each gives a ratio")
  add("--repeats", type=_positive, default=3, help="rounds in a run; the median counts")
  add("--seconds", type=float, default=60.0, help="one program may take per run; then fewer rounds")


def run(what: str, **options: Any) -> None:
  """Measures "mixers", "density" or "sparsifiner"."""
  runs = {"mixers": run_mixers, "density": run_density, "sparsifiner": run_sparsifiner}
  runs[what](argparse.Namespace(**options))


def run_sparsifiner(options: argparse.Namespace) -> None:
  """Measures Sparsifiner's attention and counts its operations, and prints a table of each.

  Raises:
    ConfigError: an unknown part.
  """
  _check_names("parts", options.parts, SPARSIFINER_PARTS)
  if "attention" in options.parts:
    effort = {"repeats": options.repeats, "seconds": options.seconds, "runs": options.runs}
    with Neighbors() as neighbors:
      cases = sparsifiner.make_cases(block=options.block)
      print(report.format_named(named.measure(cases, say=_say, **effort)), flush=True)
    _print_neighbors(neighbors)
  if "flops" in options.parts:
    for name in mhsa_flops.BACKBONES:
      print(f"\n{mhsa_flops.format_macs(name, SHARES)}")


def run_density(options: argparse.Namespace) -> None:
  """Measures the parts of density models that are asked for, and prints a table of each.

  Raises:
    ConfigError: an unknown part or setup.
  """
  _check_names("parts", options.parts, DENSITY_PARTS)
  _check_names("setups", options.setups, density_steps.SETUPS)
  effort = {"repeats": options.repeats, "seconds": options.seconds, "runs": options.runs}
  with Neighbors() as neighbors:
    if "attention" in options.parts:
      _run_attention(options, effort)
    if "steps" in options.parts:
      setups = {name: density_steps.SETUPS[name] for name in options.setups}
      steps = density_steps.measure_steps(setups, depth=options.depth, say=_say, **effort)
      print(f"\n{density_steps.format_steps(steps, options.depth)}", flush=True)
    if "sampling" in options.parts:
      sampled = density_steps.measure_sampling(depth=options.depth, say=_say, **effort)
      print(f"\n{density_steps.format_sampling(sampled, options.depth)}", flush=True)
  _print_neighbors(neighbors)


def _run_attention(options: argparse.Namespace, effort: dict[str, Any]) -> None:
  for tokens in options.tokens:
    sizes = {"stride": options.stride, "summary": options.summary}
    rows = density.measure(tokens, **sizes, say=_say, **effort)
    heading = (
      f"N = {tokens}, H = {density.HEADS}, D = {density.HEAD_DIM}, l = {options.stride}, c ="
      f" {options.summary}, float32, forward + backward, beside {density.FLASH}"
    )
    print(f"\n{density.format_measured(rows, heading)}", flush=True)
    if tokens == density.TOKENS:  # the figures are those of this size
      print(report.format_named(density.judge(rows, f"density, N={tokens}")), flush=True)


def _check_names(field: str, given: list[str], known: Collection[str]) -> None:
  for name in given:
    if name not in known:
      raise ConfigError(
        f"{field}={name!r} is unknown.{nearest(name, known)} Valid: {listing(known)}"
      )


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
  _print_neighbors(neighbors)


def _print_neighbors(neighbors: Neighbors) -> None:
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
