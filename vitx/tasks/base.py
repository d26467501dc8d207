"""What a task is: everything that training, evaluation and prediction ask about what is learned.

A task is made of pure functions on one device's share of a batch. It knows neither devices nor the
optimizer. Variables are a dict of collections; "params" is learned, the others (batch statistics,
fixed features) are state.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
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
from vitx.ops.layout import TokenLayout

Batch = Mapping[str, jax.Array]
Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Teacher:
  """A network whose weights a task's loss reads and never changes.

  Training loads them as the constant "teacher", a dict of collections. They are in no checkpoint,
  and evaluation from a workdir does without them.

  Attributes:
    source: a workdir, whose best checkpoint it is, or a file of published weights.
    model: the network.
    input_spec: what it is called with, for a batch of one example.
    agree: fields of `config.data` that must be its own run's, so that it sees what it knows.
  """

  source: str
  model: nn.Module
  input_spec: jax.ShapeDtypeStruct
  agree: tuple[str, ...] = ()


class Task(Protocol):
  """What is learned: data elements, model, loss, figures and predictions.

  A task of your own subclasses this one, which has the defaults. The fields of `config.task` are
  the keyword arguments of `from_config`, with their types and ranges.

  Attributes:
    model: the network.
    teacher: whose weights the loss needs; None for none.
    answers: arrays of an example that only an answer would tell; an exported program does without.
    input_suffixes: in lower case, of the files that `vitx predict` reads of a folder.
  """

  model: nn.Module
  teacher: Teacher | None = None
  answers: ClassVar[tuple[str, ...]] = ()
  input_suffixes: ClassVar[tuple[str, ...]] = (".npz",)

  @property
  def primary(self) -> str:
    """Returns the name of the figure that chooses the best checkpoint."""
    ...

  @property
  def mode(self) -> Literal["max", "min"]:
    """Returns whether a good primary figure is high ("max") or low ("min")."""
    ...

  def model_inputs(self, batch: Batch) -> Any:
    """Returns what `evaluate` calls the model with: the arrays of `element_spec`, (B, ...)."""
    ...

  @classmethod
  def resolve(cls, config: ConfigDict, source: Any) -> None:
    """Fills in, in place, what follows from the data.

    Args:
      config: unlocked; every field that the config sets stays.
      source: a `vitx.data` source, or only its `DatasetInfo` where nothing must be computed from
        examples.

    Raises:
      ConfigError: a field contradicts the data, or the data are of another kind.
    """

  @classmethod
  def state_info(cls, config: ConfigDict) -> DatasetInfo | None:
    """Returns what a config says by itself of its data; None if they must be asked."""
    return None

  @classmethod
  def from_config(cls, config: ConfigDict) -> "Task":
    """Returns the task of a resolved config; needs no data."""
    ...

  @property
  def element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shape and dtype of each array of one example, without the batch axis."""
    ...

  @property
  def train_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the same of an example in training, where `transform` makes another of it there."""
    return self.element_spec

  @property
  def input_spec(self) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of what the model is called with, for a batch of one example."""
    ...

  def examples(self, examples: Examples, *, train: bool) -> Examples:
    """Returns a role's examples as the task reads them, such as windows of long sequences.

    Args:
      examples: of a source.
      train: whether they are learned from.

    Raises:
      ConfigError: none can be read so.
    """
    return examples

  def references(self, train: Examples, examples: Examples) -> dict[str, float]:
    """Returns figures of examples that nothing had to be learned for, to stand beside the model's.

    Args:
      train: what may be counted; the source's, before `Task.examples`.
      examples: what is evaluated; the source's too.
    """
    return {}

  def transform(self, *, train: bool) -> Transform:
    """Returns the `vitx.data` transform that makes an example's arrays on the host."""
    ...

  def init(self, key: jax.Array, batch: Batch) -> dict[str, Any]:
    """Returns all variables; depends on `key` and the batch's shapes only."""
    ...

  def constants(self) -> Any:
    """Returns arrays that are neither trained nor saved; training adds "teacher" to them."""
    return {}

  def loss(
    self, params: Any, state: Any, constants: Any, batch: Batch, key: jax.Array, step: jax.Array
  ) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
    """Computes the loss of a training batch.

    Args:
      params: learned parameters.
      state: the model's other collections.
      constants: of `constants`.
      batch: the arrays of `train_spec` with a batch axis (B, ...), and index int32 (B,), the
        position in the global batch, from which random keys are folded.
      key: of this step, the same on all devices.
      step: int32 scalar, the number of updates done.

    Returns:
      The mean loss over the batch, the new state and scalar metrics, also means over the batch.
    """
    ...

  def evaluate(
    self, params: Any, state: Any, constants: Any, batch: Batch
  ) -> dict[str, dict[str, jax.Array]]:
    """Evaluates a batch.

    Args:
      params: learned parameters.
      state: the model's other collections.
      constants: of `constants`.
      batch: the arrays of `element_spec` with a batch axis, and mask bool (B,), False for padding.

    Returns:
      `sums` over the unmasked examples, with `count` among them, and `rows`, arrays with an entry
      per example.
    """
    ...

  def respond(self, params: Any, state: Any, inputs: Batch) -> dict[str, jax.Array]:
    """Computes what a program of `vitx export` returns: the rows of `evaluate`, if nothing else.

    Args:
      params: learned parameters.
      state: the model's other collections.
      inputs: the arrays of `element_spec` with a batch axis, `answers` left out.
    """
    size = next(iter(inputs.values())).shape[0]
    unknown = {name: self.element_spec[name] for name in self.answers}
    blank = {name: jnp.zeros((size, *x.shape), x.dtype) for name, x in unknown.items()}
    batch = {**inputs, **blank, "mask": jnp.ones(size, bool)}
    return self.evaluate(params, state, self.constants(), batch)["rows"]

  def summarize(self, sums: Mapping[str, np.ndarray]) -> Figures:
    """Turns sums over a split into figures: floats or lists of them, and the integer `examples`."""
    ...

  def plateau_figure(self, mode: str) -> str:
    """Returns the figure that a plateau schedule of this mode ("min" or "max") listens to.

    Raises:
      ConfigError: no figure is good in that direction.
    """
    ...

  def describe(self, figures: Figures) -> str:
    """Returns the figures in a few words, for the console's line about an evaluation."""
    ...

  def describe_step(self, metrics: Mapping[str, float]) -> str:
    """Returns the loss's metrics in a few words, for the console's line of progress."""
    return ""

  def table(self, figures: Figures, data: Mapping[str, Any]) -> str:
    """Returns the figures in lines, for `vitx evaluate`; `data` is the run's, see `Loaded`."""
    return f"  {self.describe(figures)}"

  def prediction_columns(self, data: Mapping[str, Any]) -> list[str]:
    """Returns the heads of a prediction's columns; `data` is the run's, see `Loaded`."""
    ...

  def prediction_rows(
    self, data: Mapping[str, Any], batch: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray]
  ) -> Iterable[list[Any]]:
    """Returns the values of those columns.

    Args:
      data: the run's, see `Loaded`.
      batch: arrays of the examples, host side, without padding.
      rows: of `evaluate`, for the same examples.
    """
    ...

  def read_input(self, given: Any, number: int) -> Example:
    """Returns the example that `vitx predict` is given: a dict of arrays, or an `.npz` file of one.

    What only an answer would say may be left out of it.

    Args:
      given: a mapping of arrays, or the path of a file.
      number: its place among the inputs, for errors.

    Raises:
      ConfigError: a file that cannot be read as such.
      ValueError: an input of another kind.
    """
    if isinstance(given, Mapping):
      return dict(given)
    if not isinstance(given, str | Path):
      kind = type(given).__name__
      raise ValueError(f"input {number} must be a dict of arrays or the path of a file, not {kind}")
    arrays = read_arrays(given)
    if "" in arrays:
      raise ConfigError(
        f"input {str(given)!r} holds one array without a name; make it an .npz file"
      )
    return arrays

  def token_layout(self) -> TokenLayout | None:
    """Returns how the tokens lie that positions are added to; None where there is no such place."""
    return None
