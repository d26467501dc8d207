"""Functions that open a model and the data of its run."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from absl import logging

from vitx.checkpoints.load import Loaded
from vitx.config import registry
from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings, RunSettings, SplitSettings, seed_of
from vitx.config.settings import change
from vitx.data.class_names import FILE, compare, renumber
from vitx.data.dataset import (
  CALIBRATION,
  ROLES,
  Dataset,
  DatasetInfo,
  Examples,
  Joined,
  check_arrays,
)
from vitx.data.readable import warn_of_unread
from vitx.data.sources import find_opener, open_dataset
from vitx.data.splits import assign
from vitx.inference.ensemble import Ensemble
from vitx.interop import repository
from vitx.runtime import cache
from vitx.runtime.weights import make_fit
from vitx.tasks.base import Task, init_variables

SPLITS = (*ROLES, CALIBRATION, "all")  # the splits that can be evaluated
# The fields, beside the names of splits, that divide the examples of a data set.
DIVISION = ("validation_choice", "folds", "fold", "groups", "exclude")
Divided = tuple[Dataset, DataSettings]  # an opened data set, and the settings that divide it


@contextlib.contextmanager
def open_model(
  model: Loaded | str | Path,
  checkpoint: str | int = "best",
  *,
  weights: str | None = None,
  source: str | None = None,
  trust_code: bool = False,
  load: Callable[..., Loaded] | None = None,
) -> Iterator[Loaded]:
  """Yields the model; `load`, by default `vitx.load`, reads that of a workdir or a repository.

  If `trust_code` is set, code that the run's config names may be imported inside the `with` block.
  Code that `source` names, which is the caller's own, may be imported in any case.

  Raises:
    ConfigError: The model is loaded already, and `checkpoint` or `weights` name others.
  """
  if isinstance(model, Loaded) and (str(checkpoint) not in ("best", str(model.step)) or weights):
    raise ConfigError(
      f"checkpoint={checkpoint!r}, weights={weights!r}: the model is loaded already, with the"
      f" weights of step {model.step}; name others in vitx.load."
    )
  cache.enable()
  with registry.trusting(trust_code or None):
    if source is not None:
      find_opener(source)
    with registry.trusting(trust_code):
      if not isinstance(model, Loaded):
        model = (load or repository.load)(model, checkpoint, weights=weights)
      yield model


def is_own(loaded: Loaded, source: str | None) -> bool:
  """Returns whether a source is the run's own by its name; None is."""
  return source in (None, loaded.settings.data.source)


def change_folder(loaded: Loaded, data_dir: str | None = None) -> DataSettings:
  """Returns the run's settings of data; `data_dir` replaces its folder of TFDS sets."""
  data = loaded.settings.data
  return data if data_dir is None else change(data, {"data_dir": data_dir})


def open_for(loaded: Loaded, data: DataSettings, source: str | None) -> Divided:
  """Opens a source whose examples the run's network can read; see `change_source`.

  Raises:
    ConfigError: The source cannot be opened, or the network cannot read its examples.
  """
  dataset, data = change_source(loaded, data, source)
  info, known = dataset.info, loaded.task.state_info(loaded.settings)
  if known is None:  # a task of the user's own need not describe its data
    return dataset, data
  inputs = {name: x for name, x in known.spec.items() if name not in loaded.task.targets}
  reads = {name: (x.dtype, len(x.shape)) for name, x in inputs.items()}
  check_arrays(info, reads, loaded.settings.task.name)
  if known.vocabulary and (info.vocabulary or 0) > known.vocabulary:
    raise ConfigError(
      f"source={info.name!r} has {info.vocabulary} different tokens and the model knows"
      f" {known.vocabulary}; choose a source with at most that number."
    )
  return dataset, data


def check_channels(loaded: Loaded, info: DatasetInfo) -> None:
  """Checks that images have the channels that the network reads; others would be broadcast.

  Raises:
    ConfigError: The numbers of channels differ.
  """
  expected = loaded.settings.data.channels
  if "image" in info.spec and info.spec["image"].shape[-1] not in (None, expected):
    channels = info.spec["image"].shape[-1]
    raise ConfigError(
      f"source={info.name!r} has images of {channels} channels; the model takes {expected}."
    )


def change_source(loaded: Loaded, data: DataSettings, source: str | None) -> Divided:
  """Opens the run's source (None) or another, and returns it with the settings that suit it.

  If the run's own source cannot be opened, the error says where it was in training. The fields that
  divide the run's data are kept only if the other source is the run's data under another path or
  name. They name parts of these data, and would divide another source in a way that nobody asked
  for.
  """
  if is_own(loaded, source):
    try:
      return open_dataset(data), data
    except ConfigError as error:
      place = loaded.data.get("places", {}).get("source")
      before = f" In training it was {place}." if place else ""
      raise ConfigError(f"{error}{before} --source names another place.") from error
  data, dataset = change(data, {"source": source}), None
  with contextlib.suppress(ConfigError):  # The source may lack the splits in `data.splits`.
    dataset = open_dataset(data)
  if dataset is not None and dataset.info.fingerprint == loaded.fingerprint:
    return dataset, data
  is_divided = any(data.splits.values())
  whole = {"fraction": 1.0, "calibration": 0.0, "splits": SplitSettings()}
  data = change(data, whole | dict.fromkeys(DIVISION))
  return open_dataset(data) if dataset is None or is_divided else dataset, data


def open_split(
  loaded: Loaded, split: str | None, source: str | None, data_dir: str | None
) -> tuple[Dataset, Examples | None, Examples, str]:
  """Opens the data to evaluate; `vitx.evaluate` documents the arguments.

  Returns:
    The data set, its train (None for "all"), the examples to evaluate, and the name of their split.

  Raises:
    ConfigError: The source cannot be opened, its classes differ, or the split has no examples.
  """
  has_own = is_own(loaded, source)
  split = check_choice(split or ("test" if has_own else "all"), "split", SPLITS)
  data = change_folder(loaded, data_dir)
  dataset, data = open_for(loaded, data, source)
  dataset = _match(loaded, dataset)
  name, is_same = dataset.info.name, dataset.info.fingerprint == loaded.fingerprint
  learned = loaded.learned_splits() if isinstance(loaded, Ensemble) else ()
  if (has_own or is_same) and split in learned:
    raise ConfigError(
      f"split={split!r}: runs of this sweep may have learned from it. Evaluate one of them."
    )
  if has_own and not is_same and loaded.fingerprint:
    logging.warning(
      "%s has changed since the run; its %s may have examples on which the run trained", name, split
    )
  if not has_own and is_same and split in ("train", "all"):
    logging.warning("%s is the data of the run and contains the training examples", name)
  if dataset.problem and not is_same:
    logging.warning(dataset.problem)
  if split == "all":
    warn_of_unread(name, dataset.unread)
    roles: dict[str, Examples] = {split: Joined([*map(dataset.open_split, dataset.splits)])}
  else:
    roles = assign(dataset, data, seed_of(loaded.settings, "data_seed"))
  if not len(roles.get(split, ())):
    fix = f"train with data.{CALIBRATION}=0.1" if split == CALIBRATION else "choose another"
    raise ConfigError(f"split={split!r} of {name!r} has no examples; {fix}.")
  return dataset, roles.get("train"), roles[split], split


def _match(loaded: Loaded, dataset: Dataset) -> Dataset:
  """Returns a data set whose labels are changed to the numbers of the model's classes."""
  names, classes = dataset.info.class_names or (), loaded.class_names
  if not {"label", "labels"} & loaded.task.element_spec.keys():  # classes do not matter
    names = classes = ()
  unnamed = not loaded.knows_class_names
  matched = renumber(dataset, classes, unnamed=unnamed) if names and classes else dataset
  if matched is None or bool(names) != bool(classes):
    raise ConfigError(
      f"source={dataset.info.name!r} has {len(names)} classes and the model has {len(classes)};"
      f" they are matched by name ({compare(names, classes, 'source', 'model')}). Rename the"
      " classes of the source. If the model knows only numbers, list its classes in order in a"
      f" file {FILE} in the source's folder, or beside the weights before `vitx convert`."
    )
  check_channels(loaded, dataset.info)
  return matched


def read_variables(
  settings: RunSettings, info: DatasetInfo, task: Task, *, new_head: bool = True
) -> dict[str, Any]:
  """Returns a network's initial variables, filled with the weights that `settings.init_from` names.

  If `new_head` is set, a head for other classes may be left as initialized.

  Raises:
    ConfigError: The weights cannot be read or do not fit.
  """
  # A trained run needs no names of foreign weights.
  from vitx.interop.init_from import check_source, initial_variables

  fit = dataclasses.replace(make_fit(task, settings, info), new_head=new_head, may_add=False)
  source, key = settings.init_from or "", jax.random.key(seed_of(settings, "init_seed"))
  init = jax.jit(lambda key: init_variables(task, key))
  check_source(source, jax.eval_shape(init, key), fit)
  return initial_variables(source, jax.device_get(init(key)), fit)
