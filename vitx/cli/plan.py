"""Shows the size and the cost of training a config, without data or training: `vitx plan`.

    vitx plan --config configs/cifar10.py:vit                       # a row, and what batch fits
    vitx plan --config runs/digits/config.json --memory 2GB --no-time
    vitx plan --config configs/vix_cifar10.py:vip --modules --no-compile
    vitx plan --config configs/vix_cifar10.py --all --no-compile    # every row, quickly
    vitx plan --config digits:model.depth=2 --rows softmax,fnet --rates --csv digits.csv
    vitx plan --config runs/sweep --pareto example_s,test_top1 --out .

A row is a named variant of a config file. Each row is printed as soon as it is measured, beside the
figures that the config quotes from its paper. A row that trains in phases becomes one row for each
phase, ROW/PHASE. If `configs/finetune.py` replaces the attention of a network, the row `base` is
the network before. If the config is the directory of a sweep, each method with a finished run is a
row, beside the means of its metrics on test.

Parameters are counted in two ways: all of them, and those that torchsummary counts, because several
papers print its number. Operations are those of the forward pass of one example; a multiply-add
counts as two. Memory is that of the programs that are compiled for the current device, and is found
without running them. It is no estimate for another kind of device.

Memory and seconds of a training step grow linearly with the number of examples. So measurements at
two batch sizes determine them for every batch size, and thereby the largest batch that fits. Memory
and seconds are those of one device for its share of the batch. The cores of a CPU count as devices
that share its memory.

If the batch of a single row does not fit, its training step is also compiled with gradient
accumulation, recomputation and bfloat16, and the memory of each variant is printed.
"""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitx.analysis.tables import lay_out
from vitx.checkpoints.outputs import check_folder, write_json
from vitx.cli import flags
from vitx.cli.console import say
from vitx.cli.flags import OutFile, names, positive
from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.config.loader import find_rows, join_text, load_config, open_config, split_text

UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
parse_memory = partial(flags.parse_amount, units=UNITS, example="16GB")

# The columns and their labels.
COUNTED = {
  "parameters": "parameters",
  "parameters_torchsummary": "parameters that torchsummary sees",
  "gflops_products": "GFLOP of products, one example",
  "gflops": "GFLOP, one example",
}
COMPILED = {
  "train_parameters_mb": "memory of the parameters (MB)",
  "train_optimizer_mb": "memory of the optimizer (MB)",
  "train_activations_mb": "memory of activations and gradients, 64 examples (MB)",
  "train_mb": "memory of training, 64 examples (MB)",
  **{f"inference_{n}_mb": f"memory of inference, batch {n} (MB)" for n in (1, 32, 128)},
  "step_mb": "memory of a step without examples (MB)",
  "example_mb": "memory that an example adds (MB)",
  "batch_mb": "memory of the config's batch (MB)",
  "largest_batch": "largest batch_size that fits",
}
TIMED = {
  "step_s": "seconds of a step without examples",
  "example_s": "seconds that an example adds",
  "batch_s": "seconds of a step of the config's batch",
}
RATED = {
  "train_peak_mb": "peak of memory of training, 64 examples (MB)",
  "train_batch": "best batch of training",
  "train_per_s": "trained examples a second",
  "inference_batch": "best batch of inference",
  "inference_per_s": "inferred examples a second",
}
QUOTED = {
  "size_mb": "torchsummary's total size (MB)",
  "top1": "top-1 (%)",
  "top5": "top-5 (%)",
  "gpu_gb": "memory of a GPU (GB)",
  "parameters_m": "parameters (millions)",
}
LABELS = COUNTED | COMPILED | TIMED | RATED | QUOTED
PUBLISHED = "published_"
MORE = ("_per_s", "_batch", "top1", "top5")  # Endings of columns in which more is better.


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of this command to a parser."""
  add = parser.add_argument
  add("--config", required=True, help=flags.CONFIG)
  flags.add_trust(add)
  add("--all", action="store_true", dest="whole", help="Plans every row of the file.")
  add("--rows", type=names, default=(), help="The rows to plan, separated by commas.")
  add("--modules", action="store_true", help="Adds a table of the modules of one row.")
  words = "The device's memory, such as 16GB; the default is nine tenths of the free memory."
  add("--memory", type=parse_memory, help=words)
  switch: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": True}
  words = "Compiles each row, which gives its memory and its largest batch."
  add("--compile", **switch, help=words)
  add("--time", **switch, help="Runs the compiled steps, which gives their time.")
  words = "Measures the highest number of examples per second and the peak memory."
  add("--rates", action="store_true", help=words)
  add("--repeats", type=positive, default=5, help=flags.REPEATS)
  add("--seconds", type=float, default=60.0, help=flags.SECONDS)
  add("--csv", action=OutFile, metavar="FILE", help=flags.CSV)
  add("--json", action=OutFile, metavar="FILE", help="Writes the rows to this JSON file.")
  add("--pareto", type=names, metavar="X,Y", help="Plots the Pareto front of two columns.")
  add("--out", metavar="DIR", help="The folder of the plot.")


def find_texts(config: str, rows: Sequence[str], whole: bool) -> dict[str, str]:
  """Returns the config of each requested row as `FILE:ROW,field=value`, by the row's name.

  Args:
    config: The config of one row; or, with `rows` or `whole`, the file and overrides for all rows.
      If it names no row and none is requested, it means the file's default row.
    rows: The names of the requested rows of the file.
    whole: Whether all rows of the file are requested; a file without rows counts as one row.
  """
  path, arg = split_text(config)
  known = () if path.endswith(".json") else open_config(path).get("ROWS", ())
  first = arg.split(",")[0]
  if first and "=" not in first:
    if rows or whole:
      flag = "--rows" if rows else "--all"
      raise ConfigError(f"config={config!r} names the row {first!r} already; leave {flag} out.")
    return {first: config}
  if rows or (whole and known):
    chosen = find_rows(path, rows)
    return {row: join_text(f"{path}:{row}", [arg] if arg else []) for row in chosen}
  plain = load_config(path) if known else None
  default = (row for row in known if load_config(f"{path}:{row}") == plain)
  return {next(default, Path(path).stem): config}


def run(config: str, **arguments: Any) -> None:
  """Prints the size and the cost of each row, and writes the requested files."""
  import jax

  from vitx.analysis import markdown
  from vitx.analysis.figures import style
  from vitx.benchmark import rows as library
  from vitx.benchmark.timing import Neighbors
  from vitx.tasks import build_task
  from vitx.tasks.settle import complete_config
  from vitx.training import phases

  options = argparse.Namespace(**arguments)
  path, is_sweep = split_text(config)[0], os.path.isdir(config)
  texts = {} if is_sweep else find_texts(config, options.rows, options.whole)
  has_code = not (is_sweep or path.endswith(".json"))
  defined: Mapping[str, Any] = open_config(path) if has_code else {}
  loaded, tested = _read_sweep(config) if is_sweep else ({}, {})
  if len(texts) == 1 and "list_beside" in defined:
    loaded |= defined["list_beside"](split_text(*texts.values())[1])
  for title, text in texts.items():
    row = load_config(text)
    parts = phases.split_phases(row, "")
    loaded |= {f"{title}/{phase}": part for phase, part in parts.items()} or {title: row}
  published = defined.get("PUBLISHED", {})
  quoted = {name: published.get(name.partition("/")[0], {}) for name in loaded}
  computed, misprints = defined.get("COMPUTED", {}), defined.get("MISPRINTS", {})
  columns = _list_columns(options, dict.fromkeys(key for row in quoted.values() for key in row))
  columns += dict.fromkeys(key for row in tested.values() for key in row)
  higher: tuple[str, ...] = MORE
  if options.pareto:
    if len(options.pareto) != 2 or options.out is None:
      raise ConfigError("a plot needs --pareto X,Y, two columns, and --out DIR, its folder.")
    for column in options.pareto:  # before the long measurements
      check_choice(column, "--pareto", columns)
    check_folder(options.out, "out")
    style.make_canvas(1, 1)
    if tested:
      declared = build_task(complete_config(next(iter(loaded.values())))).figures
      higher += tuple(f"test_{x.name}" for x in declared if x.direction == "max")
  phases.use_cores(loaded.values())
  rows: dict[str, dict[str, Any]] = {name: {} for name in loaded}
  if options.rates:
    rows |= library.measure_peaks(loaded, say)
  memory = library.find_memory(options.memory) if options.compile else None
  effort = {"repeats": options.repeats, "seconds": options.seconds} if options.rates else None
  more: dict[str, Any] = {"memory": memory, "timed": options.time, "effort": effort, "say": say}
  many = len(loaded) > 1
  if many:
    print(markdown.table([["row", *columns]]), flush=True)
  with Neighbors() as neighbors:
    for name, figures in rows.items():
      figures |= {f"{PUBLISHED}{key}": value for key, value in quoted[name].items()}
      figures |= tested.get(name, {})
      shown = {key: compute for key, compute in computed.items() if key in quoted[name]}
      try:
        completed = complete_config(loaded[name])
        if not many:
          _show_network(completed, options.modules)
        library.fill(figures, completed, shown, **more)
      except (ConfigError, jax.errors.JaxRuntimeError) as error:
        if not many:
          raise
        figures["problem"] = str(error).partition("\n")[0]
      cells = [_format(column, figures.get(column, "")) for column in columns]
      if many:
        print(markdown.table([[name, *cells]]).partition("\n")[0], flush=True)
        continue
      print(lay_out([*zip(columns, cells, map(_label, columns), strict=True)], right=(1,)))
      if memory:
        _show_remedies(completed, figures, memory)
  for name in texts:
    for key, value in misprints.get(name, {}).items():
      print(f"misprint: {name}'s {key} should be {_format(PUBLISHED, value)}")
  if many:
    problems = [f"{name}: {row['problem']}" for name, row in rows.items() if "problem" in row]
    legend = [f"{c}: {LABELS[c]}" for c in columns if LABELS.get(c, c) != c]
    print("\n".join([*problems, "", *legend]))
  _write(rows, options, path, higher)
  if options.rates:
    neighbors.print()


def _read_sweep(directory: str) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
  """Returns the config of a run of each method of a sweep, and its mean metrics on *test*."""
  from vitx.checkpoints import workdir as wd
  from vitx.checkpoints.metrics import read_test_row

  configs: dict[str, Any] = {}
  tests: dict[str, list[dict[str, float]]] = {}
  for run, method in wd.list_points(directory).items():
    if row := read_test_row(run):
      configs[method] = load_config(f"{wd.find_run(run)}/config.json")
      metrics = {f"test_{key}": value for key, value in row.items() if isinstance(value, float)}
      tests.setdefault(method, []).append(metrics)
  if not configs:
    raise ConfigError(f"config={directory!r} is no sweep with a finished run; give a config file.")
  return configs, {
    # A metric that is undefined on the test set of one run, such as r2, has no mean.
    method: {
      key: sum(row[key] for row in rows) / len(rows)
      for key in rows[0]
      if all(key in row for row in rows)
    }
    for method, rows in tests.items()
  }


def _list_columns(options: argparse.Namespace, quoted: Mapping[str, Any]) -> list[str]:
  """Returns the names of the columns; published ones follow the computed ones of their names."""
  columns = [*COUNTED, *(["size_mb"] if "size_mb" in quoted else [])]
  columns += [*COMPILED] * options.compile + [*TIMED] * (options.compile and options.time)
  columns += [*RATED] * options.rates
  place = {column: number for number, column in enumerate(columns)}
  columns += [f"{PUBLISHED}{key}" for key in quoted]
  return sorted(columns, key=lambda column: place.get(column.removeprefix(PUBLISHED), len(place)))


def _show_network(settings: RunSettings, modules: bool) -> None:
  """Prints the input shape of a network, and the table of modules if `modules` is set."""
  from vitx.analysis.tabulate import format_shape, list_cells, list_layers
  from vitx.tasks import build_task

  task, classes = build_task(settings), settings.model.get("num_classes")
  if modules:
    print(lay_out(list_cells(list_layers(task.model, task.input_spec)), right=(3,)), end="\n\n")
  several = f", {classes} classes" if classes else ""
  print(
    f"input {format_shape(task.input_spec.shape[1:])}{several} ({settings.data.source})", flush=True
  )


def _show_remedies(settings: RunSettings, row: dict[str, Any], memory: float) -> None:
  """Prints whether a batch fits in `memory` bytes of a device and, if not, settings that help."""
  import jax

  from vitx.benchmark import rows as library

  device = f"{jax.devices()[0].device_kind} ({jax.default_backend()})"
  print(f"\n{jax.device_count()} x {device}, each with {memory / 1e6:,.2f} MB")
  print(f"batch_size={settings.batch_size}", end="")
  if row["batch_mb"] <= memory / 1e6:
    print(" fits")
    return
  print(" does not fit; these settings were compiled, and need this memory:")
  lines = [("setting", "MB", "")]
  for changes, used in library.measure_remedies(settings, row, memory):
    name = ",".join(f"{field}={value}" for field, value in changes.items())
    lines.append((name, f"{used / 1e6:,.2f}", "fits" if used <= memory else ""))
  print(lay_out(lines, right=(1,)))
  if not any(line[2] for line in lines):
    print("None of them fits; use larger patches, fewer tokens or a mixer with linear memory.")


def _write(
  rows: Mapping[str, dict[str, Any]],
  options: argparse.Namespace,
  path: str,
  higher: tuple[str, ...],
) -> None:
  """Writes the requested files and draws the plot; `higher` ends columns whose large values win."""
  import jax

  from vitx.analysis import csv_files
  from vitx.analysis.figures import pareto, style

  kind = jax.devices()[0].device_kind
  figures = {name: {key: _last(value) for key, value in row.items()} for name, row in rows.items()}
  if options.pareto:
    x, y = options.pareto
    pairs: dict[str, Any] = {name: (row.get(x), row.get(y)) for name, row in figures.items()}
    points = {name: pair for name, pair in pairs.items() if None not in pair}
    more = x.endswith(higher), y.endswith(higher)
    front = pareto.find_front(points, more)
    figures = {name: row | {"front": name in front} for name, row in figures.items()}
  records = [{"row": name} | row for name, row in figures.items()]
  if options.csv:
    csv_files.write_records(options.csv, records)
  if options.json:
    device = f"one {kind} ({jax.default_backend()})"
    write_json(options.json, {"device": device, "rows": records})
  if not options.pareto:
    return
  if not points:
    raise ConfigError(f"--pareto {x},{y}: no row has both figures.")
  print(f"rows that no other beats: {', '.join(front)}")
  title, name = f"Rows of {Path(path).name} on one {kind}.", f"pareto_{Path(path).stem}_{x}_{y}"
  canvas = pareto.plot_pareto(points, (_label(x), _label(y)), more, title)
  print(style.save(canvas, Path(options.out), name))


def _label(column: str) -> str:
  """Returns the label of a column in a plot."""
  name = column.removeprefix(PUBLISHED)
  return f"{'published ' * (name != column)}{LABELS.get(name, name)}"


def _last(value: Any) -> Any:
  """Returns a published figure; if there is one for each of several epochs, returns the last."""
  return list(value.values())[-1] if isinstance(value, Mapping) else value


def _format(column: str, value: Any) -> str:
  """Formats a value with at least four digits; published figures and counts keep all digits."""
  if isinstance(value, Mapping):
    return f"{_last(value)} at {list(value)[-1]}"
  if value is None or isinstance(value, str):
    return value or ""
  if isinstance(value, int) or column == "size_mb" or column.startswith(PUBLISHED):
    return f"{value:,}"
  digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
  return f"{value:,.{digits}f}"
