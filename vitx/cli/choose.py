"""`vitx benchmark choose`: measures which implementation is the faster, and writes the rule."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from vitx.benchmark import choose
from vitx.benchmark.mixers import Setting
from vitx.benchmark.timing import Neighbors
from vitx.errors import ConfigError, listing, nearest
from vitx.ops import rule


def add_arguments(
  add: Callable[..., Any], numbers: Callable[[str], list[int]], positive: Callable[[str], int]
) -> None:
  """Declares the arguments of `run`, given how a list of numbers and one number are read."""
  add("--out", metavar="FILE", help="write here; else where auto looks, for this user")
  add(
    "--ops",
    type=lambda text: text.split(","),
    default=list(rule.FAMILIES),
    help=f"of {', '.join(rule.FAMILIES)}; else all. The others stay as they are",
  )
  add("--minutes", type=float, default=20.0, help="of all timing; compiling comes on top")
  add("--tokens", type=numbers, default=list(choose.TOKENS), help="N, separated by commas")
  add("--batches", type=numbers, default=list(choose.BATCHES), help="B, separated by commas")
  add("--heads", type=positive, default=4, help="H")
  add("--head_dim", type=positive, default=64, help="D; the width is H D")
  add("--dtype", choices=("float32", "bfloat16"), default="float32")
  add("--repeats", type=positive, default=5, help="rounds; the median counts")


def run(options: argparse.Namespace) -> None:
  """Measures the families that are asked for, prints a table, and writes a device kind's file.

  Families that are not asked for keep the bounds and the provenance that are in force.

  Raises:
    ConfigError: an unknown family, a damaged file in force, or the file cannot be written.
  """
  for name in options.ops:
    if name not in rule.FAMILIES:
      raise ConfigError(
        f"ops={name!r} is unknown.{nearest(name, rule.FAMILIES)} Valid: {listing(rule.FAMILIES)}"
      )
  kind = jax.devices()[0].device_kind
  path = Path(options.out) if options.out else rule.user_directory() / rule.file_name(kind)
  whole = set(options.ops) == set(rule.FAMILIES)
  families = {} if whole else rule.find_families(kind)
  setting = Setting(heads=options.heads, head_dim=options.head_dim, dtype=options.dtype)
  with Neighbors() as neighbors:
    ratios = choose.measure(
      options.ops,
      options.tokens,
      options.batches,
      setting,
      repeats=options.repeats,
      minutes=options.minutes,
      say=lambda message: print(message, file=sys.stderr, flush=True),
    )
  bounds = {}
  for name in (name for name in rule.FAMILIES if name in options.ops):
    own = [ratio for ratio in ratios if ratio.family == name]
    if not own:
      raise ConfigError(f"ops={name!r}: no mixer of it fits tokens={options.tokens}; add others")
    bounds[name] = choose.fit(own)
    measured = choose.describe(own, setting, options.repeats, neighbors)
    families[name] = {"masked": [list(bound) for bound in bounds[name]], "measured": measured}
  print(choose.format_ratios(ratios, bounds))
  print(f"\nMeanwhile other processes used {neighbors.cores:.1f} cores of this machine.")
  rule.write_families(path, kind, families)
  print(f"wrote {path}, the rule of auto on {kind!r}")
