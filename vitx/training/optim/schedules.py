"""Learning rate schedules, each with a linear warm-up.

A schedule is a function of the step that returns a share of the peak learning rate. A warm-up of W
steps gives step s = 0, 1, ... the share (s + 1) / W, so that step 0 already learns and step W - 1
has the peak. A decay begins at step W and reaches its final value at step `total_steps`, one after
the last step that is done. Only `epoch_cosine` differs: its rate depends on the epoch.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vitx.config.checks import NonNegative, NonNegativeInt, Probability, Range, Share
from vitx.config.errors import ConfigError
from vitx.config.registry import build
from vitx.training import durations

# A function of the step (an integer scalar, traced or not) that returns the learning rate's share
# of its peak.
Schedule = Callable[[Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class RunLength:
  """The length of a run, as a schedule needs it.

  Attributes:
    total_steps: The step at which the run ends.
    steps_per_epoch: The number of steps per epoch; not an integer in general.
  """

  total_steps: int
  steps_per_epoch: float | Fraction

  def steps(self, duration: str | int, field: str) -> int:
    """Converts a duration in a field of the schedule to steps."""
    return durations.to_steps(duration, self.steps_per_epoch, f"schedule.{field}")

  def epochs(self, steps: int) -> int | Fraction:
    """Converts steps to epochs.

    If a whole number of epochs, rounded to steps, gives exactly `steps`, this whole number is
    returned; otherwise the result is an exact fraction.
    """
    exact = Fraction(steps) / Fraction(self.steps_per_epoch)
    whole = round(exact)
    return whole if round(whole * Fraction(self.steps_per_epoch)) == steps else exact

  def warmup_steps(self, warmup: str | int) -> int:
    """Converts the duration of the warm-up to steps."""
    steps = self.steps(warmup, "warmup")
    if steps > self.total_steps:
      raise ConfigError(
        f"schedule.warmup={warmup!r} takes {steps} steps, but the run has only {self.total_steps}."
      )
    return steps


def constant(run: RunLength, *, warmup: str | int = "0 steps") -> Schedule:
  """Stays at the peak after the warm-up.

  Args:
    run: The length of the run.
    warmup: The duration of the warm-up, at the beginning of the run.
  """
  return _warm_up(run.warmup_steps(warmup), jnp.ones_like)


def cosine(run: RunLength, *, warmup: str | int = "0 steps", final: Probability = 0.0) -> Schedule:
  """Falls from the peak to `final` times the peak on half a cosine (Loshchilov & Hutter, 2017).

  Args:
    run: The length of the run.
    warmup: The duration of the warm-up, at the beginning of the run.
    final: The share of the peak at the end of the run.
  """
  start = run.warmup_steps(warmup)
  decay = optax.cosine_decay_schedule(1.0, max(run.total_steps - start, 1), alpha=final)
  return _warm_up(start, lambda step: decay(jnp.maximum(step - start, 0)))


def linear(run: RunLength, *, warmup: str | int = "0 steps", final: Probability = 0.0) -> Schedule:
  """Falls on a straight line from the peak to `final` times the peak.

  Args:
    run: The length of the run.
    warmup: The duration of the warm-up, at the beginning of the run.
    final: The share of the peak at the end of the run.
  """
  start = run.warmup_steps(warmup)
  decay = optax.linear_schedule(1.0, final, max(run.total_steps - start, 1))
  return _warm_up(start, lambda step: decay(jnp.maximum(step - start, 0)))


def epoch_cosine(
  run: RunLength,
  *,
  warmup: str | int = "0 epochs",
  start: Probability = 0.0,
  final: Probability = 0.0,
  cooldown: str | int = "0 epochs",
  delay: NonNegativeInt = 0,
) -> Schedule:
  """Follows timm's cosine, which changes the rate only between epochs, as for DeiT and LV-ViT.

  The rate rises linearly during the warm-up. After that it follows half a cosine that is counted
  from epoch 0, as if there were no warm-up, and that ends where `cooldown` begins.

  Args:
    run: The length of the run.
    warmup: The duration of the warm-up, at the beginning of the run.
    start: The share of the peak in epoch 0, if there is a warm-up.
    final: The share of the peak at the end of the cosine and from then on.
    cooldown: The duration of the cooldown, at the end of the run.
    delay: The number of epochs by which every rate comes late; DeiT's training code has a delay of
      one epoch.
  """
  rise, rest = run.epochs(run.warmup_steps(warmup)), run.steps(cooldown, "cooldown")
  if rest >= run.total_steps:
    raise ConfigError(
      f"schedule.cooldown={cooldown!r} takes {rest} steps, but the run has only {run.total_steps}."
    )
  fall = run.epochs(run.total_steps - rest)
  first = [
    math.ceil(e * run.steps_per_epoch) for e in range(math.ceil(run.epochs(run.total_steps)))
  ]

  def share(epoch: int) -> float:
    if epoch < rise:
      return start + (1 - start) * float(epoch / rise)
    turn = math.cos(math.pi * float(min(epoch / fall, 1)))
    return final + (1 - final) * (1 + turn) / 2

  shares = np.array([share(max(epoch - delay, 0)) for epoch in range(len(first))], np.float32)
  begins = np.array(first)

  def schedule(step: jax.Array) -> jax.Array:
    return jnp.asarray(shares)[jnp.searchsorted(begins, step, side="right") - 1]

  return schedule


def step(
  run: RunLength,
  *,
  warmup: str | int = "0 steps",
  boundaries: Sequence[str | int] = (),
  factor: Share = 0.1,
) -> Schedule:
  """Multiplies the rate by `factor` at each boundary.

  Args:
    run: The length of the run.
    warmup: The duration of the warm-up, at the beginning of the run.
    boundaries: The durations from the start of the run to each boundary, in ascending order.
    factor: The factor on the rate at a boundary.
  """
  at = [run.steps(boundary, "boundaries") for boundary in boundaries]
  if not at or at != sorted(set(at)):
    raise ConfigError(
      f"schedule.boundaries={tuple(boundaries)!r} must be durations that increase; in steps: {at}."
    )
  falls = optax.piecewise_constant_schedule(1.0, dict.fromkeys(at, factor))
  return _warm_up(run.warmup_steps(warmup), falls)


@dataclasses.dataclass(frozen=True)
class Plateau:
  """Stays at the peak until a figure of the evaluations no longer improves, then falls.

  The schedule itself is constant after its warm-up. Training multiplies it by a scale, which starts
  at 1 and which `update` lowers as PyTorch's `ReduceLROnPlateau` lowers a learning rate: at the
  (patience + 1)-th evaluation in a row that is not better than the best.

  Attributes:
    run: The length of the run.
    warmup: The duration of the warm-up.
    mode: The direction of improvement: a good figure is small ("min", a loss) or large ("max", an
      accuracy).
    factor: The factor by which the scale falls.
    patience: The number of bad evaluations in a row that are tolerated.
    threshold: The margin by which a figure must beat the best to count as better.
    threshold_mode: The unit of the threshold: a share of the best ("rel") or absolute ("abs").
    cooldown: The number of evaluations after a fall that are not counted as bad.
    minimum: The lowest scale: PyTorch's `min_lr` as a share of the peak rate.
    eps: The largest fall of the scale that is ignored as too small.
  """

  run: RunLength
  warmup: str | int = "0 steps"
  mode: Literal["min", "max"] = "min"
  factor: Annotated[float, Range("(0, 1)")] = 0.1
  patience: NonNegativeInt = 10
  threshold: NonNegative = 1e-4
  threshold_mode: Literal["rel", "abs"] = "rel"
  cooldown: NonNegativeInt = 0
  minimum: Probability = 0.0
  eps: NonNegative = 1e-8

  def __call__(self, step: Any) -> jax.Array:
    """Returns the share of the peak at a step, not yet multiplied by the scale."""
    return constant(self.run, warmup=self.warmup)(step)

  def update(self, state: Mapping[str, float] | None, figure: float) -> dict[str, float]:
    """Returns the state of the schedule after one more evaluation, as finite JSON numbers.

    The entry "scale" is the factor on the learning rate; "best" is the best figure so far, "bad"
    the number of bad evaluations in a row, and "cooling" the number of evaluations that remain of
    the cooldown.

    Args:
      state: The state before, or None before the first evaluation.
      figure: The figure of the evaluation.
    """
    sign = 1 if self.mode == "max" else -1
    state = state or {"scale": 1.0, "best": -sign * sys.float_info.max, "bad": 0, "cooling": 0}
    scale, best, bad, cooling = (state[name] for name in ("scale", "best", "bad", "cooling"))
    margin = sign * self.threshold
    bound = best * (1 + margin) if self.threshold_mode == "rel" else best + margin
    is_better = sign * float(figure) > sign * bound
    best, bad = (float(figure), 0) if is_better else (best, bad + 1)
    if cooling > 0:
      cooling, bad = cooling - 1, 0
    if bad > self.patience:
      lower = max(scale * self.factor, self.minimum)
      scale = lower if scale - lower > self.eps else scale
      cooling, bad = self.cooldown, 0
    return {"scale": scale, "best": best, "bad": bad, "cooling": cooling}


SCHEDULES: dict[str, Callable[..., Schedule]] = {
  "constant": constant,
  "cosine": cosine,
  "epoch_cosine": epoch_cosine,
  "linear": linear,
  "step": step,
  "plateau": Plateau,
}


def make_schedule(
  spec: str | Mapping[str, Any], total_steps: int, steps_per_epoch: float | Fraction
) -> Schedule:
  """Returns the share of the peak learning rate as a function of the step < `total_steps`.

  Args:
    spec: The value of `config.schedule`: a name in `SCHEDULES`, or `module:function` for a schedule
      of your own, with its fields. Such a function takes `(run, **fields)` and returns the share of
      the peak as a function of the step.
    total_steps: The step at which the run ends.
    steps_per_epoch: The number of examples divided by the batch size.

  Returns:
    A function of the step (int32 scalar, may be traced) whose result is a float32 scalar.
  """
  share = build(SCHEDULES, spec, "schedule", hidden=("run",))(
    RunLength(total_steps, steps_per_epoch)
  )
  return lambda step: jnp.asarray(share(jnp.asarray(step)), jnp.float32)


def _warm_up(warmup: int, share: Schedule) -> Schedule:
  """Returns the schedule `share`, multiplied by a linear warm-up of `warmup` steps."""
  if warmup == 0:
    return share
  return lambda step: share(step) * jnp.minimum((step + 1) / warmup, 1.0)
