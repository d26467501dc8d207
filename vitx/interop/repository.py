"""Trained models as repositories: a folder, or `hf:OWNER/NAME` on the Hugging Face Hub.

A repository has `model.safetensors`, `vitx.json` and a model card. `vitx.json` has the resolved
config, a description of the data, the step, and the naming scheme of the weights: a family of
`foreign_names`, or "vitx" for vitx's own names. Nothing in a repository is executed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.checkpoints import load as checkpoints
from vitx.checkpoints import tree
from vitx.checkpoints import workdir as wd
from vitx.checkpoints.load import CHOICES, Loaded, assemble
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings, read_settings, without_lora
from vitx.interop import hub
from vitx.models import lora

WEIGHTS = hub.FILES[0]
OWN = "vitx"  # vitx's own names of arrays, such as "params/block_0/mlp/up/kernel"


def load(
  workdir: str | Path,
  checkpoint: str | int = "best",
  *,
  weights: str | None = None,
  trust_code: bool = False,
) -> Loaded:
  """Restores a trained model from a workdir or a repository alone.

  Args:
    workdir: The workdir of a training run, or a repository that `vitx convert` wrote: a folder,
      `hf:OWNER/NAME` or `hf:OWNER/NAME@REVISION`. If the run has phases, the last phase with a
      checkpoint is loaded.
    checkpoint: "best", by the task's primary metric on *validation* (the latest, before the first
      evaluation); "latest", the newest saved state, even if a signal interrupted its evaluation; or
      a step. If the newest checkpoints are damaged, they are skipped with a warning; a damaged best
      one is an error. A repository has one checkpoint.
    weights: The weights: "ema", the moving average; "raw"; or None for the weights that chose the
      best checkpoint (the first of `evaluation.weights`, or "raw" if the run has no average). A
      repository has one kind of weights and needs None.
    trust_code: Whether the config may name code outside vitx (`module:Name`), which is imported.

  Returns:
    The model: `model`, the Flax module; `variables`, its collections of arrays; `task`, which
    prepares its inputs; `config`; `class_names`; `step`; and `data`, the record of the data.

  Raises:
    ConfigError: The workdir does not exist, has no checkpoint yet, or lacks the wanted step (the
      message lists all steps) or the wanted weights. This error is also raised if the
      repository does not exist, cannot be read or was not written by vitx, or if no model can be
      built from the config.
    ShapeMismatch: The checkpoint's arrays are not those of the config's model.
    CorruptCheckpoint: The wanted checkpoint is damaged, or all checkpoints are.
    MissingExtraError: A package that reads the repository is not installed.
  """
  folder = find_folder(workdir)
  if folder is None:
    return checkpoints.load(
      workdir, checkpoint, weights=weights, trust_code=trust_code, add_base=_add_base
    )
  place, record = str(workdir), wd.read_json(folder, wd.REPOSITORY)
  step, names = record["step"], record["names"]
  if str(checkpoint) not in (*CHOICES, str(step)) or weights is not None:
    raise ConfigError(
      f"checkpoint={checkpoint!r} or weights={weights!r} does not exist in workdir={place!r}, which"
      f" has only step {step} and one kind of weights; leave them out."
    )

  def read(settings: Any, task: Any, wanted: dict[str, Any]) -> tuple[dict[str, Any], int]:
    from vitx.interop import foreign  # A workdir does not need the names of foreign weights.

    where = f"workdir={place!r}: {WEIGHTS}"
    arrays = foreign.read_safetensors(_find_weights(place, folder), where)
    try:
      variables = tree.nest(_to_ours(arrays, names, wanted))
    except ConfigError as error:
      raise ConfigError(f"{where} cannot be read: {error}") from error
    tree.check_match(tree.name_leaves(variables), wanted, where)
    return variables, step

  return assemble(place, record["config"], record["data"], read, trust_code=trust_code)


def _add_base(settings: RunSettings, task: Any, shapes: dict[str, Any], trained: Any) -> Any:
  """Returns all parameters of a network, with adapters merged into those of `init_from`."""
  from vitx.interop.init_from import read_base

  constants, _ = read_base(settings, task, shapes)

  def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    # Every machine gets these bits, so that the result can be the base of other adapters.
    return sum(np.multiply.outer(a[..., i], b[i]) for i in range(len(b)))

  return lora.merge(trained, constants, multiply)


def find_folder(place: Any) -> str | None:
  """Returns the local folder of a repository's `vitx.json`, or `None` for a workdir."""
  if hub.is_name(str(place)):
    path = hub.find(str(place), (wd.REPOSITORY,), "workdir")
    return path and os.path.dirname(path)
  local = "://" not in str(place)
  return str(place) if local and os.path.isfile(wd.join(place, wd.REPOSITORY)) else None


def is_weights(source: str) -> bool:
  """Returns whether `source` names weights without a config of vitx.

  Such weights are in a file, or in a repository of the Hub that vitx did not write. If files of the
  repository are in the cache, the Hub is not asked.
  """
  if not source.startswith(hub.PREFIX):
    from vitx.interop import foreign

    return foreign.is_file(source)
  if hub.is_cached(source, (wd.REPOSITORY,)):
    return False
  return hub.is_cached(source, hub.FILES) or hub.find(source, (wd.REPOSITORY,)) is None


def read_run_settings(source: str) -> RunSettings:
  """Returns the resolved settings of a repository or of a run (of the last of its phases)."""
  _, config, _ = _read_record(source, find_folder(source))
  return without_lora(read_settings(config))


def load_shapes(source: str) -> Loaded:
  """Returns the model of a workdir or a repository with zeros in place of its weights.

  The weights are not read. Code that the config names is imported only as `registry.trusting`
  allows.
  """
  folder = find_folder(source)
  place, config, data = _read_record(source, folder)
  if folder is None and not wd.list_steps(place):
    raise ConfigError("it has no checkpoint yet; wait until that run saves one.")
  return assemble(place, config, data, lambda *x: (tree.zeros(x[-1]), 0), trust_code=False)


def _read_record(source: str, folder: str | None) -> tuple[str, dict[str, Any], dict[str, Any]]:
  """Returns the place, the config and the record of the data of a repository or of a run."""
  if folder is None:
    place = wd.find_run(source)
    return place, *wd.read_run(place)
  record = wd.read_json(folder, wd.REPOSITORY)
  return source, record["config"], record["data"]


def to_stored(variables: Mapping[str, Any], names: str) -> dict[str, np.ndarray]:
  """Returns a model's arrays under the names of a scheme: "vitx" or a family of `foreign_names`."""
  from vitx.interop.foreign_names import to_theirs

  arrays = tree.name_arrays(variables)
  return arrays if names == OWN else to_theirs(arrays, names)


def _to_ours(
  arrays: dict[str, np.ndarray], names: str, wanted: Mapping[str, Any]
) -> dict[str, np.ndarray]:
  """Returns arrays of a naming scheme under vitx's names; others, which do not fit, as they are."""
  if names == OWN:
    return arrays
  from vitx.interop.foreign import FAMILIES, count_heads
  from vitx.interop.naming import convert_in

  ours, left = convert_in(FAMILIES[names].rules, arrays, count_heads(wanted["params"]))
  return {**ours, **{name: arrays[name] for name in left}}


def _find_weights(place: str, folder: str) -> str:
  """Returns the path of a repository's weights, of the commit to which `vitx.json` belongs."""
  if not hub.is_name(place):
    return wd.join(folder, WEIGHTS)
  name, _ = hub.split(place)
  return hub.download(f"{hub.PREFIX}{name}@{os.path.basename(folder)}", (WEIGHTS,), "workdir")
