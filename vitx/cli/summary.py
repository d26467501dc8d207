"""What a config's rows are and cost, without data or training: `vitx summary`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from vitx.analysis import cost
from vitx.analysis.counting import Count, count_parameters, count_variables
from vitx.analysis.shapes import variable_shapes
from vitx.analysis.tabulate import format_layers, format_shape, list_layers
from vitx.cli.tables import lay_out
from vitx.config.errors import ConfigError
from vitx.config.loader import call, load_config, open_config, split_text
from vitx.tasks import build_task
from vitx.training.record.progress import show_bar
from vitx.training.trial import complete_config, measure_training_bytes


@dataclasses.dataclass(frozen=True)
class Row:
  """What a row of a config file is.

  Attributes:
    name: of the row.
    count: its parameters; None if it does not build.
    flops: of the forward pass of one example.
    bytes: that a training step of the whole batch needs on one device; None if not known.
    published: figures that the file quotes from the source.
    problem: why it does not build.
  """

  name: str
  count: Count | None = None
  flops: int = 0
  bytes: int | None = None
  published: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  problem: str = ""


def summarize(
  name: str, config: ConfigDict, published: Mapping[str, Any], *, memory: bool = False
) -> Row:
  """Counts a row by tracing it; with `memory` its training step is compiled.

  Args:
    name: of the row.
    config: of the row.
    published: what its source says.
    memory: whether to compile.
  """
  try:
    config = complete_config(config)
    task = build_task(config)
    variables = variable_shapes(task.model, task.input_spec)
    return Row(
      name,
      count_variables(variables),
      cost.flops(task.model.apply, variables, task.input_spec),
      measure_training_bytes(config) if memory else None,
      published,
    )
  except ConfigError as error:
    return Row(name, published=published, problem=str(error))


def count_forward_flops(config: ConfigDict) -> int:
  """Returns the FLOPs of one example through a completed config's network."""
  task = build_task(config)
  variables = variable_shapes(task.model, task.input_spec)
  return cost.flops(task.model.apply, variables, task.input_spec)


def format_rows(rows: Sequence[Row]) -> str:
  """Returns the rows for reading."""
  memory = any(row.bytes for row in rows)
  quoted = list(dict.fromkeys(key for row in rows for key in row.published))
  heads = ["row", "parameters", "torchsummary", "GFLOPs", *["train GB"] * memory]
  titles = [f"published {key}" if key in heads else key for key in quoted]
  cells = [[row.name, *_own(row, memory), *_quote(row, quoted)] for row in rows]
  text = lay_out([[*heads, *titles], *cells], right=range(1, len(heads) + len(quoted)))
  widths = [max(len(line[i]) for line in (heads, *cells)) for i in range(len(heads))]
  above = [" " * sum(width + 2 for width in widths) + "published"] if quoted else []
  problems = [f"{row.name}: {row.problem}" for row in rows if row.problem]
  return "\n".join([*above, text, *problems])


def _own(row: Row, memory: bool) -> list[str]:
  if row.count is None:
    return ["does not build", "", "", *[""] * memory]
  used = ["" if row.bytes is None else f"{row.bytes / 1e9:.2f}"] * memory
  return [f"{row.count.total:,}", f"{row.count.summary:,}", f"{row.flops / 1e9:.3f}", *used]


def _quote(row: Row, keys: Sequence[str]) -> list[str]:
  return [_figure(row.published.get(key)) for key in keys]


def _figure(value: Any) -> str:
  if isinstance(value, Mapping):  # by epoch
    last = list(value)[-1]
    return f"{value[last]} at {last}"
  return "" if value is None else f"{value:,}"


def _show_rows(names: Mapping[str, Any], overrides: str, memory: bool) -> None:
  get_config, published = names["get_config"], names.get("PUBLISHED", {})
  rows, named = [], list(names.get("ROWS", ("",)))
  for name in show_bar(named, "rows", len(named), "row"):
    config = call(get_config, ",".join(filter(None, (name, overrides))))
    rows.append(summarize(name, config, published.get(name, {}), memory=memory))
  print(format_rows(rows))
  for name, figures in names.get("MISPRINTS", {}).items():
    for key, value in figures.items():
      print(f"misprint: {name}'s {key} should be {_figure(value)}")
  if memory:
    print(
      f"train GB: a step of the whole batch compiled for one {jax.devices()[0].device_kind}"
      f" ({jax.default_backend()}); it says nothing certain about another backend."
    )


def _show_layers(config: ConfigDict, published: Mapping[str, Any], memory: bool) -> None:
  config = complete_config(config)
  task = build_task(config)
  found = count_parameters(task.model, task.input_spec)
  print(format_layers(list_layers(task.model, task.input_spec)))
  classes = config.model.get("num_classes")
  told = f", {classes} classes" if classes else ""
  print(f"\ninput {format_shape(task.input_spec.shape[1:])}{told} ({config.data.source})")
  print(f"parameters {found.total:,}, as torchsummary counts {found.summary:,}")
  print(f"forward pass of one example {count_forward_flops(config) / 1e9:.3f} GFLOPs")
  if memory:
    used = measure_training_bytes(config)
    known = "not said by the backend" if used is None else f"{used / 1e9:.2f} GB"
    print(f"training step of {config.batch_size} examples {known} ({jax.default_backend()})")
  for key, value in published.items():
    print(f"published {key}: {_figure(value)}")


def run(config: str, memory: bool) -> None:
  """Prints the rows of a file, or the layers of the one that is named."""
  path, arg = split_text(config)
  if path.endswith(".json"):
    _show_layers(load_config(config), {}, memory)
    return
  names = open_config(path)
  row = arg.split(",")[0]
  if row and "=" not in row:
    published = names.get("PUBLISHED", {}).get(row, {})
    _show_layers(call(names["get_config"], arg), published, memory)
  else:
    _show_rows(names, arg, memory)
