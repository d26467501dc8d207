"""The model that a figure shows, with its variables and examples."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax

from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model with everything that a figure needs in order to run it.

  The fields `variables`, `inputs` and `respond` are functions, since their results take time to
  compute and not all figures need them.

  Attributes:
    label: The name in file names: the row of a config, or the name of a workdir.
    model: The network; its mixers compute their matrices if they can.
    input_spec: The shape and dtype of a batch of one example.
    grid: The grid of a density model's tokens; `None` for other models.
    layout: The layout of an image's tokens; `None` for other models.
    variables: A function that returns the variable collections, including "params".
    inputs: A function that returns the model's inputs (B, ...) for a given number of examples.
    respond: A function that returns the outputs of `Task.respond` for a given number of examples.
    local: The number l of tokens that count as near: the query and the l - 1 tokens before it.
      `None` means the length of a row of the grid.
    examples: The number of examples to look at.
    queries: The positions of the queries to draw, or () for the figure's own choice.
    network: A description of the model and its data, for captions.
    weights: A description of the source of the weights, for captions.
  """

  label: str
  model: nn.Module
  input_spec: jax.ShapeDtypeStruct
  grid: tuple[int, ...] | None
  layout: TokenLayout | None
  variables: Callable[[], dict[str, Any]]
  inputs: Callable[[int], Any]
  local: int | None = None
  examples: int = 4
  queries: tuple[int, ...] = ()
  network: str = ""
  weights: str = ""
  respond: Callable[[int], dict[str, Any]] = lambda count: {}

  @property
  def note(self) -> str:
    """Returns a description of the model and its weights, for captions."""
    return ", ".join(filter(None, (self.network, self.weights)))

  def choose_queries(self, count: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Returns the queries to draw, or `default` without any."""
    for query in self.queries:
      if not 0 <= query < count:
        raise ConfigError(f"queries={query} is not on the grid; choose from 0 to {count - 1}.")
    return self.queries or tuple(default)
