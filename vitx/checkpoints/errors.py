"""The errors that are raised if a checkpoint cannot be written or read."""

import re

from vitx.config.errors import ConfigError, UserError

# Errors in reading whose cause is not the content of the checkpoint.
TRANSIENT = (PermissionError, MemoryError, TimeoutError, ConnectionError)
TRANSIENT_CODES = ("PERMISSION_DENIED", "UNAUTHENTICATED", "UNAVAILABLE", "RESOURCE_EXHAUSTED")
HALF = 150  # characters that are kept at either end of a long message


class CheckpointError(UserError, RuntimeError):
  """A checkpoint could not be written or read; existing checkpoints are untouched."""


class CorruptCheckpoint(CheckpointError):  # noqa: N818 (a state of the checkpoint)
  """A checkpoint differs from what was saved: it is truncated, incomplete or altered."""


class ShapeMismatch(ConfigError):  # noqa: N818
  """The arrays of an intact checkpoint do not have the names, shapes or dtypes that are needed."""


def make_corrupt_error(where: str, part: str, why: str) -> CorruptCheckpoint:
  """Returns the error which says that a part of a checkpoint has changed since it was saved."""
  return CorruptCheckpoint(f"{where} is corrupt: {part}: {why}.")


def make_read_error(where: str, part: str, error: Exception) -> CheckpointError:
  """Returns the error which says that a part of a checkpoint cannot be read.

  The error is a `CorruptCheckpoint`, unless memory, permission or a connection was missing.
  """
  if isinstance(error, TRANSIENT) or any(code in str(error) for code in TRANSIENT_CODES):
    return CheckpointError(f"cannot read the {part} of {where}: {format_error(error)}")
  return make_corrupt_error(where, part, format_error(error))


def format_error(error: Exception) -> str:
  """Formats an error and its notes as one line; the middle of a long message is left out."""
  text = re.sub(r" \[tensorstore_spec=.*?\}'\]", "", " ".join(str(error).split())).rstrip(".")
  if len(text) > 2 * HALF:
    text = f"{text[:HALF]} ... {text[-HALF:]}"
  notes = "".join(f"{note}: " for note in getattr(error, "__notes__", ()))
  return f"{notes}{type(error).__name__}: {text}"
