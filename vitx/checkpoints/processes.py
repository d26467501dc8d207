"""Agreement between the processes of a run; a single process has nothing to agree on."""

import jax
import numpy as np
from jax.experimental import multihost_utils

from vitx.checkpoints.errors import CheckpointError


def check_agreement(good: bool, where: str) -> None:
  """Checks that either all processes can read a checkpoint or none can.

  Args:
    good: Whether this process can read it.
    where: The name of the checkpoint, for the error.

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


def ask_first(answer: int) -> int:
  """Returns the value that process 0 passes, in every process."""
  if jax.process_count() == 1:
    return answer
  return int(multihost_utils.broadcast_one_to_all(np.int32(answer)))


def wait_for_all(what: str) -> None:
  """Waits until every process has called this function."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(f"vitx: {what}")
