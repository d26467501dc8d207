"""The interface of a task: everything that training, evaluation and prediction need to know of it.

A task is made of pure functions on one device's share of a batch. It knows neither devices nor the
optimizer. Variables are a dict of Flax's collections; "params" is learned, the others (batch
statistics, fixed features) are called state. Arguments called `figures` are the metrics that an
evaluation reports for a split, such as an accuracy; arguments called `metrics` are those of a
training batch.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from vitx.config.errors import ConfigError
from vitx.data.dataset import DatasetInfo, Example, Examples
from vitx.data.transform import Transform
from vitx.files import read_arrays
from vitx.models import initialize
from vitx.ops.dropout import examples_at
from vitx.ops.layout import TokenLayout

Batch = Mapping[str, jax.Array]
Figures = dict[str, Any]


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
  """

  source: str
  model: nn.Module
  input_spec: jax.ShapeDtypeStruct
  agree: tuple[str, ...] = ()


class Task(Protocol):
  """The definition of a learning problem: data elements, model, loss, metrics and predictions.

  A task of your own is a subclass of this class, which has defaults. The fields of `config.task`
  are the keyword arguments of `from_config`, with their types and ranges.

  Attributes:
    teacher: The network whose weights the loss needs; None if it needs none.
    primary: The name of the metric that chooses the best checkpoint.
    mode: "max" if a high primary metric is good, or "min" if a low one is.
    targets: The names of the arrays that are no inputs, such as the label; `vitx predict`
      and an exported program do not need them.
    input_suffixes: The suffixes, in lower case, of the files that `vitx predict` reads in a folder.
  """

  model: nn.Module
  teacher: Teacher | None = None
  primary: ClassVar[str]
  mode: ClassVar[Literal["max", "min"]]
  targets: ClassVar[tuple[str, ...]] = ()
  input_suffixes: ClassVar[tuple[str, ...]] = (".npz",)

  def model_inputs(self, batch: Batch) -> Any:
    """Returns the input of the model in `evaluate`, for a batch of the arrays of `element_spec`."""

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
  def state_info(cls, config: ConfigDict) -> DatasetInfo | None:
    """Returns the description of the data that follows from the config alone, if it suffices."""
    return None

  @classmethod
  def from_config(cls, config: ConfigDict) -> "Task":
    """Returns the task of a resolved config, without loading data."""

  @property
  def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shape and dtype of each array of one example, without the batch axis."""

  @property
  def train_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shape and dtype of each array of a training example, by default `element_spec`.

    In training, `transform` may return arrays of other shapes than in evaluation.
    """
    return self.element_spec

  @property
  def input_spec(self) -> jax.ShapeDtypeStruct:
    """Returns the shape and dtype of the model's input, for a batch of one example."""

  def examples(self, examples: Examples, *, train: bool) -> Examples:
    """Returns the examples of a source in the form that the task reads, such as windows."""
    return examples

  def references(self, train: Examples, examples: Examples) -> dict[str, float]:
    """Returns the metrics of methods that learn nothing, such as a compressor, for comparison.

    Both arguments are examples of the source, before `Task.examples`.
    """
    return {}

  def transform(self, *, train: bool) -> Transform:
    """Returns the `vitx.data` transform that makes an example's arrays on the host."""

  def init(self, key: jax.Array, batch: Batch) -> dict[str, Any]:
    """Initializes the model's variables, which depend only on `key` and the shapes of the batch.

    The collection "losses" is not among them, since a model only sows it.
    """
    inputs = self.model_inputs({name: x[:1] for name, x in batch.items()})
    variables = initialize(self.model, {"params": key, "dropout": key}, inputs, train=False)
    return {name: tree for name, tree in variables.items() if name != "losses"}

  def constants(self) -> Any:
    """Returns arrays that the loss reads and that are neither trained nor saved.

    Training adds "teacher" to them, the weights of `Task.teacher`.
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

  def run_model(
    self,
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
    """Runs the model as in training, for a task's `loss`.

    Args:
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
      output, new = self.model.apply(
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
    """Computes the metrics of a split from the sums over its examples.

    `sums` also has the arrays in `gathered` of all examples that are not padding, (n, ...).
    The values of the dict are floats or lists of floats, and the integer `examples`.
    """

  def plateau_figure(self, mode: str) -> str:
    """Returns the name of the metric that a plateau schedule of the mode "min" or "max" follows."""
    if mode != self.mode:
      word = "low" if self.mode == "min" else "high"
      raise ConfigError(
        f"schedule.mode={mode!r}: the {self.primary} of this task is good if {word}; use"
        f" schedule.mode={self.mode!r}."
      )
    return self.primary

  def describe(self, figures: Figures) -> str:
    """Returns a short text of a split's metrics, for the console's line about an evaluation."""

  def describe_step(self, metrics: Mapping[str, float]) -> str:
    """Returns a short text of the loss's metrics, for the console's line of progress."""
    return ""

  def table(self, figures: Figures, data: Mapping[str, Any]) -> str:
    """Returns the text that `vitx evaluate` prints about the metrics of a split.

    Here and below, `data` is the description of the run's data, `Loaded.data`.
    """
    return f"  {self.describe(figures)}"

  def prediction_columns(self, data: Mapping[str, Any]) -> list[str]:
    """Returns the headings of the columns of a table of predictions: the primary metric."""
    return [self.primary]

  def prediction_rows(
    self, data: Mapping[str, Any], batch: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray]
  ) -> Iterable[list[Any]]:
    """Returns the lines of a table of predictions, with a value for each of `prediction_columns`.

    By default the value is the primary metric of the example, among the rows of `evaluate`.

    Args:
      data: The description of the run's data, `Loaded.data`.
      batch: The arrays of the examples on the host, without padding.
      rows: The rows that `evaluate` returned for these examples.
    """
    return ([value] for value in rows[self.primary].tolist())

  def read_input(self, given: Any, number: int) -> Example:
    """Reads one input of `vitx predict`: a dict of arrays or the path of an `.npz` file.

    Arrays in `targets` may be missing. Errors name an input without a path by its `number`.
    """
    return dict(given) if isinstance(given, Mapping) else read_arrays(given)

  def token_layout(self) -> TokenLayout | None:
    """Returns the layout of the tokens to which positions are added; None if there is none."""
    return None


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
