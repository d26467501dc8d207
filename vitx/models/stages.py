"""Helpers for networks of several stages: fields per stage, and layers numbered over all stages."""

from collections.abc import Sequence
from itertools import accumulate

from vitx.config.checks import Depth, PositiveInt
from vitx.config.errors import ConfigError

# A field of this type has one value for all stages or one for each.
PerStage = PositiveInt | tuple[PositiveInt, ...]
Depths = tuple[Depth, ...]


def per_stage(value: int | Sequence[int], stages: int, field: str) -> tuple[int, ...]:
  """Returns one value for each stage; a single value serves all stages.

  Raises:
    ConfigError: If there is neither a single value nor one for each stage.
  """
  values = tuple(value) if isinstance(value, Sequence) else (value,)
  values = values * stages if len(values) == 1 else values
  if len(values) != stages:
    raise ConfigError(
      f"model.{field}={value!r} must be one value or one for each of the {stages} stages"
    )
  return values


def stage_layers(depth: Sequence[int]) -> list[range]:
  """Returns the layers of each stage, numbered over the whole network.

  Raises:
    ConfigError: If there is no stage.
  """
  if not depth:
    raise ConfigError(f"model.depth={depth!r} must have one entry for each stage, such as (1, 2)")
  ends = accumulate(depth)
  return [range(end - blocks, end) for blocks, end in zip(depth, ends, strict=True)]
