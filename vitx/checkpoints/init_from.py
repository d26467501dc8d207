"""A new run's parameters from another run's: by name, with a report of what became of each."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.checkpoints import tree
from vitx.errors import ConfigError

POSITIONS = "posemb"  # names the position table, or the module that holds it
HEAD = "head"
PREFIXES = (0, 1, 2)  # class and distillation tokens that may stand before the grid


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of each parameter, by name.

  Attributes:
    loaded: taken as they are.
    resized: position tables of another grid, and how.
    head: of other classes, left as initialized.
    skipped: of another shape, left as initialized, and why.
    new: only in the new model, left as initialized.
    unused: only in the source.
  """

  loaded: tuple[str, ...]
  resized: dict[str, str]
  head: dict[str, str]
  skipped: dict[str, str]
  new: tuple[str, ...]
  unused: tuple[str, ...]

  def __str__(self) -> str:
    rows = []
    for field in dataclasses.fields(self):
      names = getattr(self, field.name)
      rows.append(f"{field.name:<8}{len(names):>6}")
      if field.name == "loaded":
        continue  # the rule; the exceptions are worth a line each
      reasons = names if isinstance(names, dict) else dict.fromkeys(names, "")
      rows += [f"  {name}  {reason}".rstrip() for name, reason in reasons.items()]
    return "\n".join(rows)


def transfer(target: Mapping[str, Any], source: Mapping[str, Any]) -> tuple[Any, Report]:
  """Fills freshly initialized parameters with those of the same name and shape.

  A position table (1, N, C) or (N, C) of another N is resized: prefix tokens stay, the square grid
  is interpolated (cubic; Dosovitskiy et al. 2021, section 3.2). A head of other classes stays new.

  Args:
    target: nested dict of arrays, freshly initialized.
    source: nested dict of arrays, trained.

  Returns:
    A tree of the target's structure and dtypes, and the report.

  Raises:
    ConfigError: not one parameter could be loaded.
  """
  fresh, trained = tree.named(target), tree.arrays(source)
  result: dict[str, Any] = dict(fresh)
  loaded, new = [], []
  resized: dict[str, str] = {}
  head: dict[str, str] = {}
  skipped: dict[str, str] = {}
  for name, old in fresh.items():
    if name not in trained:
      new.append(name)
      continue
    found, shapes = trained[name], f"{list(trained[name].shape)} -> {list(old.shape)}"
    if found.shape == old.shape:
      result[name] = found.astype(old.dtype)
      loaded.append(name)
    elif HEAD in name.split("/"):
      head[name] = shapes
    elif POSITIONS not in name.split("/")[-2:]:
      skipped[name] = f"{shapes}: shapes differ"
    elif problem := _not_resizable(found.shape, old.shape):
      skipped[name] = f"{shapes}: {problem}"
    else:
      result[name] = resize_positions(found, np.asarray(old))
      resized[name] = shapes
  if not loaded:
    raise ConfigError(
      f"init_from: none of the {len(fresh)} parameters fits the source, which has"
      f" {len(trained)}; is it the same kind of model?"
    )
  unused = tuple(name for name in trained if name not in fresh)
  report = Report(tuple(loaded), resized, head, skipped, tuple(new), unused)
  return tree.fill(target, result), report


def resize_positions(source: np.ndarray, target: np.ndarray) -> np.ndarray:
  """The source's position table on the target's grid.

  Args:
    source: (1, N, C) or (N, C), N = prefix + side**2.
    target: the same with another N; where it has more prefix tokens, those stay its own.

  Returns:
    Shape and dtype of the target.
  """
  prefix, side = split_length(source.shape[-2])
  new_prefix, new_side = split_length(target.shape[-2])
  channels = source.shape[-1]
  table = source.reshape(-1, channels).astype(np.float32)
  grid = table[prefix:].reshape(side, side, channels)
  grid = jax.image.resize(jnp.asarray(grid), (new_side, new_side, channels), "cubic")
  result = target.reshape(-1, channels).astype(np.float32)
  kept = min(prefix, new_prefix)
  result[:kept] = table[:kept]
  result[new_prefix:] = np.asarray(grid).reshape(-1, channels)
  return result.reshape(target.shape).astype(target.dtype)


def split_length(length: int) -> tuple[int, int]:
  """(prefix, side) with length = prefix + side**2 and the fewest prefix tokens.

  Raises:
    ConfigError: the tokens after at most two prefix tokens form no square.
  """
  for prefix in PREFIXES:
    side = math.isqrt(max(length - prefix, 0))
    if side and side * side == length - prefix:
      return prefix, side
  raise ConfigError(f"{length} positions are no square grid after 0, 1 or 2 prefix tokens")


def _not_resizable(source: tuple[int, ...], target: tuple[int, ...]) -> str:
  """Why a position table cannot be resized; "" if it can."""
  same_kind = len(source) == len(target) and source[-1] == target[-1]
  tables = len(source) == 2 or (len(source) == 3 and source[0] == target[0] == 1)
  if not (same_kind and tables):
    return "only tables (1, N, C) or (N, C) of one width are resized"
  try:
    split_length(source[-2]), split_length(target[-2])
  except ConfigError as error:
    return str(error)
  return ""
