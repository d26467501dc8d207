"""Training steps beside PyTorch's of the same sizes: `vitx benchmark models --peers`."""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from vitx.benchmark import models, peers
from vitx.cli.costs import find_texts
from vitx.config.errors import ConfigError, listing
from vitx.config.loader import load_config
from vitx.training import phases, trial
from vitx.training.trial import complete_config

# The config whose steps have figures to reach, at B = 8, and those of its rows that have peers.
CONFIG = "vix_cifar10:batch_size=8"
ROWS = ("vit", "vip", "vil", "vin", "fnet")


def run(options: argparse.Namespace, say: Callable[[str], None]) -> None:
  """Prints our steps' time, and with `--memory` their peak of memory, over those of the peers.

  Args:
    options: of `vitx benchmark models`.
    say: is told of progress.

  Raises:
    ConfigError: an unknown row, one without a peer, or a config of which no row has one.
    MissingExtraError: PyTorch or a peer is not installed.
  """
  rows = options.rows or (None if options.config else list(ROWS))
  texts = _find_rows(options.config or CONFIG, rows, say)
  peers.import_torch()
  pairs = {name: pair for row in texts for name, pair in _pair(row, texts[row]).items()}
  of = f"of our step over PyTorch's, float32, {options.config or CONFIG}"
  phases.use_cores(map(load_config, texts.values()))
  jax.devices()
  if options.memory:
    peaks = {}
    for name, (row, peer) in pairs.items():
      say(f"{name}: memory")
      mine = models.peak_bytes(functools.partial(_begin, texts[row]), _make_ours, texts[row])
      make_theirs = functools.partial(_make_peer, peer)
      peaks[name] = [mine / models.peak_bytes(peers.import_torch, make_theirs, texts[row])]
    print(f"Peak memory {of}")
    print(models.format_ratios(peaks, dict.fromkeys(pairs, 1.0), most=True), flush=True)
  made = {row: trial.make_dispatch(_complete(text)) for row, text in texts.items()}
  ours = {row: dispatch for row, (dispatch, _, _) in made.items()}
  # Both sides make as many steps in a sample.
  theirs = {
    name: _repeat(_make_peer(peer, texts[row]), made[row][1]) for name, (row, peer) in pairs.items()
  }
  effort: dict[str, Any] = {"repeats": options.repeats, "seconds": options.seconds}
  found = models.compare(ours, theirs, runs=options.runs, say=say, **effort)
  print(f"Time {of}")
  print(models.format_ratios(found, {} if options.config else models.GOALS, most=True), flush=True)


def _find_rows(config: str, wanted: list[str] | None, say: Callable[[str], None]) -> dict[str, str]:
  """Returns the text of each row that has a peer; those that were named must have one."""
  texts = find_texts(config, wanted)
  having = {row: text for row, text in texts.items() if peers.find_peers(_complete(text))}
  without = [row for row in texts if row not in having]
  parts = ", ".join(f"{part}={name}" for part, name in peers.PARTS.items())
  what = (
    f"PyTorch's are a vit in float32 of square images with {parts} and a token_mixer of"
    f" {listing(peers.PEERS)}"
  )
  if not having or (wanted and without):
    raise ConfigError(f"--peers: there is none beside {listing(without)}; {what}")
  if without:
    say(f"no peer: {listing(without)}; {what}")
  return having


def _pair(row: str, text: str) -> dict[str, tuple[str, str]]:
  """Returns a row with each of its peers, named by both where there are several."""
  found = peers.find_peers(_complete(text))
  return {row if len(found) == 1 else f"{row}/{peer}": (row, peer) for peer in found}


def _complete(text: str) -> ConfigDict:
  return complete_config(load_config(text))


def _begin(text: str) -> None:
  """Begins JAX as a training of this config does."""
  phases.use_cores([load_config(text)])
  jax.devices()


def _make_ours(text: str) -> Callable[[], None]:
  """Returns a dispatch of ours, for its memory."""
  return trial.make_dispatch(_complete(text))[0]


def _make_peer(peer: str, text: str) -> Callable[[], None]:
  return peers.make_step(_complete(text), peer)


def _repeat(step: Callable[[], None], times: int) -> Callable[[], None]:
  def steps() -> None:
    for _ in range(times):
      step()

  return steps
