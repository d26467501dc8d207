"""Joins the runs of a sweep over seeds or folds into one model, which averages their answers."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from etils import epath

from vitx.checkpoints import workdir as wd
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.metrics import read_test_row
from vitx.config.errors import ConfigError, listing
from vitx.interop.repository import load
from vitx.tasks.classification import Classification
from vitx.tasks.classification_figures import classification_sums


@dataclasses.dataclass(frozen=True)
class AverageClassification(Classification):
  """The task of an ensemble, whose logits are the logarithms of its members' mean probabilities.

  Attributes:
    members: The tasks of the members. The variables of member i have the name "i" in each
      collection.
  """

  members: tuple[Classification, ...] = ()

  def evaluate(self, params, state, constants, batch):
    """Returns the sums for `summarize`, and the probabilities and logits (B, K) of a batch."""
    answers = []
    for number, member in enumerate(self.members):
      key = str(number)
      variables = {name: trees[key] for name, trees in state.items()}
      rows = member.evaluate(params[key], variables, constants, batch)["rows"]
      answers.append(jax.nn.log_softmax(rows["logits"]))
    logits = jax.nn.logsumexp(jnp.stack(answers), axis=0) - math.log(len(answers))
    return classification_sums(logits, batch["label"], batch["mask"], self.num_classes)


@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble(Loaded):
  """Trained models that answer as one: the class probabilities are the mean of theirs.

  The settings, the data and the step are those of the first member.

  Attributes:
    members: The models.
  """

  members: tuple[Loaded, ...] = ()

  def learned_splits(self) -> tuple[str, ...]:
    """Returns the splits of the members' data with examples that a member may have learned from."""
    return ("train", "validation", "all", *["test"] * (len(self._list_folds()) > 1))

  def by_fold(self) -> list[Loaded]:
    """Returns the ensemble of the members of each fold, which all lack one part of train."""
    folds = self._list_folds()
    parts = [[x for x in self.members if x.settings.data.fold == fold] for fold in folds]
    return [self] if len(parts) == 1 else [join(part, self.workdir) for part in parts]

  def _list_folds(self) -> list[int | None]:
    """Returns the folds of the members, each once."""
    return [*dict.fromkeys(member.settings.data.fold for member in self.members)]


def join(members: Sequence[Loaded], place: str) -> Loaded:
  """Returns the ensemble of models, or the only model.

  Args:
    members: The models, whose configs differ at most in seeds and in the fold.
    place: The directory that has them.

  Raises:
    ConfigError: The models have other classes or data, or are no classifiers of one class per
      example.
  """
  first, tasks = members[0], [member.task for member in members]
  if len(members) == 1:
    return first
  is_known = all(isinstance(x, Classification) and x.targets == ("label",) for x in tasks)
  if not is_known or len({(member.class_names, member.fingerprint) for member in members}) > 1:
    raise ConfigError(f"workdir={place!r}: an ensemble needs classifiers of the same data.")
  fields = {x.name: getattr(tasks[0], x.name) for x in dataclasses.fields(Classification)}
  return Ensemble(
    settings=first.settings,
    task=AverageClassification(**fields, members=tuple(tasks)),  # type: ignore[arg-type]
    variables={
      name: {str(i): x.variables[name] for i, x in enumerate(members)} for name in first.variables
    },
    data=first.data,
    step=first.step,
    workdir=place,
    members=tuple(members),
  )


def load_model(workdir: str | Path, checkpoint: str | int = "best", **options: Any) -> Loaded:
  """Loads a model as `vitx.load` does, or the ensemble of the finished runs of a sweep.

  Args:
    workdir: The workdir or the repository of a model; or the directory of a sweep, or its directory
      and the name of a method, such as `runs/sweep/performer`, if it has several.
    checkpoint: The checkpoint, see `vitx.load`, of each run.
    **options: Other arguments of `vitx.load`.

  Raises:
    ConfigError: The sweep has several methods, or a model cannot be loaded.
  """
  place = epath.Path(workdir)
  method = None if place.exists() else place.name
  records = wd.list_points(place if method is None else place.parent)
  runs = [run for run, name in records.items() if method in (None, name)]
  if len(methods := sorted({records[run] for run in runs})) > 1:
    raise ConfigError(
      f"workdir={str(workdir)!r} has the methods {listing(methods)}; add the name of one, as in"
      f" {str(place / methods[0])!r}."
    )
  finished = [run for run in runs if read_test_row(run)]
  if len(finished) < len(runs):
    logging.warning("%s: %d of %d runs are finished", workdir, len(finished), len(runs))
  if not finished:  # of a sweep, or this is no sweep
    return load(workdir, checkpoint, **options)
  return join([load(run, checkpoint, **options) for run in finished], str(workdir))
