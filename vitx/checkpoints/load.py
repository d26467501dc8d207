"""From a workdir to a model with its weights."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from vitx.checkpoints.init_from import transfer
from vitx.checkpoints.store import CheckpointStore, Restored
from vitx.checkpoints.workdir import checkpoints, read_config, read_json
from vitx.errors import ConfigError
from vitx.models import model_from_config

CHOICES = ("best", "latest")
WANTED = ("params", "ema", "model_state")  # of the training state; the optimizer's is not read


@dataclasses.dataclass(frozen=True, eq=False)
class Loaded:
  """A trained model.

  Attributes:
    model: `model.apply(variables, images)` gives logits for normalized images.
    variables: the collections, "params" among them (the moving average where the run kept one).
    config: the run's, resolved.
    class_names: of the classes.
    fingerprint: of the data it was trained on.
    step: of the checkpoint.
    workdir: where it came from.
  """

  model: nn.Module
  variables: dict[str, Any]
  config: ConfigDict
  class_names: tuple[str, ...]
  fingerprint: str
  step: int
  workdir: str


def load(workdir: str | Path, checkpoint: str | int = "best") -> Loaded:
  """Restores a trained model; needs nothing but the directory.

  Args:
    workdir: of a training run.
    checkpoint: "best" by top-1 on the *select* role (the latest before the first evaluation),
      "latest", or a step. A damaged newest one is skipped with a warning.

  Raises:
    ConfigError: no workdir, no checkpoint yet, or no such step (lists those there are).
    CorruptCheckpoint: the checkpoint, or every one, is damaged.
  """
  config = read_config(workdir)
  restored = _read(workdir, checkpoint)
  state = restored.state
  data = read_json(workdir, "environment.json")["data"]
  return Loaded(
    model=model_from_config(config.model),
    variables={"params": state.get("ema", state["params"]), **state.get("model_state", {})},
    config=config,
    class_names=tuple(data["class_names"]),
    fingerprint=data["fingerprint"],
    step=restored.step,
    workdir=str(workdir),
  )


def initial_params(workdir: str, params: Any) -> Any:
  """Weights for a new run's `params` from another run's best checkpoint; prints what was done.

  A head for other classes starts anew, a position table for another grid is resized.
  """
  loaded = load(workdir)
  params, report = transfer(params, loaded.variables["params"])
  print(f"init_from {workdir}, checkpoint {loaded.step}:\n{report}", flush=True)
  return params


def _read(workdir: str | Path, checkpoint: str | int) -> Restored:
  with CheckpointStore(checkpoints(workdir), read_only=True) as store:
    steps = store.steps()
    choice = str(checkpoint)
    if choice not in CHOICES:
      if choice not in map(str, steps):
        raise ConfigError(
          f"checkpoint={checkpoint!r} is not there; choose best, latest or one of the steps {steps}"
        )
      return store.restore(int(choice), only=WANTED)
    latest = store.restore_latest(only=WANTED)
    if latest is None:
      raise ConfigError(f"workdir={str(workdir)!r} has no checkpoint yet")
    best = latest.record["best_step"]
    if choice == "latest" or best in (None, latest.step):
      return latest
    if best not in steps:
      raise ConfigError(
        f"checkpoint='best' of workdir={str(workdir)!r} was step {best} when step {latest.step} was"
        f" saved, and is no longer there; choose latest or one of the steps {steps}"
      )
    return store.restore(best, only=WANTED)
