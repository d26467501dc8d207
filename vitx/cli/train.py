"""Trains a model, or goes on where its run stopped: `vitx train`."""

from typing import Any

from vitx.config.loader import load_config


def run(
  config: str,
  workdir: str,
  dry_run: bool,
  trust_code: bool,
  coordinator: str | None,
  processes: int | None,
  process: int | None,
) -> int:
  """Trains and returns the exit status."""
  loaded = load_config(config)  # what is misspelled is said before the heavy imports
  from absl import logging

  from vitx.training import distributed, failures, phases

  logging.use_absl_handler()
  logging.set_verbosity(logging.WARNING)
  distributed.initialize(coordinator, processes, process)
  phases.use_cores([loaded])
  more: Any = {"trust_code": True} if trust_code else {}
  result = phases.train(loaded, workdir, dry_run=dry_run, **more)
  if not result.finished:
    print(f"stopped at step {result.step}; the same command goes on", flush=True)
    return failures.leave(failures.EXIT_INTERRUPTED)
  return 0
