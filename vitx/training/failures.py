"""Ends a run whose loss is not finite, or for which the memory is too small."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from vitx.config.errors import UserError
from vitx.config.fields import RunSettings
from vitx.models.create import find_mixer


class NonFiniteError(UserError, ArithmeticError):
  """The loss, a gradient or a figure of an evaluation is not a finite number."""


class OutOfMemoryError(UserError, RuntimeError):
  """The device has too little memory for the step."""


class PrunedError(UserError, RuntimeError):
  """A search has ended a run that validates worse than others."""


class TrackingError(UserError, RuntimeError):
  """A tracker of metrics cannot be reached, or does not work."""


def check_finite(
  step: int, figures: Mapping[str, Any], *, what: str = "", last_good: Callable
) -> None:
  """Raises NonFiniteError if a figure of a step or an evaluation is not finite.

  Args:
    step: The number of the training step, or of the step after which the state was evaluated.
    figures: The figures by name. Floats and lists of floats are checked, other values are not.
    what: The beginning of the error message, before the name of the figure.
    last_good: A function that returns the step of the last checkpoint, or None if there is none.
  """
  for name, figure in figures.items():
    for value in figure if isinstance(figure, list | tuple) else (figure,):
      if isinstance(value, float) and not math.isfinite(value):
        raise NonFiniteError(
          f"{what}{name} is {value} at step {step}; the last good checkpoint is {last_good()}."
          " Lower learning_rate, lengthen schedule.warmup or set grad_clip_norm."
        )


@contextlib.contextmanager
def explain_out_of_memory(
  settings: RunSettings, tokens: Callable[[], int | None], workdir: str = ""
) -> Iterator[None]:
  """Replaces XLA's out-of-memory error in a `with` block by an OutOfMemoryError with advice.

  Args:
    settings: The run's settings.
    tokens: A function that returns the number of tokens of an example; None if it is unknown.
    workdir: The workdir, whose `config.json` the advice names; "" if the run has no workdir.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    name = find_mixer(settings.model).get("name", "none")
    written = f"{workdir.rstrip('/')}/config.json" if workdir else "CONFIG"
    raise OutOfMemoryError(
      f"out of memory: batch_size={settings.batch_size} over {jax.device_count()} devices,"
      f" grad_accum_steps={settings.grad_accum_steps}, {tokens() or '?'} tokens per example,"
      f" token_mixer={name}. `vitx plan --config {written}` names the largest batch that fits, and"
      f" what saves memory.\n{str(error).splitlines()[0]}"
    ) from error
