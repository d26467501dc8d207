"""Draws a density model's attention to earlier tokens by layer (Child et al. 2019, Figure 2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vitx.analysis.figures import style
from vitx.analysis.figures.subject import Subject
from vitx.analysis.matrices import sow
from vitx.config.errors import ConfigError
from vitx.models.sown import collect

MASSES = ("local", "row", "column")
DRAWN_LAYERS, DRAWN_QUERIES = 8, 4
Grid = Sequence[int]  # (rows, columns), (rows, columns, channels) or (N,)


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws the attention to earlier tokens by layer: maps of a few queries, and a table of shares.

  The maps are means over heads for one example, which is shown beside them. The table has the
  shares of attention that go to near tokens, to the query's row and to its column
  (`attention_mass`), averaged over heads, queries and examples. Its last row has, for comparison,
  the shares of uniform attention over the query and all earlier tokens.
  """
  grid = subject.grid
  if grid is None:
    raise ConfigError("attention_past needs a density model; use one of task.name='density'.")
  n, shift = int(np.prod(grid)), int(np.prod(grid[1:])) // 2 if len(grid) > 1 else 0
  # Without a choice, queries are evenly spread and in the middle of their rows.
  some = (n * (2 * i + 1) // (2 * DRAWN_QUERIES) + shift for i in range(DRAWN_QUERIES))
  queries = subject.choose_queries(n, [min(n - 1, place) for place in some])
  local = subject.local or int(np.prod(grid[1:] or grid))
  inputs = subject.inputs(subject.examples)
  maps, masses = capture(
    subject.model, subject.variables(), inputs, grid=grid, local=local, queries=queries
  )
  note = f"{subject.note}; {subject.examples} examples"
  canvas = plot_attention_past(maps, np.asarray(inputs[0]), queries, grid, masses, note)
  uniform = {name: float(x) for name, x in uniform_mass(grid, local).items()}
  table = [{"layer": layer, **mass} for layer, mass in (*enumerate(masses), ("uniform", uniform))]
  return style.save_both(canvas, out, f"attention_past_{subject.label}", table)


def attention_mass(matrix: jax.Array | np.ndarray, grid: Grid, local: int) -> dict[str, jax.Array]:
  """Returns the shares of attention that go to near keys, to the query's row and to its column.

  The three sets of keys overlap, since each contains the query itself. Token i counts as place i of
  the grid, although the network's input at token i is value i - 1 of the image or text. This shifts
  all queries and keys equally.

  Args:
    matrix: The probabilities by query and key, (H, N, N) or (..., H, N, N).
    grid: The grid of the N tokens: (rows, columns), (rows, columns, channels), in which the
      channels of a pixel share a place, or (N,), which has neither rows nor columns.
    local: The number l of tokens that count as near: the query and the l - 1 tokens before it.

  Returns:
    The shares by name, scalars: "local" and, if the grid has them, "row" and "column"; each is the
    mean over heads, queries and leading axes.
  """
  matrix = jnp.asarray(matrix)
  # Each set is summed separately, so only one boolean (N, N) is in memory at a time.
  return {
    name: jnp.mean(jnp.sum(jnp.where(allowed, matrix, jnp.zeros((), matrix.dtype)), axis=-1))
    for name, allowed in _sets(grid, local).items()
  }


def uniform_mass(grid: Grid, local: int) -> dict[str, jax.Array]:
  """Returns the shares of `attention_mass` if a query attends itself and earlier tokens equally."""
  n = int(np.prod(grid))
  return attention_mass(jnp.tril(1 / jnp.arange(1.0, n + 1)[:, None] * jnp.ones(n)), grid, local)


def _sets(grid: Grid, local: int) -> dict[str, jax.Array]:
  """Returns masks of the keys of each set of `attention_mass` by name, bool (N, N)."""
  n = int(np.prod(grid))
  q, k = jnp.arange(n)[:, None], jnp.arange(n)
  sets = {"local": (q - k < local) & (k <= q)}
  if len(grid) > 1:
    place = int(np.prod(grid[2:]))  # The number of tokens per pixel.
    row = int(grid[1]) * place
    sets["row"] = q // row == k // row
    sets["column"] = (q % row) // place == (k % row) // place
  return sets


def capture(
  model: nn.Module,
  variables: Mapping[str, Any],
  inputs: Any,
  *,
  grid: Grid,
  local: int,
  queries: Sequence[int],
) -> tuple[np.ndarray, list[dict[str, float]]]:
  """Runs a causal model on its examples and summarizes each layer's attention matrix.

  The examples run one at a time, so memory holds the matrices of only one example.

  Args:
    model: A model with mixers that sow the intermediate `attention`, (B, H, N, N).
    variables: The model's variable collections.
    inputs: The inputs, (B, ...).
    grid: The grid of the N tokens.
    local: The number l of near tokens, see `attention_mass`.
    queries: The positions of Q queries among the tokens.

  Returns:
    The attention of the Q queries in the first example, averaged over heads, (L, Q, N); and for
    each layer the shares of `attention_mass`, averaged over examples.
  """
  n, at = int(np.prod(grid)), np.asarray(queries)

  @jax.jit
  def look(variables, example):
    matrices = list(collect(sow(model, variables, example), "attention").values())
    if not matrices or any(x.shape[-2:] != (n, n) for x in matrices):
      raise ConfigError("attention_past needs token mixers that hold the matrix of all tokens.")
    rows = [jnp.mean(x[0][:, at], axis=0) for x in matrices]
    return rows, [attention_mass(x, grid, local) for x in matrices]

  summaries = [jax.device_get(look(variables, inputs[i : i + 1])) for i in range(len(inputs))]
  masses = [
    {name: float(np.mean([mass[name] for mass in layer])) for name in MASSES if name in layer[0]}
    for layer in zip(*(masses for _, masses in summaries), strict=True)
  ]
  return np.stack(summaries[0][0]), masses


def plot_attention_past(
  maps: np.ndarray,
  example: np.ndarray,
  queries: Sequence[int],
  grid: Grid,
  masses: Sequence[Mapping[str, float]],
  note: str = "",
) -> Any:
  """Returns a figure with a row for each of a few layers, and a column for each query.

  Args:
    maps: The attention of the Q queries from `capture`, (L, Q, N).
    example: The values of the first example on the grid, (N,).
    queries: The positions of the Q queries.
    grid: The grid of the N tokens.
    masses: The shares of attention of each layer, from `capture`.
    note: A description of the model, for the caption.
  """
  layers = style.choose_some(len(maps), DRAWN_LAYERS)
  columns = len(queries) + 1
  height = (style.PAGE / columns + 0.3) * len(layers)
  canvas, panels = style.make_panels(len(layers), columns, style.PAGE, height, note)
  for row, layer in zip(panels, layers, strict=True):
    picture = example.reshape(*style.as_rows(grid)[:2], -1)
    style.show_image(row[0], picture, aspect="auto")
    label = "\n".join(f"{name} {mass:.2f}" for name, mass in masses[layer].items())
    row[0].set_title(f"layer {layer}", fontsize=style.SMALL, loc="left", pad=2)
    row[0].set_ylabel(label, fontsize=style.SMALL, rotation=0, ha="right", va="center", labelpad=3)
    for axes, query, weights in zip(row[1:], queries, maps[layer], strict=True):
      plane = style.to_plane(weights, grid)
      style.show_plane(axes, plane, f"query {query}", vmin=0, aspect="auto")
      style.mark(axes, query, grid)
  return canvas
