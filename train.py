"""Trains a model: `python train.py --config configs/digits.py --workdir runs/digits`.

The same command goes on where a run stopped. Exit status: 0 finished, 75 stopped by SIGTERM or
SIGINT with everything saved (the same command goes on), 1 anything else.
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

from vitx.errors import ConfigError, MissingExtraError

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "A config file, with a row and overrides: configs/digits.py:ROW,field=value."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Where the run keeps everything; gs://... works too."
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Compile, print memory and seconds per step, exit.")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port of process 0, of several hosts.")
_PROCESSES = flags.DEFINE_integer("processes", None, "How many processes there are.")
_PROCESS = flags.DEFINE_integer("process", None, "Which process this is, from 0.")


def main(argv: list[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  # Imported here, so that a misspelled flag is reported at once.
  from vitx.checkpoints.errors import CheckpointError
  from vitx.training import distributed, failures, loop

  assert _WORKDIR.value is not None  # a required flag
  logging.set_verbosity(logging.WARNING)
  try:
    distributed.initialize(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value)
    result = loop.train(_CONFIG.value, _WORKDIR.value, dry_run=_DRY_RUN.value)
  except (
    ConfigError,
    MissingExtraError,
    CheckpointError,
    failures.NonFiniteError,
    failures.OutOfMemoryError,
  ) as error:
    # The message says it all; a traceback would bury it.
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1
  if not result.finished and not _DRY_RUN.value:
    print(f"stopped at step {result.step}; the same command goes on", flush=True)
    return failures.EXIT_INTERRUPTED
  return 0


if __name__ == "__main__":
  flags.mark_flags_as_required(["config", "workdir"])
  app.run(main)
