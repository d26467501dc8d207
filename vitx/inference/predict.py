"""Runs a trained model on a user's inputs, such as image files, and returns its predictions."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import numpy as np

from vitx.checkpoints import tree
from vitx.checkpoints.load import Loaded
from vitx.config.checks import check_choice, check_integer
from vitx.config.errors import ConfigError, listing
from vitx.data.in_memory import raise_all
from vitx.inference.ensemble import Ensemble, load_model
from vitx.inference.inputs import list_inputs, make_reader, name_input
from vitx.inference.opening import open_model
from vitx.models import names
from vitx.ops.layout import TokenLayout
from vitx.runtime.progress import count_bar

BATCH = 64
FEATURES, PATCHES = "features", "patches"
# The rows that files have in addition to the task's columns.
WRITTEN = ("logits", FEATURES, PATCHES)


@dataclasses.dataclass(frozen=True)
class Prediction:
  """The predictions of a model for B inputs.

  Attributes:
    rows: The outputs of the task, such as probabilities: arrays (B, ...) by name.
    class_names: The names of the K classes, or () if there are none.
    columns: The columns of a table of the predictions: lists of B values by column name.
    sets: The classes of each input's prediction set, the most probable first; None without
      `coverage`.
    names: The names of the inputs. An input's name is its path, or its number from 0 if it has no
      path.
    skipped: A line for each unreadable input that was left out, with its path and the reason.
  """

  rows: Mapping[str, np.ndarray]
  class_names: tuple[str, ...]
  columns: Mapping[str, list[Any]]
  names: tuple[str, ...]
  skipped: tuple[str, ...] = ()
  sets: list[list[str]] | None = None

  @property
  def probabilities(self) -> np.ndarray:
    """Class probabilities, float32 (B, K)."""
    return self.rows["probabilities"]

  @property
  def logits(self) -> np.ndarray:
    """The logits of the classes, float32 (B, K)."""
    return self.rows["logits"]

  @property
  def features(self) -> np.ndarray:
    """The vectors that the network's last layer reads, (B, C), if `predict` got `features=True`."""
    return self.rows[FEATURES]

  @property
  def patches(self) -> np.ndarray:
    """The tokens before pooling, (B, rows, columns, C), if `predict` got `features="patches"`."""
    return self.rows[PATCHES]

  def top_k(self, k: int) -> list[list[tuple[str, float]]]:
    """Returns the k most probable classes of each example with their probabilities, best first.

    Raises:
      ConfigError: `k` is not in 1..K.
    """
    check_integer(k, "top_k", f"[1, {len(self.class_names)}]")
    order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
    return [
      [(self.class_names[i], float(p[i])) for i in best]
      for best, p in zip(order, self.probabilities, strict=True)
    ]

  @property
  def classes(self) -> list[str]:
    """The name of the most probable class of each example."""
    return [self.class_names[i] for i in self.probabilities.argmax(axis=1)]


def predict(
  model: Loaded | str | Path,
  inputs: Sequence[Any] | np.ndarray,
  *,
  features: bool | Literal["patches"] = False,
  coverage: float | None = None,
  skip_unreadable: bool | None = None,
  trust_code: bool = False,
) -> Prediction:
  """Returns the predictions of a model for inputs, such as images of any size.

  Inputs are prepared as in the run's evaluation.

  Args:
    model: A model that `vitx.load` returned, or the workdir or the repository of one, whose best
      checkpoint is loaded. A sweep over seeds or folds is one model, see `vitx.evaluate`.
    inputs: The inputs of the task, see `Task.read_input`. A classifier of images takes paths of
      image files, Pillow images and arrays (height, width, C), uint8 or float in 0..1, or one array
      (B, height, width, C). Any task takes dicts of arrays and paths of `.npz` files, whose arrays
      have the names and shapes of those in an example of the run's data. The path of a folder means
      all files in it that the task can read, at any depth and in sorted order.
    features: Whether to also return the input of the network's head, or with "patches" the token of
      each patch, which the pool reads, on the grid of the patches. A sweep has none, since each run
      has its own.
    coverage: The probability with which the set of an input is to contain its class, see
      `vitx.analysis.prediction_sets`. The sets are calibrated on the examples that the run's
      `data.calibration` set aside, so the run's data must be there. None makes no sets.
    skip_unreadable: Whether to leave out unreadable inputs and list them in `skipped`; None does so
      if the run's `data.on_unreadable` is "skip". At least one input must be readable.
    trust_code: Whether to import the objects that the run's config names as `module:Name`.

  Returns:
    The probabilities and logits (B, K) and class names, or the outputs of another task.

  Raises:
    ConfigError: The workdir does not exist, an input cannot be read (the message names its path),
      the network has no head or pool for `features`, or the run no examples for `coverage`.
    ValueError: The inputs are not a list, or are an array that does not fit the task.
  """
  with open_model(model, trust_code=trust_code, load=load_model) as loaded:
    task, spec = loaded.task, loaded.task.element_spec
    if features and isinstance(loaded, Ensemble):
      raise ConfigError("each run of a sweep has its own features; name one run as the workdir.")
    choose_sets = None if coverage is None else _calibrate(loaded, coverage)
    if skip_unreadable is None:
      skip_unreadable = skips_unreadable(loaded)
    examples = list_inputs(inputs, task)
    check_choice(features, "features", (False, True, PATCHES))
    function = {False: lambda x: x, True: with_features, PATCHES: _with_patches}[features](
      task.evaluate
    )
    evaluate = loaded.program(("predict", features), lambda: jax.jit(function))
    state = dict(jax.device_put(loaded.variables))
    arguments = (state.pop("params"), state, task.constants())
    read = make_reader(task)
    # Batches are padded with blank examples to a few sizes, so that few programs are compiled.
    size = min(BATCH, 1 << max(len(examples) - 1, 0).bit_length())
    blank = tree.zeros(dict(spec))
    results, parts, named = [], [], []
    problems: list[ConfigError] = []
    with count_bar("predicting", len(examples), "input") as bar:
      for start in range(0, max(len(examples), 1), size):
        chunk = examples[start : start + size]
        filled = []
        for number, entry in enumerate(chunk, start):
          try:
            filled.append(read(entry, number))
            named.append(name_input(entry, number))
          except ConfigError as error:  # All unreadable inputs are reported together at the end.
            problems.append(error)
        bar.update(len(chunk))
        if (problems and not skip_unreadable) or (chunk and not filled):
          continue
        mask = np.arange(size) < len(filled)
        filled += [blank] * (size - len(filled))
        batch = {name: np.stack([example[name] for example in filled]) for name in spec}
        rows = evaluate(*arguments, {**batch, "mask": mask})["rows"]
        rows = {name: np.asarray(value)[mask] for name, value in rows.items()}
        batch = {name: value[mask] for name, value in batch.items()}
        parts.append(task.predictions(loaded.class_names, batch, rows))
        results.append(rows)
    if not skip_unreadable or not results:
      raise_all(problems, "" if skip_unreadable else "skip_unreadable=True leaves them out.")
    rows = {name: np.concatenate([result[name] for result in results]) for name in results[0]}
    # The columns that need labeled examples are left out.
    heads, skipped = [head for head in parts[0] if head not in spec], tuple(map(str, problems))
    columns = {head: [value for part in parts for value in part[head]] for head in heads}
    sets = choose_sets and choose_sets(rows["logits"])
    return Prediction(rows, loaded.class_names, columns, tuple(named), skipped, sets)


def _calibrate(loaded: Loaded, coverage: float) -> Callable[[np.ndarray], list[list[str]]]:
  """Returns a function of logits (B, K), which names the classes in each prediction set."""
  from vitx.inference.collector import calibrate_sets  # which most predictions do not need

  threshold = calibrate_sets(loaded, loaded.settings, coverage)

  def choose_sets(logits: np.ndarray) -> list[list[str]]:
    orders = np.argsort(-logits, axis=1, kind="stable")
    pairs = zip(orders, threshold.choose(logits), strict=True)
    return [[loaded.class_names[i] for i in order if is_in[i]] for order, is_in in pairs]

  return choose_sets


def skips_unreadable(loaded: Loaded) -> bool:
  """Returns whether the run left out unreadable examples, by `data.on_unreadable`."""
  return loaded.settings.data.on_unreadable == "skip"


def with_features(
  evaluate: Callable[..., Any], heads: Collection[str] = (names.HEAD,)
) -> Callable[..., Any]:
  """Wraps a task's `evaluate`, so that its `rows` also have `features`.

  Features are the vectors that the network's last layer reads. The returned function raises
  ConfigError if the network has none of the modules in `heads`.

  Args:
    evaluate: The method `Task.evaluate`.
    heads: The names of modules that may be the last layer; the first one that runs is taken.
  """

  return _with_input(evaluate, heads, FEATURES, lambda x: x)


def _with_patches(evaluate: Callable[..., Any]) -> Callable[..., Any]:
  """Wraps a task's `evaluate`, so that its `rows` also have the tokens that the pool reads."""

  def unroll(tokens: jax.Array, layout: TokenLayout) -> jax.Array:
    return tokens[:, layout.prefix :].reshape(tokens.shape[0], *layout.grid, tokens.shape[-1])

  return _with_input(evaluate, (names.POOL,), PATCHES, unroll)


def _with_input(
  evaluate: Callable[..., Any], modules: Collection[str], row: str, change: Callable[..., jax.Array]
) -> Callable[..., Any]:
  """Wraps `evaluate`, so that its `rows` also have the changed input of the first of `modules`."""

  def run(*arguments: Any) -> Any:
    read: list[jax.Array] = []

    def note(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
      if context.module.name in modules and context.method_name == "__call__" and not read:
        read.append(change(*args))
      return call(*args, **kwargs)

    with nn.intercept_methods(note):
      result = evaluate(*arguments)
    if not read:
      raise ConfigError(f"{row} are the input of {listing(modules)}, which this network lacks.")
    return {**result, "rows": {**result["rows"], row: read[0]}}

  return run
