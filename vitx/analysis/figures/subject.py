"""What a figure is of, and where its files go."""

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
  """A model with what is needed to run it; what costs time is a function.

  Attributes:
    label: in the files' names: the row of a config, or the name of a workdir.
    model: the network; its mixers hold their matrices if they can.
    input_spec: shape and dtype of a batch of one example.
    grid: how the tokens of a density model lie; None for a model of another kind.
    layout: how the tokens of an image lie; None for a model of another kind.
    variables: returns the collections, "params" among them.
    inputs: returns what the model is called with for so many examples (B, ...).
    local: l, the last tokens that count as near; None for a row of the grid.
    examples: how many are looked at.
    queries: positions that are drawn; () for a few that are spread evenly.
    network: what the model is, and its data, for captions.
    weights: where they are from, for captions.
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
    """Returns what was run, for captions."""
    return ", ".join(filter(None, (self.network, self.weights)))


def make_canvas(width: float, height: float) -> Any:
  """Returns an empty picture of so many inches.

  Raises:
    MissingExtraError: matplotlib is not installed.
  """
  try:
    from matplotlib.figure import Figure  # no pyplot: no window, no global state
  except ImportError as error:
    raise MissingExtraError("the figure", "plot") from error
  return Figure(figsize=(width, height), layout="constrained")


def save(canvas: Any, out: Path, name: str, dots: int = 120) -> Path:
  """Writes a picture as `name`.png, so many dots an inch; the folder is made if need be.

  Raises:
    ConfigError: it cannot be written.
  """
  from matplotlib.text import Text

  for each in canvas.findobj(Text):  # names and captions; what axes count is written later
    each.set(text=escape(each.get_text()), parse_math=False)  # a name with $ is no formula
  path = out / f"{name}.png"
  try:
    out.mkdir(parents=True, exist_ok=True)
    # Nothing but the pixels, so that the same figure is the same file.
    canvas.savefig(path, dpi=dots, metadata={"Software": None})
  except OSError as error:
    raise ConfigError(f"out={str(out)!r} cannot be written: {error}") from error
  return path
