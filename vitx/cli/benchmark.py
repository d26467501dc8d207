"""Measures speed and memory on this machine: `vitx benchmark mixers | choose | data | gpu`.

`mixers` runs every token mixer forward and backward, in both implementations: "masked", which
computes the attention matrix, and "kernelized", which does not. It prints the time, the temporary
memory of the compiled program and the FLOPs of each mixer as ratios, which say how many times less
the mixer takes than dense softmax. On a CPU it shows no absolute time, because other programs may
share the cores.

`choose` finds the faster implementation of each mixer on this device, and writes the file from
which `auto` chooses. On a CUDA device it also finds the fastest tiles (the sizes of blocks) of the
attention kernels.

`data` streams the training batches of a config. It prints the examples per second and the memory
of the batches. For comparison it prints the examples per second of one thread of Pillow that
decodes and resizes those images.

`gpu` has four parts. `check` compares the attention kernels with the masked implementation on this
card, and stops at a difference. `tiles` measures the tiles as `choose` does. `table` times the
attention kernels beside XLA's and cuDNN's attention. `steps` times whole training steps.

To measure a whole config, use `vitx plan`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitx.checkpoints.outputs import check_folder
from vitx.cli import flags
from vitx.cli.console import say
from vitx.cli.flags import OutFile, names, positive, positives
from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
  add = what.add_parser("mixers", help="Compare token mixers with dense softmax.").add_argument
  add("--tokens", type=positives, default="256,1024,4096", help="The numbers of tokens, N.")
  add("--mixers", type=names, help="Names, or your own module:Name; the default is all.")
  add("--batch", type=positive, default=1, help="The batch size, B.")
  add("--seconds", type=float, default=10.0, help=flags.SECONDS)
  add("--csv", action=OutFile, metavar="FILE", help=flags.CSV)
  add("--plot", action=OutFile, metavar="FILE", help="Plots time and memory against N.")
  _add_common(add, repeats=3)
  words = "Measure and store what auto picks on this kind of device."
  add = what.add_parser("choose", help=words).add_argument
  words = "The file to write; the default is the file by which vitx chooses for auto."
  add("--out", action=OutFile, metavar="FILE", help=words)
  words = "The families of operations to measure, or tiles; the default is all."
  add("--ops", type=names, help=words)
  words = "The limit of minutes for all timings, to which compilation adds."
  add("--minutes", type=float, default=20.0, help=words)
  words = "The numbers of tokens, N; the default is 64, 128, 256 and 512."
  add("--tokens", type=positives, help=words)
  words = "The batch sizes, B; the default is 1, 4, 16 and 64."
  add("--batches", type=positives, help=words)
  _add_common(add, repeats=5)
  add = what.add_parser("data", help="Measure how fast batches are read.").add_argument
  add("--config", metavar="FILE:ROW,...", required=True, help=flags.CONFIG)
  flags.add_trust(add)
  add("--examples", type=positive, default=4096, help="The number of examples per run.")
  add("--runs", type=positive, default=5, help="The number of runs.")
  add = what.add_parser("gpu", help="Check and measure a GPU's attention kernels.").add_argument
  words = "The parts to run, of check, tiles, steps and table; the default is all."
  add("--parts", type=names, help=words)
  words = "The numbers of tokens in the table, N"
  add("--tokens", type=positives, help=f"{words}; the default is 4096, 1024 and 16384.")
  add("--head_dim", type=positive, default=64, help="The width of a head in the table, D.")
  words = "The minutes after which no further measurement begins; tiles take up to a quarter."
  add("--minutes", type=float, default=28.0, help=words)
  add("--out", action=OutFile, metavar="FILE", help="Writes the report to this Markdown file.")
  add("--csv", action=OutFile, metavar="FILE", help=flags.CSV)


def _add_common(add: Any, repeats: int) -> None:
  add("--heads", type=positive, default=4, help="The number of heads, H.")
  add("--head_dim", type=positive, default=64, help="The width of a head, D.")
  words = "The dtype, float32 or bfloat16."
  add("--dtype", choices=("float32", "bfloat16"), default="float32", help=words)
  add("--repeats", type=positive, default=repeats, help=flags.REPEATS)


def run(what: str, **options: Any) -> None:
  """Measures "mixers", "choose", "data" or "gpu"."""
  measures = {"mixers": _run_mixers, "choose": _run_choose, "data": _run_data, "gpu": _run_gpu}
  measures[what](**options)  # type: ignore[operator]


def _run_mixers(
  tokens: Sequence[int],
  mixers: Sequence[str] | None,
  repeats: int,
  seconds: float,
  csv: str | None,
  plot: str | None,
  **setting: Any,
) -> None:
  from vitx.analysis.figures.style import make_canvas
  from vitx.attention import MIXERS
  from vitx.benchmark import report
  from vitx.benchmark.mixers import Setting, measure
  from vitx.benchmark.timing import Neighbors

  if plot:
    make_canvas(1, 1)  # A missing matplotlib is reported before the long measurement.
  effort: dict[str, Any] = {"repeats": repeats, "seconds": seconds, "say": say}
  with Neighbors() as neighbors:
    rows = measure(mixers or list(MIXERS), tokens, Setting(**setting), **effort)
  if csv:
    report.write_csv(csv, rows)
  if plot:
    report.write_plot(plot, rows)
  print(report.format_rows(rows, Setting(**setting)))
  neighbors.print()


def _run_choose(
  ops: Sequence[str] | None,
  out: str | None,
  tokens: Sequence[int] | None,
  batches: Sequence[int] | None,
  repeats: int,
  minutes: float,
  **sizes: Any,
) -> None:
  """Measures operations by families, and writes the file from which `auto` chooses.

  If the device has the attention kernels, their tiles are measured first. Unless all families are
  measured, the file keeps its present content about other families and about tiles.
  """
  import dataclasses

  import jax

  from vitx.benchmark import choose, tune
  from vitx.benchmark.mixers import Setting
  from vitx.benchmark.timing import Neighbors
  from vitx.ops import rule
  from vitx.ops.implementation import choosing_by
  from vitx.ops.sparse.triton_attention import find_capability

  every = [*rule.FAMILIES, *["tiles"] * (find_capability() is not None)]
  chosen = [check_choice(name, "ops", (*rule.FAMILIES, "tiles")) for name in ops or every]
  if "tiles" in chosen:
    tune.check_kernels("ops='tiles'")
  kind, setting = jax.devices()[0].device_kind, Setting(**sizes)
  path = Path(out) if out else rule.user_directory() / rule.file_name(kind)
  check_folder(path.parent, "out")
  whole = set(chosen) >= set(rule.FAMILIES)
  stored = {} if whole else rule.read_stored(kind)
  families, tiles = stored.get("families", {}), stored.get("tiles")
  if "tiles" in chosen:
    tiles = tune.measure(minutes, say)
  names, bounds = [name for name in rule.FAMILIES if name in chosen], {}
  kernelized = dataclasses.replace(
    choose.KERNELIZED, tiles=rule.parse_tiles(tiles and tiles["sizes"])
  )
  tokens, batches = tokens or choose.TOKENS, batches or choose.BATCHES
  if names:
    effort: dict[str, Any] = {"repeats": repeats, "minutes": minutes, "say": say}
    with choosing_by(kernelized), Neighbors() as neighbors:
      ratios = choose.measure(names, tokens, batches, setting, **effort)
    for name in names:
      family_ratios = [ratio for ratio in ratios if ratio.family == name]
      if not family_ratios:
        raise ConfigError(f"ops={name!r}: none of its mixers fits tokens={[*tokens]}.")
      bounds[name] = choose.fit(family_ratios)
      measured = choose.describe(family_ratios, setting, repeats, neighbors)
      families[name] = {"masked": [list(bound) for bound in bounds[name]], "measured": measured}
  rule.write_families(path, kind, families, tiles)
  if names:
    print(choose.format_ratios(ratios, bounds))
    neighbors.print()
  print(f"wrote {path}, the rule by which auto picks on {kind!r}")


def _run_data(config: str, examples: int, runs: int) -> None:
  """Measures how fast the batches of a config arrive, and prints rates and memory."""
  from functools import partial

  from vitx.benchmark import reading, timing

  experiment = reading.open_streamed(config)
  make = partial(reading.make_stream, examples)
  peak = timing.peak_bytes(partial(make, config), make, config, 1)
  size, threads = experiment.settings.batch_size, experiment.settings.data.threads
  count = reading.count_steps(experiment, examples) * size
  with timing.Neighbors() as neighbors:
    readers = reading.make_readers(experiment, examples)
    rates = reading.measure_rates(readers, count, runs=runs, say=say)
  print(f"Examples per second, {count:,} per run, {threads} threads, batch_size={size}")
  print(reading.format_rates(rates))
  print(f"Peak memory of the streamed batches beside the opened data: {peak / 1e6:,.0f} MB")
  neighbors.print()


def _run_gpu(
  parts: Sequence[str] | None,
  tokens: Sequence[int] | None,
  head_dim: int,
  minutes: float,
  out: str | None,
  csv: str | None,
) -> None:
  """Checks and measures the attention kernels, and prints and writes a report part by part."""
  import time

  from vitx.analysis import csv_files
  from vitx.benchmark import gpu, gpu_check, tune
  from vitx.files import replace_text

  chosen = [check_choice(part, "parts", gpu.PARTS) for part in parts or gpu.PARTS]
  tune.check_kernels("vitx benchmark gpu")
  end, sections, records = time.monotonic() + 60 * minutes, [], []
  effort = {"repeats": gpu.REPEATS, "seconds": gpu.SECONDS}

  def add(section: str) -> None:
    print(f"{section}\n", flush=True)
    sections.append(section)
    if out:
      replace_text(Path(out), "\n\n".join(sections) + "\n")

  if "check" in chosen:
    add(gpu_check.check(say))
  if "tiles" in chosen:
    _run_choose(["tiles"], None, None, None, 1, minutes / 4)
  add(gpu.describe())
  if "steps" in chosen:
    add(gpu.measure_steps(say, end=end, effort=effort))
  sizes = (4, 8, head_dim)
  tables = gpu.measure_table(tokens or gpu.TOKENS, say, sizes=sizes, end=end, effort=effort)
  for title, lines in tables if "table" in chosen else ():
    add(gpu.format_table(title, lines))
    records += lines
    if csv:
      csv_files.write_records(csv, records)
