"""The model that a figure shows, and functions to create and write figures."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

from vitx.config.errors import ConfigError, MissingExtraError, escape
from vitx.ops.layout import TokenLayout


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model with everything needed to run it; slow parts are functions.

  Attributes:
    label: The name in file names: the row of a config, or the name of a workdir.
    model: The network; its mixers hold their matrices if they can.
    input_spec: The shape and dtype of a batch of one example.
    grid: The grid of a density model's tokens; `None` for other models.
    layout: The layout of an image's tokens; `None` for other models.
    variables: A function that returns the variable collections, including "params".
    inputs: A function that returns the model's inputs (B, ...) for a given number of examples.
    local: The number l of last tokens that count as near; `None` means a row of the grid.
    examples: The number of examples to look at.
    queries: The positions to draw, or () for a few that are evenly spread.
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

  @property
  def note(self) -> str:
    """Returns a description of the model and its weights, for captions."""
    return ", ".join(filter(None, (self.network, self.weights)))


def make_canvas(width: float, height: float) -> Any:
  """Returns an empty figure; width and height are in inches.

  Raises:
    MissingExtraError: Matplotlib is not installed.
  """
  try:
    from matplotlib.figure import Figure  # Without pyplot there is no window and no global state.
  except ImportError as error:
    raise MissingExtraError("the figure", "plot") from error
  return Figure(figsize=(width, height), layout="constrained")


def save(canvas: Any, out: Path, name: str, dots: int = 120) -> Path:
  """Writes a figure as `name`.png with `dots` dots per inch; creates the folder if it is missing.

  Raises:
    ConfigError: The file cannot be written.
  """
  from matplotlib.text import Text

  for each in canvas.findobj(Text):  # Names and captions; tick labels are set later, when drawn.
    each.set(text=escape(each.get_text()), parse_math=False)  # A name with $ must not become math.
  path = out / f"{name}.png"
  try:
    out.mkdir(parents=True, exist_ok=True)
    # Without metadata, equal figures are equal files.
    canvas.savefig(path, dpi=dots, metadata={"Software": None})
  except OSError as error:
    raise ConfigError(f"out={str(out)!r} cannot be written: {error}") from error
  return path
