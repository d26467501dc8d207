"""The interface of a task: everything that training, evaluation and prediction need to know of it.

A task is made of pure functions on one device's share of a batch. It knows neither devices nor the
optimizer. Variables are a dict of Flax's collections; "params" is learned, the others (batch
statistics, fixed features) are called state.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.data.dataset import DatasetInfo, Example, Examples
from vitx.data.transform import Identity, Transform
from vitx.files import read_arrays
from vitx.models import initialize, token_layout
from vitx.ops.dropout import examples_at
from vitx.ops.layout import TokenLayout
from vitx.tasks.figures import Figure, Figures

Batch = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Teacher:
  """A network whose weights a task's loss reads and never changes.

  Training loads them as the constant "teacher", a dict of collections. Checkpoints lack them, and
  evaluation from a workdir does not need them.

  Attributes:
    source: A workdir, whose best checkpoint is loaded, or a file of published weights.
    input_spec: The shape and dtype of the network's input, for a batch of one example.
    agree: The fields of `config.data` that must equal those of the teacher's own run, so that the
      teacher's inputs are prepared as in its training.
    needs_head: Whether the loss reads the teacher's logits. If not, the teacher may have other
      classes than the run, and its file may lack the head.
  """

  source: str
  model: nn.Module
  input_spec: jax.ShapeDtypeStruct
  agree: tuple[str, ...] = ()
  needs_head: bool = True


class Task(Protocol):
  """The definition of a learning problem: data elements, model, loss, metrics and predictions.

  A task of your own is a subclass of this class. It defines `model`, `figures`, `from_config`,
  `element_spec`, `loss` and `evaluate`; all else has defaults. The fields of `config.task` are the
  keyword arguments of `from_config`, with their types and ranges.

  Attributes:
    model: The network, called as `model.apply(variables, inputs, train=...)`.
    teacher: The network whose weights the loss needs; None if it needs none.
    targets: The names of the arrays that are no inputs, such as the label; `vitx predict`
      and an exported program do not need them.
    input_suffixes: The suffixes, in lower case, of the files that `vitx predict` reads in a folder.
    measured: The names of the fields of a dataclass that contain numbers which are computed from
      examples and change no shape, such as the mean of pixels. The numbers are arguments of the
      programs of training, so that runs with other examples can share a program. A field is a
      number, an array, or a function that is a `jax.tree_util.Partial` of arrays.
  """

  model: nn.Module
  teacher: Teacher | None = None
  targets: ClassVar[tuple[str, ...]] = ()
  input_suffixes: ClassVar[tuple[str, ...]] = (".npz",)
  measured: ClassVar[tuple[str, ...]] = ()

  @property
  def figures(self) -> tuple[Figure, ...]:
    """Returns the metrics that texts show; the first one chooses the best checkpoint.

    Metrics that are not among them are only in `metrics.jsonl` and in the results.
    """

  def model_inputs(self, batch: Batch) -> Any:
    """Returns the input of the model in `evaluate`, for a batch of the arrays of `element_spec`.

    By default it is the only array that is no target.
    """
    (name,) = self.element_spec.keys() - set(self.targets)
    return batch[name]

  @classmethod
  def resolve(cls, config: ConfigDict, source: Any) -> None:
    """Fills in the fields of a config that follow from the data, such as the number of classes.

    Args:
      config: The unlocked config. It is changed in place, except for the fields that it already
        sets.
      source: A `vitx.data` source, or only its `DatasetInfo` if nothing must be computed from
        examples.

    Raises:
      ConfigError: A field contradicts the data, or the data are of another kind.
    """

  @classmethod
  def state_info(cls, config: RunSettings) -> DatasetInfo | None:
    """Returns the description of the data that follows from the settings alone, if it suffices."""
    return None

  @classmethod
  def from_config(cls, config: RunSettings) -> "Task":
    """Returns the task of resolved settings, without loading data."""

  @property
  def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shape and dtype of each array of one example, without the batch axis."""

  @property
  def train_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shape and dtype of each array of a training example, by default `element_spec`.

    In training, `transform` may return arrays of other shapes than in evaluation. The array
    `parity`, int32 (), comes from `vitx.data.batches.TrainBatches` instead.
    """
    return self.element_spec

  @property
  def input_spec(self) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of the model's input, for a batch of one example."""
    specs = self.element_spec.items()
    batch = {name: jax.ShapeDtypeStruct((1, *x.shape), x.dtype) for name, x in specs}
    return jax.eval_shape(self.model_inputs, batch)

  def examples(self, examples: Examples, *, train: bool) -> Examples:
    """Returns the examples of a source in the form that the task reads, such as windows."""
    return examples

  def references(self, train: Examples, examples: Examples) -> dict[str, float]:
    """Returns the metrics of methods that learn nothing, such as a compressor, for comparison.

    Both arguments are examples of the source, before `Task.examples`.
    """
    return {}

  def transform(self, *, train: bool) -> Transform:
    """Returns the `vitx.data` transform that makes an example's arrays on the host.

    By default the arrays are those of the source.
    """
    return Identity()

  def begin(self, params: Any, train: Examples) -> Any:
    """Returns a new run's parameters, on the host: by default those that were drawn, `params`."""
    return params

  def constants(self) -> Any:
    """Returns arrays that the loss reads and that are neither trained nor saved.

    Training adds "teacher" to them, the weights of `Task.teacher`, and "measured", the numbers of
    the fields in `Task.measured`.
    """
    return {}

  def loss(
    self, params: Any, state: Any, constants: Any, batch: Batch, key: jax.Array, step: jax.Array
  ) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
    """Computes the loss of a training batch.

    Args:
      params: The learned parameters.
      state: The model's other collections.
      constants: The arrays that `constants` returned.
      batch: The arrays of `train_spec` with a batch axis (B, ...), and index int32 (B,), each
        example's position in the global batch, which is folded into random keys.
      key: The key of this step, equal on all devices.
      step: The number of updates done, an int32 scalar.

    Returns:
      The mean loss over the batch; the new state; and scalar metrics, which are means over the
      batch too.
    """

  def evaluate(
    self, params: Any, state: Any, constants: Any, batch: Batch
  ) -> dict[str, dict[str, jax.Array]]:
    """Evaluates a batch, with the arrays of `element_spec` and mask bool (B,), False for padding.

    Returns the dicts `sums` and `rows`, and may return `gathered`. `sums` has sums over the
    examples that are not padding, among them `count`, their number. `rows` has arrays with an entry
    for each example. `gathered` has such arrays too, which `summarize` needs of all examples at
    once, for example to sort them.
    """

  def respond(self, params: Any, state: Any, inputs: Batch) -> dict[str, jax.Array]:
    """Computes the output arrays of the program that `vitx export` writes, by name.

    They are by default the dict `rows` that `evaluate` returns. `inputs` has the arrays of
    `element_spec` with a batch axis, except those named in `targets`.
    """
    size = next(iter(inputs.values())).shape[0]
    unknown = {name: self.element_spec[name] for name in self.targets}
    blank = {name: jnp.zeros((size, *x.shape), x.dtype) for name, x in unknown.items()}
    batch = {**inputs, **blank, "mask": jnp.ones(size, bool)}
    return self.evaluate(params, state, self.constants(), batch)["rows"]

  def summarize(self, sums: Mapping[str, np.ndarray]) -> Figures:
    """Computes the metrics of a split from the sums over its examples, by default their means.

    `sums` also has the arrays in `gathered` of all examples that are not padding, (n, ...).
    The values of the dict are floats or lists of floats, and the integer `examples`.
    """
    count = float(sums["count"])
    means = {name: float(total) / count for name, total in sums.items() if name != "count"}
    return {"examples": int(count), **means}

  def predictions(
    self,
    class_names: Sequence[str],
    batch: Mapping[str, np.ndarray],
    rows: Mapping[str, np.ndarray],
  ) -> dict[str, list[Any]]:
    """Returns the columns of a table of predictions by heading, with a value for each example.

    By default these are the targets and the rows that are a single number for each example.

    Args:
      class_names: The names of the classes; () if there are none.
      batch: The arrays of the examples on the host, without padding.
      rows: The rows that `evaluate` returned for these examples.
    """
    arrays = {name: batch[name] for name in self.targets} | dict(rows)
    return {name: _to_numbers(x) for name, x in arrays.items() if x.ndim == 1}

  def read_input(self, entry: Any, number: int) -> Example:
    """Reads one input of `vitx predict`: a dict of arrays or the path of an `.npz` file.

    Arrays in `targets` may be missing. Errors name an input without a path by its `number`.
    """
    return dict(entry) if isinstance(entry, Mapping) else read_arrays(entry)


def measurements(task: Task) -> list[np.ndarray]:
  """Returns the numbers of the fields in `Task.measured`, float32, in the order of `bind`.

  A function without arrays, such as a loss without weights of classes, has no numbers.
  """
  leaves = jax.tree.leaves([getattr(task, name) for name in task.measured])
  return [np.asarray(x, np.float32) for x in leaves if not callable(x)]


def bind(task: Task, constants: Any) -> Task:
  """Returns a task with the numbers that the constants of a program have as "measured".

  Without such numbers the task keeps its own.
  """
  if not task.measured or "measured" not in constants:
    return task
  fields, numbers = [getattr(task, name) for name in task.measured], iter(constants["measured"])
  bound = jax.tree.map(lambda x: x if callable(x) else next(numbers), fields)
  changes = dict(zip(task.measured, bound, strict=True))
  return dataclasses.replace(task, **changes)  # type: ignore[type-var]


def init_variables(network: Task | Teacher, key: jax.Array) -> dict[str, Any]:
  """Initializes the model of a task or a teacher; the variables depend on `key` and shapes alone.

  The collection "losses" is not among them, since a model only sows it.
  """
  x = jnp.zeros(network.input_spec.shape, network.input_spec.dtype)
  variables = initialize(network.model, {"params": key, "dropout": key}, x, train=False)
  return {name: tree for name, tree in variables.items() if name != "losses"}


def init_shapes(network: Task | Teacher) -> dict[str, Any]:
  """Returns the shapes and dtypes of the variables of `init_variables`; nothing is allocated."""
  # A new function each time, since JAX traces an old one only once.
  return jax.eval_shape(lambda key: init_variables(network, key), jax.random.key(0))


def find_layout(network: Task | Teacher) -> TokenLayout | None:
  """Returns the layout of the tokens to which a model adds positions; None if it adds none."""
  return token_layout(network.model, network.input_spec.shape)


def run_model(
  model: nn.Module,
  params: Any,
  state: Any,
  inputs: Any,
  batch: Batch,
  key: jax.Array,
  *,
  train: bool = True,
  also: tuple[str, ...] = (),
  **more: Any,
) -> tuple[Any, dict[str, Any], jax.Array]:
  """Runs the model as in training, for `Task.loss`.

  Args:
    model: The network.
    params: The learned parameters.
    state: The model's other collections.
    inputs: The model's input, such as augmented images (B, height, width, C).
    batch: The batch, whose `index` decides the draws of dropout.
    key: The key of this step.
    train: Whether the model trains; False runs it as in evaluation and keeps its state.
    also: The collections to return with the state.
    **more: The other inputs of the model's call, by the names of its arguments.

  Returns:
    The model's output, the new state with the collections in `also`, and the sum of all values
    that the model sowed as "losses".
  """
  with examples_at(batch["index"]):
    output, new = model.apply(
      {"params": params, **state},
      inputs,
      train=train,
      **more,
      # All examples and devices share one graph: the key of "graph" is not folded with an index.
      rngs={"dropout": jax.random.fold_in(key, 1), "graph": jax.random.fold_in(key, 2)},
      mutable=[*state, "losses", *also],
    )
  new = dict(new)
  terms = jax.tree.leaves(new.pop("losses", {}))
  return output, new, sum((jnp.sum(term) for term in terms), jnp.float32(0))


def _to_numbers(x: np.ndarray) -> list[Any]:
  """Returns the numbers (B,) without the digits that a float32 has only as a float64."""
  return [float(str(y)) for y in x] if np.issubdtype(x.dtype, np.floating) else x.tolist()


def follow_source(
  model: ConfigDict, field: str, value: Any, source: str, path: str = "model"
) -> None:
  """Sets a field of a config's model to the value that the data require, such as `num_classes`.

  Raises:
    ConfigError: The config already has another value for the field.
  """
  if model.get(field) not in (None, value):
    raise ConfigError(
      f"{path}.{field}={model[field]} contradicts the source {source!r}, which has {value}; leave"
      f" {path}.{field} out, so that it follows the source."
    )
  model[field] = value
