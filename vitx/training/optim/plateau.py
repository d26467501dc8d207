"""A learning rate that falls when a metric stops improving."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vitx.config.checks import NonNegative, NonNegativeInt, Probability, Range
from vitx.config.registry import build

PlateauFactor = Annotated[float, Range("(0, 1)")]
_STATE = ("scale", "best", "bad", "cooling")
# Worse than any metric, but finite, since JSON has no infinity.
_WORST = sys.float_info.max


@dataclasses.dataclass(frozen=True)
class Plateau:
  """PyTorch's `ReduceLROnPlateau` as an immutable value: `update` returns a new one.

  The scale is a factor on the learning rate. It starts at 1 and moves as PyTorch's learning rate
  does when that starts at 1. It falls at the (patience + 1)-th evaluation in a row that is not
  better than the best.

  Attributes:
    mode: The direction of improvement: a good metric is small ("min", a loss) or large ("max", an
      accuracy).
    factor: The factor by which the scale falls.
    patience: The number of bad evaluations in a row that are tolerated.
    threshold: The margin by which a metric must beat the best to count as better.
    threshold_mode: The unit of the threshold: a share of the best ("rel") or absolute ("abs").
    cooldown: The number of evaluations after a fall that are not counted as bad.
    minimum: The lowest scale: PyTorch's `min_lr` as a share of the peak rate.
    eps: The largest fall that is too small to be made, as a share of the peak rate.
    scale: The state's factor on the learning rate.
    best: The state's best metric so far.
    bad: The state's number of bad evaluations in a row.
    cooling: The state's number of evaluations that remain of the cooldown.
  """

  mode: Literal["min", "max"] = "min"
  factor: PlateauFactor = 0.1
  patience: NonNegativeInt = 10
  threshold: NonNegative = 1e-4
  threshold_mode: Literal["rel", "abs"] = "rel"
  cooldown: NonNegativeInt = 0
  minimum: Probability = 0.0
  eps: NonNegative = 1e-8
  scale: float = 1.0
  best: float | None = None
  bad: int = 0
  cooling: int = 0

  def __post_init__(self):
    if self.best is None:
      object.__setattr__(self, "best", _WORST if self.mode == "min" else -_WORST)

  @classmethod
  def from_config(
    cls, spec: Mapping[str, Any], state: Mapping[str, float] | None = None
  ) -> "Plateau":
    """Returns the plateau of `config.schedule`, at its start or in a state from `to_dict`.

    Args:
      spec: The schedule's entry; its name and warm-up do not concern the plateau.
      state: The result of `to_dict`; None for the start.

    Raises:
      ConfigError: A field is unknown (the error names the nearest) or out of range.
      ValueError: `state` is no result of `to_dict`.
    """
    settings = {key: value for key, value in spec.items() if key != "warmup"}
    plateau = build({"plateau": cls}, settings, "schedule", hidden=_STATE)()
    if state is None:
      return plateau
    if set(state) != set(_STATE):
      raise ValueError(f"state of a plateau needs {', '.join(_STATE)}, not {', '.join(state)}")
    values: dict[str, Any] = dict(state)
    return dataclasses.replace(plateau, **values)

  def to_dict(self) -> dict[str, float]:
    """Returns the state as finite JSON numbers, from which `from_config` restores it exactly."""
    return {name: getattr(self, name) for name in _STATE}

  def update(self, metric: float) -> "Plateau":
    """Returns the plateau after one more evaluation, whose figure is `metric`."""
    metric = float(metric)
    better = self._is_better(metric)
    best = metric if better else self.best
    bad = 0 if better else self.bad + 1
    cooling, scale = self.cooling, self.scale
    if cooling > 0:
      cooling, bad = cooling - 1, 0
    if bad > self.patience:
      lower = max(scale * self.factor, self.minimum)
      scale = lower if scale - lower > self.eps else scale
      cooling, bad = self.cooldown, 0
    return dataclasses.replace(self, scale=scale, best=best, bad=bad, cooling=cooling)

  def _is_better(self, metric: float) -> bool:
    assert self.best is not None  # set in __post_init__
    sign = 1 if self.mode == "max" else -1
    margin = sign * self.threshold
    bound = self.best * (1 + margin) if self.threshold_mode == "rel" else self.best + margin
    return sign * metric > sign * bound
