"""Draws a figure of a trained model or of a config: `vitx visualize FIGURE --out DIR`.

    vitx visualize attention_past --workdir runs/text --out pictures
    vitx visualize patterns --config sparse_transformer_cifar10:strided --out pictures
    vitx visualize attention --workdir runs/a runs/b --out pictures
    vitx visualize attention --workdir runs/a --inputs one.png two.jpg --out pictures
    vitx visualize curves --workdir runs/a runs/b --out pictures
    vitx visualize curves --workdir runs/vanilla_w96_d8 --config simplified_cifar10 --out pictures
    vitx visualize gallery --patterns window,axial_rows --grid 12,12 --out pictures
    vitx visualize memory --results results/vix.csv --config vix_cifar10 --out pictures

Files are named after the figure and the row, or the name of the workdir. A model of a config has
its starting weights; weights of others' code become a workdir by `vitx convert`. A sweep's workdir
stands for all its runs. Curves have those of the source over them, of rows of `--config` by which
the workdirs are called. Figures:
"""

import argparse
import ast
import importlib.util
from pathlib import Path

from vitx.cli.arguments.kinds import integers

FIGURES = "vitx.analysis.figures"  # whose tables name the functions that draw
TABLES = ("FIGURES", "SIDE_BY_SIDE", "RUN_FIGURES", "RESULT_FIGURES", "PATTERN_FIGURES")


def list_figures() -> dict[str, str]:
  """Returns the first line of what each figure's function says of itself, by the figure's name.

  The files are read and not imported, which would take seconds.
  """
  tree = _parse(FIGURES)
  homes = {
    alias.name: node.module
    for node in tree.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
  }
  entries = {
    ast.literal_eval(key): value.id
    for node in tree.body
    if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in TABLES
    if isinstance(node.value, ast.Dict)
    for key, value in zip(node.value.keys, node.value.values, strict=True)
    if key is not None and isinstance(value, ast.Name)
  }
  return {name: _first_line(homes[function], function) for name, function in entries.items()}


def _first_line(module: str, function: str) -> str:
  for node in _parse(module).body:
    if isinstance(node, ast.FunctionDef) and node.name == function:
      return (ast.get_docstring(node) or "").partition("\n")[0]
  return ""


def _parse(module: str) -> ast.Module:
  package, _, last = module.rpartition(".")
  spec = importlib.util.find_spec(package)
  assert spec is not None and spec.submodule_search_locations
  own = Path(spec.submodule_search_locations[0]) / last
  path = own / "__init__.py" if own.is_dir() else own.with_suffix(".py")
  return ast.parse(path.read_text(encoding="utf-8"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Declares the arguments of `run`."""
  lines = (f"    {name:<16}{what}" for name, what in list_figures().items())
  parser.description = "\n".join([parser.description or "", *lines])
  add = parser.add_argument
  add("figure", metavar="FIGURE", help="a name of the list above")
  add("--workdir", nargs="+", help="of a training run; some figures take several, curves sweeps")
  add(
    "--config",
    help="FILE:ROW,field=value or a config.json, with starting weights; of curves, whose source's",
  )
  add("--results", metavar="CSV", help="of vitx reproduce or sweep over the rows of --config")
  add("--checkpoint", default="best", help="of the workdir: best, latest or a step")
  add("--out", required=True, metavar="DIR", help="where the files are written")
  add("--local", type=int, help="the last so many tokens count as near; else a row")
  add("--examples", type=int, default=4, help="that are looked at, the first of validation")
  add(
    "--inputs",
    nargs="+",
    default=(),
    metavar="FILE",
    help="that are looked at instead, such as images of your own, or folders of them",
  )
  add(
    "--queries",
    type=integers,
    default=(),
    help="positions that are drawn, separated by commas; else a few, spread evenly",
  )
  add(
    "--patterns",
    type=lambda text: tuple(text.split(",")),
    default=(),
    metavar="NAMES",
    help="that gallery draws, separated by commas; else eight of them",
  )
  add(
    "--grid",
    type=integers,
    default=(),
    metavar="ROWS,COLUMNS",
    help="that the gallery's patterns are laid over, as 12,12",
  )
  add("--trust_code", action="store_true", help="let the config name Python of its own")
