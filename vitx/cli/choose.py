"""`vitx benchmark choose`: measures which implementation is the faster, and writes the rule."""

import argparse
import sys
from pathlib import Path

import jax

from vitx.benchmark import choose
from vitx.benchmark.mixers import Setting
from vitx.benchmark.timing import Neighbors
from vitx.checkpoints.outputs import check_folder
from vitx.config.errors import ConfigError, listing, nearest
from vitx.ops import rule


def run(options: argparse.Namespace) -> None:
  """Measures the families that are asked for, prints a table, and writes a device kind's file.

  Families that are not asked for keep the bounds and the provenance that are in force.

  Raises:
    ConfigError: an unknown family, a damaged file in force, or the file cannot be written.
  """
  chosen = options.ops or list(rule.FAMILIES)
  for name in chosen:
    if name not in rule.FAMILIES:
      raise ConfigError(
        f"ops={name!r} is unknown.{nearest(name, rule.FAMILIES)} Valid: {listing(rule.FAMILIES)}"
      )
  tokens = options.tokens or list(choose.TOKENS)
  kind = jax.devices()[0].device_kind
  path = Path(options.out) if options.out else rule.user_directory() / rule.file_name(kind)
  check_folder(path.parent, "out")
  if path.is_dir():
    raise ConfigError(f"out={str(path)!r} is a folder; name a file")
  whole = set(chosen) == set(rule.FAMILIES)
  families = {} if whole else rule.find_families(kind)
  setting = Setting(heads=options.heads, head_dim=options.head_dim, dtype=options.dtype)
  with Neighbors() as neighbors:
    ratios = choose.measure(
      chosen,
      tokens,
      options.batches or list(choose.BATCHES),
      setting,
      repeats=options.repeats,
      minutes=options.minutes,
      say=lambda message: print(message, file=sys.stderr, flush=True),
    )
  bounds = {}
  for name in (name for name in rule.FAMILIES if name in chosen):
    own = [ratio for ratio in ratios if ratio.family == name]
    if not own:
      raise ConfigError(f"ops={name!r}: no mixer of it fits tokens={tokens}; add others")
    bounds[name] = choose.fit(own)
    measured = choose.describe(own, setting, options.repeats, neighbors)
    families[name] = {"masked": [list(bound) for bound in bounds[name]], "measured": measured}
  print(choose.format_ratios(ratios, bounds))
  print(f"\nMeanwhile other processes used {neighbors.cores:.1f} cores of this machine.")
  rule.write_families(path, kind, families)
  print(f"wrote {path}, the rule of auto on {kind!r}")
