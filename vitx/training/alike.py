"""Which runs one program trains: those that differ in their seeds and in some scalars alone."""

import json
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from vitx.checkpoints import workdir as wd
from vitx.config.errors import ConfigError
from vitx.config.fields import SEEDS
from vitx.models import resolve_model
from vitx.training.setup import Experiment

# Fields by which runs of one program may differ besides their seeds, as they stand in a config.
SCALARS = ("learning_rate", "optimizer.weight_decay")


def likeness(config: ConfigDict) -> str | None:
  """Returns a text that is the same of configs whose runs one program trains; None if none can.

  Args:
    config: of `get_config`, not resolved.
  """
  if config.get("phases") or jax.process_count() > 1 or config.data.device == "always":
    return None  # the host sends each run of a program its own batches
  plain = wd.to_plain(config)
  seed = plain["seed"] if plain["graph_seed"] is None else plain["graph_seed"]
  if isinstance(plain["model"], dict):  # random graphs are part of the program
    plain["model"] = resolve_model(plain["model"], seed=seed)
  for name in ("seed", *SEEDS):
    del plain[name]
  _take_scalars(plain)
  return json.dumps(plain, sort_keys=True, default=str)


def read_scalars(config: ConfigDict) -> tuple[Any, ...]:
  """Returns the values of `SCALARS`; None where a config leaves one to its default."""
  return _take_scalars(wd.to_plain(config))


def check_states(experiments: Sequence[Experiment]) -> None:
  """Raises ConfigError if the states of runs differ in more than their values."""
  shapes = [jax.tree.map(lambda x: (x.shape, str(x.dtype)), each.shapes) for each in experiments]
  if any(each != shapes[0] for each in shapes):
    raise ConfigError(
      "optimizer.weight_decay changes what this optimizer keeps, so its values cannot be trained in"
      " one program; train each run by itself: --together 1"
    )


def _take_scalars(plain: dict[str, Any]) -> tuple[Any, ...]:
  """Takes the values of `SCALARS` out of a plain config, in place."""
  taken = []
  for path in SCALARS:
    section, _, field = path.rpartition(".")
    group = plain[section] if section else plain
    taken.append(group.pop(field, None) if isinstance(group, dict) else None)
  return tuple(taken)
