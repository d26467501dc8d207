"""Trains a model, or resumes a stopped run.

    vitx train --config configs/digits.py --workdir runs/digits
    vitx train --config configs/digits.py:performer,seed=3 --config.model.depth=2 --workdir runs/p

The exit status is 0 if the run finished, 75 if a signal (SIGTERM, SIGINT, SIGUSR1 or SIGUSR2)
stopped it with everything saved (the same command resumes it), and 1 otherwise.
"""

import argparse
import time
from typing import Any

from vitx.cli.flags import CONFIG, add_trust
from vitx.config.loader import load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--config", required=True, help=CONFIG)
  add("--workdir", required=True, help="The directory of the run, which may be gs://...")
  words = "Measures the memory and time of a step, and trains nothing."
  add("--dry_run", action="store_true", help=words)
  add_trust(add)
  add("--coordinator", metavar="HOST:PORT", help="The address of process 0.")
  add("--processes", type=int, help="The number of processes.")
  add("--process", type=int, help="The number of this process, from 0.")


def run(config: str, workdir: str, dry_run: bool, **place: Any) -> int:
  """Trains and returns the exit status."""
  loaded = load_config(config)  # A misspelled config is reported before the slow imports.
  start = time.monotonic()
  from absl import flags, logging

  from vitx.runtime import progress, signals
  from vitx.training import distributed, phases

  progress.SPENT["imports"] = time.monotonic() - start
  flags.FLAGS.mark_as_parsed()  # otherwise absl's first message is that no flags were parsed
  flags.FLAGS["logtostderr"].value = True
  logging.use_absl_handler()
  logging.set_verbosity(logging.WARNING)
  distributed.initialize(**place)
  # In a single process, `is_writer` would start JAX before the number of devices is chosen.
  if distributed.is_joined() and not distributed.is_writer():
    progress.silence()
  result = phases.train(loaded, workdir, dry_run=dry_run)
  if not result.finished:
    print(f"stopped at step {result.step}; run the same command again to resume", flush=True)
    return signals.EXIT_INTERRUPTED
  return 0
