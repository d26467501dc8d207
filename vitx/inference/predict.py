"""Predicts with a trained model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from vitx.checkpoints.load import Loaded
from vitx.config.checks import check_integer
from vitx.config.errors import ConfigError
from vitx.data.in_memory import raise_all
from vitx.inference.inputs import list_inputs, make_reader, name_input
from vitx.inference.opening import open_model
from vitx.models import names
from vitx.training.record.progress import count_bar

BATCH = 64
FEATURES = "features"
WRITTEN = ("logits", FEATURES)  # of the rows, beside the task's columns


@dataclasses.dataclass(frozen=True)
class Prediction:
  """What a model says of examples.

  Attributes:
    rows: what the task's evaluation says of each, arrays (B, ...) by name.
    class_names: of the K classes; () where there are none.
    columns: names and values of what the task tells of each.
    names: the path of each, those in folders too; its number, from 0, of an array.
    skipped: why inputs were left out that could not be read, a line with the path for each.
  """

  rows: Mapping[str, np.ndarray]
  class_names: tuple[str, ...]
  columns: Mapping[str, list[Any]]
  names: tuple[str, ...]
  skipped: tuple[str, ...] = ()

  @property
  def probabilities(self) -> np.ndarray:
    """Class probabilities, float32 (B, K)."""
    return self.rows["probabilities"]

  @property
  def logits(self) -> np.ndarray:
    """What the head says of each class, float32 (B, K)."""
    return self.rows["logits"]

  @property
  def features(self) -> np.ndarray:
    """What the head reads, (B, C); there if `predict` was told `features=True`."""
    return self.rows[FEATURES]

  def top_k(self, k: int) -> list[list[tuple[str, float]]]:
    """Returns the k most probable classes of each example with their probabilities, best first.

    Raises:
      ConfigError: k is not in 1..K.
    """
    check_integer(k, "top_k", f"[1, {len(self.class_names)}]")
    order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
    return [
      [(self.class_names[i], float(p[i])) for i in best]
      for best, p in zip(order, self.probabilities, strict=True)
    ]

  @property
  def classes(self) -> list[str]:
    """The name of the most probable class, per example."""
    return [self.class_names[i] for i in self.probabilities.argmax(axis=1)]


def predict(
  model: Loaded | str | Path,
  inputs: Sequence[Any] | np.ndarray,
  *,
  features: bool = False,
  skip_unreadable: bool = False,
  trust_code: bool = False,
) -> Prediction:
  """Predicts inputs, such as images of any size, prepared as in the run's evaluation.

  Args:
    model: of `vitx.load`, or a workdir (its best checkpoint).
    inputs: what the task reads, see `Task.read_input`. A classifier of images takes paths of image
      files, Pillow's images and arrays (height, width, C), uint8 or float in 0..1, or one array
      (B, height, width, C); any task takes paths of `.npz` files and dicts of arrays, examples as
      the run's source has them. The path of a folder stands for the files beneath it that the task
      reads, sorted.
    features: also return what the network's head reads.
    skip_unreadable: leave inputs out that cannot be read, and say which, if others can.
    trust_code: import what the run's config names as `module:Name`.

  Returns:
    Probabilities and logits (B, K) and class names, or what else the task tells.

  Raises:
    ConfigError: no workdir, an input that cannot be read (names its path), a folder without any, or
      features of a network without a head.
    ValueError: no list, or an array that is no input of the task.
  """
  with open_model(model, trust_code=trust_code) as loaded:
    return _predict(loaded, inputs, features, skip_unreadable)


def _predict(
  loaded: Loaded, inputs: Sequence[Any] | np.ndarray, features: bool, skips: bool
) -> Prediction:
  task, spec = loaded.task, loaded.task.element_spec
  examples = list_inputs(inputs, task)
  evaluate = loaded.program(
    ("predict", features),
    lambda: jax.jit(_with_features(task.evaluate) if features else task.evaluate),
  )
  state = dict(jax.device_put(loaded.variables))
  arguments = (state.pop("params"), state, task.constants())
  read_one = make_reader(task)
  # A few sizes of batches, each compiled once, with blank examples at the end.
  size = min(BATCH, 1 << max(len(examples) - 1, 0).bit_length())
  blank = {name: np.zeros(x.shape, x.dtype) for name, x in spec.items()}
  results, answers, named = [], [], []
  problems: list[ConfigError] = []

  def read(given: Any, number: int) -> dict[str, np.ndarray] | None:
    try:
      return read_one(given, number)
    except ConfigError as error:  # all that cannot be read are named, at the end
      problems.append(error)
      return None

  with count_bar("predicting", len(examples), "input") as bar:
    for start in range(0, max(len(examples), 1), size):
      chunk = examples[start : start + size]
      found = [(i, read(given, i)) for i, given in enumerate(chunk, start)]
      filled = [each for _, each in found if each is not None]
      bar.update(len(chunk))
      if (problems and not skips) or (chunk and not filled):
        continue
      named += [name_input(examples[i], i) for i, each in found if each is not None]
      mask = np.arange(size) < len(filled)
      filled += [blank] * (size - len(filled))
      batch = {name: np.stack([each[name] for each in filled]) for name in spec}
      rows = evaluate(*arguments, {**batch, "mask": mask})["rows"]
      rows = {name: np.asarray(value)[mask] for name, value in rows.items()}
      batch = {name: value[mask] for name, value in batch.items()}
      answers += list(task.prediction_rows(loaded.data, batch, rows))
      results.append(rows)
  if not skips or not results:
    raise_all(problems)
  rows = {name: np.concatenate([each[name] for each in results]) for name in results[0]}
  skipped, columns = tuple(map(str, problems)), _columns(loaded, answers)
  return Prediction(rows, loaded.class_names, columns, tuple(named), skipped)


def _with_features(evaluate: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a task's `evaluate` whose rows also have what the network's head reads."""

  def run(*arguments: Any) -> Any:
    read: list[jax.Array] = []

    def note(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
      if context.module.name == names.HEAD and context.method_name == "__call__":
        read.append(args[0])
      return call(*args, **kwargs)

    with nn.intercept_methods(note):
      result = evaluate(*arguments)
    if not read:
      raise ConfigError(f"features: the network has no module {names.HEAD!r} that reads them")
    return {**result, "rows": {**result["rows"], FEATURES: read[0]}}

  return run


def _columns(loaded: Loaded, answers: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
  """Returns the task's columns but for those of an example's own arrays, made up here."""
  heads = loaded.task.prediction_columns(loaded.data)
  columns = {head: [row[i] for row in answers] for i, head in enumerate(heads)}
  return {head: column for head, column in columns.items() if head not in loaded.task.element_spec}
