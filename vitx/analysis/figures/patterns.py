"""Draws which tokens each layer of a model connects (Child et al. 2019, Figure 3)."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from vitx.analysis.figures import style
from vitx.analysis.figures.subject import Subject
from vitx.attention.base import TokenMixer
from vitx.attention.pattern import PatternAttention
from vitx.config.errors import ConfigError, listing
from vitx.models.names import DECODER
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import PATTERNS, Causal, Pattern

MATRIX = 512  # The most tokens of a drawn matrix; dots of a larger one would blur.
HEADS = 4  # The most heads to draw if heads differ.
EXAMPLE_GRID = (8, 8)


@dataclasses.dataclass(frozen=True)
class LayerPattern:
  """The attention pattern of one layer, or of several layers with a common pattern.

  Attributes:
    layer: The number of the layer, or a title for several layers.
    pattern: The pattern of all heads.
    layout: The layout of the tokens.
    heads: The number of heads, H.
  """

  layer: int | str
  pattern: Pattern
  layout: TokenLayout
  heads: int

  @property
  def distinct_heads(self) -> int:
    """Returns the number of heads whose edges differ."""
    return min(self.pattern.head_period, self.heads)


def draw(subject: Subject, out: Path) -> list[Path]:
  """Draws each distinct pattern of the layers as a matrix, and one query's keys on the grid.

  If heads differ, each head has a matrix. For a model whose mixers have no pattern, an example of
  every kind of pattern is drawn instead, on a grid of 8 x 8.
  """
  patterns = find_patterns(subject.model, subject.input_spec)
  name = f"patterns_{subject.label}"
  if patterns:
    return [style.save(plot_patterns(patterns, note=subject.note), out, name)]
  layout = TokenLayout(EXAMPLE_GRID)
  examples = [LayerPattern(key, pattern.at(0), layout, 1) for key, pattern in PATTERNS.items()]
  return [style.save(plot_patterns(examples, columns=3), out, f"{name}_examples")]


def list_edges(
  model: nn.Module, spec: jax.ShapeDtypeStruct, *, mixed: bool = False
) -> list[LayerPattern]:
  """Returns the pattern of every layer, without running the network.

  The decoder of a masked autoencoder is left out, since only the encoder has the chosen mixer. With
  `mixed`, layers without a pattern are left out too.

  Raises:
    ConfigError: A token mixer has no pattern or there are none, and `mixed` is not set.
  """
  layers: dict[tuple[str, ...], LayerPattern] = {}
  others: set[str] = set()

  def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
    module = context.module
    is_call = isinstance(module, TokenMixer) and context.method_name == "__call__"
    if is_call and DECODER not in module.path:
      layout = args[1] if len(args) > 1 else kwargs["layout"]
      if isinstance(module, PatternAttention):
        pattern = module.full_pattern(layout)
        pattern = pattern & Causal() if module.causal else pattern
        layers[module.path] = LayerPattern(module.layer, pattern, layout, module.num_heads)
      else:
        others.add(type(module).__name__)
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    jax.eval_shape(lambda x: model.init(jax.random.key(0), x, train=False), spec)
  if not mixed and (others or not layers):
    name = listing(others) or type(model).__name__
    raise ConfigError(f"{name} has no pattern; use a token_mixer such as neighborhood or bigbird.")
  return list(layers.values())


def group_layers(layers: Iterable[LayerPattern]) -> dict[LayerPattern, list[int | str]]:
  """Returns the distinct patterns among layers, with the numbers of the layers that have each."""
  groups: dict[LayerPattern, list[int | str]] = {}
  for layer in layers:
    groups.setdefault(dataclasses.replace(layer, layer=""), []).append(layer.layer)
  return groups


def find_patterns(model: nn.Module, spec: jax.ShapeDtypeStruct) -> list[LayerPattern]:
  """Returns the distinct patterns of a network's layers; mixers without a pattern are ignored."""
  groups = group_layers(list_edges(model, spec, mixed=True))
  return [dataclasses.replace(edge, layer=_name_layers(layers)) for edge, layers in groups.items()]


def _name_layers(layers: Sequence[int | str]) -> str:
  text = ", ".join(map(str, layers[:6])) + (", ..." if len(layers) > 6 else "")
  return f"layer{'s' if len(layers) > 1 else ''} {text}"


def plot_patterns(patterns: Sequence[LayerPattern], columns: int = 1, note: str = "") -> Any:
  """Returns a figure with a matrix and a grid for each pattern and head, in `columns` pairs."""
  heads = [(layer, head) for layer in patterns for head in range(layer.distinct_heads)[:HEADS]]
  rows = -(-len(heads) // columns)
  width = style.PAGE if columns > 1 else style.COLUMN * 1.5
  height = (width / columns / 2 + 0.3) * rows
  canvas, panels = style.make_panels(rows, 2 * columns, width, height, note)
  panels = panels.reshape(-1, 2)
  for axes in panels[len(heads) :].ravel():
    axes.axis("off")
  for (left, right), (layer, head) in zip(panels, heads, strict=False):
    _draw_matrix(left, layer, head)
    _draw_grid(right, layer, head)
  return canvas


def _draw_matrix(axes: Any, layer: LayerPattern, head: int) -> None:
  n = layer.layout.length
  edges = edges_between(layer, head, np.arange(min(n, MATRIX)), np.arange(min(n, MATRIX)))
  style.show_plane(axes, edges, cmap="Blues", vmin=0, vmax=1)
  which = f", head {head}" if layer.distinct_heads > 1 else ""
  part = f"first {MATRIX:,} of {n:,} tokens" if n > MATRIX else f"{n:,} tokens"
  axes.set_title(f"{layer.layer}{which}\n{part}", fontsize=style.SMALL, loc="left", pad=3)
  axes.set_xlabel("keys", fontsize=style.SMALL, labelpad=2)
  axes.set_ylabel("queries", fontsize=style.SMALL, labelpad=2)


def _draw_grid(axes: Any, layer: LayerPattern, head: int) -> None:
  layout, query = layer.layout, choose_query(layer.layout)
  seen = edges_between(layer, head, np.array([query + layout.prefix]), np.arange(layout.length))[0]
  plane = style.to_plane(seen[layout.prefix :].astype(float), layout.grid)
  style.show_plane(axes, plane, cmap="Blues", vmin=0)
  style.mark(axes, query, layout.grid)
  # The text is in the second line, since the name of the pattern beside it may need the first.
  title = f"\nquery {query} sees {int(seen.sum()):,}"
  axes.set_title(title, fontsize=style.SMALL, loc="left", pad=3)


def choose_query(layout: TokenLayout) -> int:
  """Returns the token in the middle of the row that is two thirds of the way down the grid."""
  n = layout.length - layout.prefix
  row = n // layout.grid[0] if len(layout.grid) > 1 else 0
  return min(n - 1, (layout.grid[0] * 2 // 3) * row + row // 2 if row else n * 2 // 3)


def edges_between(layer: LayerPattern, head: int, q: np.ndarray, k: np.ndarray) -> np.ndarray:
  """Returns whether query q[i] reads key k[j], bool (Q, K), for token indices q (Q,) and k (K,)."""
  allowed = layer.pattern.allows(layer.layout, q[:, None], k[None], np.int64(head))
  return np.broadcast_to(np.asarray(allowed), (q.size, k.size))
