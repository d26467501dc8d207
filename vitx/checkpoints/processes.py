"""Lets the processes of a run exchange values and wait for each other.

If the run has a single process, these functions return at once.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils

from vitx.checkpoints.errors import CheckpointError


def check_agreement(good: bool, where: str) -> None:
  """Checks that either all processes can read the checkpoint `where` or none can.

  Raises:
    CheckpointError: Only some processes can read the checkpoint.
  """
  if jax.process_count() == 1:
    return
  verdicts = np.asarray(multihost_utils.process_allgather(np.int32(good)))
  if verdicts.min() != verdicts.max():
    raise CheckpointError(
      f"only processes {np.flatnonzero(verdicts).tolist()} of {verdicts.size} can read {where};"
      " all hosts must see the same directory."
    )


def broadcast_first(value: int) -> int:
  """Returns, in every process, the value that process 0 passes to this function."""
  if jax.process_count() == 1:
    return value
  return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def wait_for_all(name: str) -> None:
  """Waits until every process has called this function with the same name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(f"vitx: {name}")
