"""What a config's rows are and cost, without data or training: `vitx summary`.

    vitx summary --config configs/vix_cifar10.py              # a table of its rows
    vitx summary --config configs/vix_cifar10.py --no-memory  # compiles nothing: quick
    vitx summary --config configs/vix_cifar10.py:vip          # the layers of one row
    vitx summary --config configs/vix_cifar10.py:posemb=rope  # rows with an override

Parameters are counted twice: all of them, and as torchsummary counts, which several papers print.
FLOPs are of the forward pass of one image on the path that the rows pick, a multiply-add counted as
two. Memory is what a training step of the row's whole batch needs, compiled for the device at hand,
never run. Beside them stand the figures that the config quotes from its source.
"""

import argparse
import dataclasses
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict
from tqdm import tqdm

from vitx.analysis import cost
from vitx.analysis.shapes import variable_shapes
from vitx.analysis.tabulate import by, layer_table, layers
from vitx.data.sources import Source, open_dataset
from vitx.errors import ConfigError
from vitx.models import Count, count, model_from_config
from vitx.training.setup import batch_shapes, make_step, resolve
from vitx.training.train_step import TrainState


@dataclasses.dataclass(frozen=True)
class Row:
  """What a row of a config file is.

  Attributes:
    name: of the row.
    count: its parameters; none: it does not build.
    flops: of the forward pass of one image.
    bytes: that a training step of the whole batch needs on one device; none: not asked or not said.
    published: figures that the file quotes from the source.
    problem: why it does not build.
  """

  name: str
  count: Count | None = None
  flops: int = 0
  bytes: int | None = None
  published: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  problem: str = ""


def open_config(path: str) -> dict[str, Any]:
  """The names that a config file defines: `get_config`, and `ROWS` and `PUBLISHED` if it has rows.

  Raises:
    ConfigError: there is no such file, or it has no `get_config`.
  """
  if not Path(path).is_file():
    raise ConfigError(f"config={path!r} is no file; name one, such as configs/digits.py")
  names = runpy.run_path(path)
  if "get_config" not in names:
    raise ConfigError(f"config={path!r} has no function get_config(arg)")
  return names


def completed(config: ConfigDict) -> ConfigDict:
  """The config with what follows from its data set, which is opened only if it must be.

  Statistics of the pixels are made up: they change nothing of what is shown.

  Raises:
    ConfigError: the data set has to be asked for its classes or image size, and is not prepared.
  """
  data, classes = config.data, config.model.get("num_classes")
  name, size, channels = data.source, data.image_size, data.channels
  if classes is None or size is None:
    dataset = open_dataset(data)
    classes, size, channels = len(dataset.class_names), dataset.image_size, dataset.channels
  else:
    size = (size, size)
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.data.mean = config.data.std = (0.5,) * channels
  nothing: Any = ()
  class_names = tuple(map(str, range(classes)))
  source = Source(name, classes, class_names, size, channels, nothing, nothing, nothing, "")
  return resolve(config, source)


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
    config = completed(config)
    found = count(config)
    return Row(
      name, found, forward_flops(config), training_bytes(config) if memory else None, published
    )
  except ConfigError as error:
    return Row(name, published=published, problem=str(error))


def forward_flops(config: ConfigDict) -> int:
  """Of one image through a completed config's network."""
  model = model_from_config(config.model)
  shape = _image_shape(config)
  image = jax.ShapeDtypeStruct(shape, jax.numpy.float32)
  return cost.flops(model.apply, variable_shapes(model, shape), image)


def training_bytes(config: ConfigDict) -> int | None:
  """That a compiled training step of a completed config's whole batch needs on one device."""
  train, state, batch = training_step(config)
  # LLVM's optimization changes nothing in the buffers; without it a CPU compiles twice as fast.
  options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
  step = jax.jit(train, donate_argnums=0, compiler_options=options)
  return cost.compiled_bytes(step.lower(state, batch).compile())


def training_step(config: ConfigDict) -> tuple[Callable, TrainState, dict[str, Any]]:
  """The step of a completed config on one device, and the shapes of its two arguments."""
  step, state = make_step(config, schedule=jax.numpy.ones_like)  # costs as little as any other
  return step.train, state, batch_shapes(config, config.batch_size)


def table(rows: Sequence[Row]) -> str:
  """The rows for reading."""
  memory = any(row.bytes for row in rows)
  quoted = list(dict.fromkeys(key for row in rows for key in row.published))
  heads = ["row", "parameters", "torchsummary", "GFLOPs", *["train GB"] * memory, *quoted]
  lines = [heads, *([row.name, *_own(row, memory), *_quoted(row, quoted)] for row in rows)]
  widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
  own = sum(widths[: len(heads) - len(quoted)]) + 2 * (len(heads) - len(quoted))
  text = [" " * own + "published"] if quoted else []
  text += ["  ".join(map(_padded, line, widths, range(len(line)))).rstrip() for line in lines]
  return "\n".join(text + [f"{row.name}: {row.problem}" for row in rows if row.problem])


def _own(row: Row, memory: bool) -> list[str]:
  if row.count is None:
    return ["does not build", "", "", *[""] * memory]
  used = ["" if row.bytes is None else f"{row.bytes / 1e9:.2f}"] * memory
  return [f"{row.count.total:,}", f"{row.count.summary:,}", f"{row.flops / 1e9:.3f}", *used]


def _quoted(row: Row, keys: Sequence[str]) -> list[str]:
  return [_figure(row.published.get(key)) for key in keys]


def _figure(value: Any) -> str:
  if isinstance(value, Mapping):  # by epoch
    last = list(value)[-1]
    return f"{value[last]} at {last}"
  return "" if value is None else f"{value:,}"


def _padded(text: str, width: int, column: int) -> str:
  return text.ljust(width) if column == 0 else text.rjust(width)


def _image_shape(config: ConfigDict) -> tuple[int, ...]:
  size = config.data.image_size
  return (1, size, size, config.data.channels)


def _show_rows(names: Mapping[str, Any], overrides: str, memory: bool) -> None:
  get_config, published = names["get_config"], names.get("PUBLISHED", {})
  rows = []
  for name in tqdm(names.get("ROWS", ("",)), desc="rows", delay=3, leave=False):
    config = get_config(",".join(filter(None, (name, overrides))))
    rows.append(summarize(name, config, published.get(name, {}), memory=memory))
  print(table(rows))
  for name, figures in names.get("MISPRINTS", {}).items():
    for key, value in figures.items():
      print(f"misprint: {name}'s {key} should be {_figure(value)}")
  if memory:
    print(
      f"train GB: a step of the whole batch compiled for one {jax.devices()[0].device_kind}"
      f" ({jax.default_backend()}); it says nothing certain about another backend."
    )


def _show_layers(names: Mapping[str, Any], arg: str, memory: bool) -> None:
  config = completed(names["get_config"](arg))
  shape, found = _image_shape(config), count(config)
  print(layer_table(layers(model_from_config(config.model), shape)))
  print(f"\nimage {by(shape[1:])}, {config.model.num_classes} classes ({config.data.source})")
  print(f"parameters {found.total:,}, as torchsummary counts {found.summary:,}")
  print(f"forward pass of one image {forward_flops(config) / 1e9:.3f} GFLOPs")
  if memory:
    used = training_bytes(config)
    known = "not said by the backend" if used is None else f"{used / 1e9:.2f} GB"
    print(f"training step of {config.batch_size} images {known} ({jax.default_backend()})")
  for key, value in names.get("PUBLISHED", {}).get(arg.split(",")[0], {}).items():
    print(f"published {key}: {_figure(value)}")


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog="vitx summary",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--config", required=True, help="FILE, FILE:ROW,field=value or FILE:field=..."
  )
  parser.add_argument(
    "--memory",
    action=argparse.BooleanOptionalAction,
    default=True,
    help="compile training steps: seconds a row",
  )
  options = parser.parse_args(argv)
  path, _, arg = options.config.partition(":")
  try:
    names = open_config(path)
    if arg and "=" not in arg.split(",")[0]:
      _show_layers(names, arg, options.memory)
    else:
      _show_rows(names, arg, options.memory)
  except ValueError as error:
    # The message says it all; a traceback would bury it.
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())
