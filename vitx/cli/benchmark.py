"""Measures mixers, models, training steps, data: `vitx benchmark`."""

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from vitx.analysis import mhsa_flops
from vitx.attention.registry import MIXERS
from vitx.benchmark import (
  density,
  density_steps,
  mixers,
  models,
  named,
  plot,
  reading,
  report,
  sparsifiner,
)
from vitx.benchmark.cases import CASES
from vitx.benchmark.timing import Neighbors
from vitx.cli import beside_peers, choose, costs
from vitx.cli import reading as streamed
from vitx.cli.arguments.benchmark import DENSITY_PARTS, SPARSIFINER_PARTS
from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.loader import load_config
from vitx.training import phases, trial
from vitx.training.trial import complete_config

SHARES = (0.9, 0.7, 0.5, 0.25, 0.1, 0.05)  # of keys, in the table of multiply-adds


def run(what: str, **options: Any) -> None:
  """Measures "mixers", "choose", "density", "sparsifiner", "models" or "data"."""
  runs = {
    "mixers": run_mixers,
    "choose": choose.run,
    "density": run_density,
    "sparsifiner": run_sparsifiner,
    "models": run_models,
    "data": run_data,
  }
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
      cases = sparsifiner.make_cases(block=options.block or sparsifiner.BLOCK)
      print(report.format_named(named.measure(cases, say=_say, **effort)), flush=True)
    _print_neighbors(neighbors)
  if "flops" in options.parts:
    for name in mhsa_flops.BACKBONES:
      print(f"\n{mhsa_flops.format_macs(name, SHARES)}")


def run_models(options: argparse.Namespace) -> None:
  """Measures a config's rows, or training steps beside PyTorch's or a product of matrices.

  Raises:
    ConfigError: an unknown row, or arguments that do not go together.
    MissingExtraError: the peers are not installed.
  """
  of_rows = ("time", "pareto", "out", "csv", "json")
  _check_together(options, bool(options.config) and not options.peers, of_rows)
  if options.memory and not options.peers:
    raise ConfigError("--memory is of the peers; add --peers, or take --time for a config's rows")
  if options.peers or options.config:
    with Neighbors() as neighbors:
      (beside_peers if options.peers else costs).run(options, _say)
    _print_neighbors(neighbors)
    return
  names = options.rows or list(models.SHARES)
  _check_names("rows", names, models.SHARES)
  effort: dict[str, Any] = {"repeats": options.repeats, "seconds": options.seconds}
  with Neighbors() as neighbors:
    phases.use_cores(map(load_config, names))
    made = {name: _make_dispatch(name) for name in names}
    steps = {name: dispatch for name, (dispatch, _, _) in made.items()}
    flops = {name: count for name, (_, _, count) in made.items()}
    found = models.share_of_product(steps, flops, runs=options.runs, say=_say, **effort)
    print(f"FLOP/s of a step over those of a product of {models.PRODUCT} x {models.PRODUCT}")
    print(models.format_ratios(found, models.SHARES, most=False), flush=True)
  _print_neighbors(neighbors)


def _check_together(options: argparse.Namespace, given: bool, others: Sequence[str]) -> None:
  """Raises ConfigError for an argument of the costs of a config's rows where they are not asked."""
  for name in others:
    if getattr(options, name) and not given:
      instead = "leave out --peers" if options.peers else "name a --config whose rows it is of"
      raise ConfigError(f"--{name} is of what a config's rows cost; {instead}")


def _make_dispatch(text: str) -> tuple[Callable[[], None], int, int]:
  return trial.make_dispatch(complete_config(load_config(text)))


def run_data(options: argparse.Namespace) -> None:
  """Measures how fast the batches of a config arrive, and prints rates and memory."""
  experiment = streamed.open_streamed(options.config)
  make = functools.partial(streamed.make_stream, options.examples)
  peak = models.peak_bytes(functools.partial(make, options.config), make, options.config, 1)
  count = streamed.count_steps(experiment, options.examples) * experiment.config.batch_size
  with Neighbors() as neighbors:
    readers = streamed.make_readers(experiment, options.examples)
    rates = reading.measure_rates(readers, count, runs=options.runs, say=_say)
  threads, size = experiment.config.data.threads, experiment.config.batch_size
  print(f"Examples a second, {count:,} a run, {threads} threads, batch_size={size}")
  print(reading.format_rates(rates))
  print(f"Peak memory of the streamed batches beside the opened data: {peak / 1e6:,.0f} MB")
  _print_neighbors(neighbors)


def run_density(options: argparse.Namespace) -> None:
  """Measures the parts of density models that are asked for, and prints a table of each.

  Raises:
    ConfigError: an unknown part or setup.
  """
  _check_names("parts", options.parts, DENSITY_PARTS)
  chosen = options.setups or list(density_steps.SETUPS)
  _check_names("setups", chosen, density_steps.SETUPS)
  effort = {"repeats": options.repeats, "seconds": options.seconds, "runs": options.runs}
  with Neighbors() as neighbors:
    if "attention" in options.parts:
      _run_attention(options, effort)
    if "steps" in options.parts:
      setups = {name: density_steps.SETUPS[name] for name in chosen}
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
    rows = mixers.measure(options.mixers or list(MIXERS), options.tokens, setting, **effort)
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
