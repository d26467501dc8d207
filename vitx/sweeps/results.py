"""Writes the results of a sweep: a page, a line for each run, the curves, and the index of results.

Everything except the page's section "Run" (date, hours, machine, versions) depends only on the
runs' configs and figures (metrics). The index depends only on the files of results.
"""

import csv
import datetime
import json
import re
import shlex
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from vitx.analysis import markdown
from vitx.analysis.comparison import Comparison, Method, Outcome, format_csv, format_table
from vitx.analysis.counting import count_parameters
from vitx.analysis.figures.curves import RunCurves, draw
from vitx.analysis.figures.papers.memory import SweepResults, check_cost, read_results
from vitx.checkpoints import workdir as wd
from vitx.config.errors import ConfigError, naming
from vitx.config.loader import find_rows, join_text, load_config, split_text
from vitx.data import sources
from vitx.files import replace_text
from vitx.runtime import cache
from vitx.runtime.curves import find_published_curves, read_curves
from vitx.sweeps.points import Point
from vitx.tasks import build_task
from vitx.tasks.settle import complete_config
from vitx.training import phases
from vitx.training.experiment import Experiment
from vitx.training.trial import count_training_flops, measure_training_bytes

Facts = tuple[str, Any]  # name and mode of the primary figure
RUNS, TABLE, INDEX = "runs.csv", "table.md", "README.md"
INDEX_HEAD = """# Results by source and design

Each line is a table that one command measured. Its page has intervals, curves, data and versions; a
CSV file without a page was made in another way. The figures are mean ± standard deviation over
seeds. `vitx sweep` and `vitx reproduce` write this page from the files in its folder.

| design | test figures | runs | date | hardware | command |
|---|---|---|---|---|---|
"""


@sources.sharing()
def measure_methods(
  points: Sequence[Point], published: Mapping[str, Mapping[str, Any]], directory: str
) -> tuple[list[Method], Facts]:
  """Checks the config of each method of a sweep, and counts the method's parameters and FLOPs.

  This happens before any training. Runs that are in the directory already must have been trained on
  the data of today.

  Returns:
    The methods, in the order of the points; and the name and mode of their primary figure, the
    metric by which they are compared. The mode is "max" if high values are good, otherwise "min".

  Raises:
    ConfigError: A config cannot train (the message names the method), the methods' primary figures
      differ, or the data have changed since a run.
  """
  methods, facts = [], {}
  for name in dict.fromkeys(point.method for point in points):
    point = next(point for point in points if point.method == name)
    with naming(point.method):
      runs = phases.check(point.config, wd.join(directory, point.name))
    for other in points:
      if other.method == name:
        _check_data(other, wd.join(directory, other.name), runs)
    task = runs[-1].task
    primary = task.figures[0]
    facts[primary.name, primary.direction] = point.method
    flops = sum(run.total_steps * count_training_flops(run.settings) for run in runs)
    steps = sum(run.total_steps for run in runs)
    parameters = count_parameters(task.model, task.input_spec).total
    figures = published.get(point.method, {})
    ends_early = any(run.settings.evaluation.stop_early for run in runs)
    methods.append(Method(point.method, steps, flops, parameters, figures, ends_early))
  if len(facts) > 1:
    raise ConfigError(f"the methods have different primary figures: {facts}; sweep each alone.")
  return methods, next(iter(facts))


def _check_data(point: Point, workdir: str, runs: Sequence[Experiment]) -> None:
  """Checks that the run of a point, if it has begun, was trained on the data of today.

  A finished point is not trained again, so that nothing else would notice other data. Folds depend
  on the order of the classes too.
  """
  names = sorted(point.config.get("phases") or ())
  for place, run in zip([wd.join(workdir, x) for x in names] or [workdir], runs, strict=True):
    then, now = wd.read_json(place, wd.ENVIRONMENT).get("data"), run.source.info
    # Points of one method have several sources if the name of the source contains the seed.
    if not then or then.get("source") != now.name:
      continue
    orders = {tuple(names or ()) for names in (then["class_names"], now.class_names)}
    has_order = run.settings.data.folds is None or len(orders) == 1
    if then["fingerprint"] != now.fingerprint or not has_order:
      raise ConfigError(
        f"data.source={now.name!r} has changed since {place} was trained. Restore the data, or"
        " choose another --workdir."
      )


def measure_sweep(results: str | Path, config: str) -> SweepResults:
  """Compiles a training step of each row of a sweep for its memory; the steps are never run.

  Args:
    results: The CSV file of the sweep.
    config: The config `FILE` or `FILE:field=value` whose rows the sweep has trained.
  """
  cache.enable()
  path, overrides = split_text(config)
  figure = build_task(complete_config(load_config(config))).figures[0].name
  values, flops = read_results(results, figure)
  memory = {}
  for row in find_rows(path, list(values)):
    completed = complete_config(load_config(join_text(f"{path}:{row}", [overrides])))
    if row in flops:
      check_cost(row, count_training_flops(completed), flops[row])
    memory[row] = measure_training_bytes(completed) / 1e9  # type: ignore[operator]
  kind, backend = jax.devices()[0].device_kind, jax.default_backend()
  source = Path(results)
  name = source.resolve().parent.name if source.name == RUNS else source.stem
  title = f"{name}, rows of {config}: test figure of finished runs"
  title += ", mean ± standard deviation over seeds" * (max(map(len, values.values())) > 1)
  title += ", against the memory of a training step of the row's whole batch, compiled for"
  title += f" {kind}{f' ({backend})' if backend != kind else ''}, never run."
  return SweepResults(values, memory, figure, title, f"memory_{name}")


def group_folds(
  points: Sequence[Point], outcomes: Sequence[Outcome], directory: str
) -> dict[tuple[str, int], list[str]]:
  """Returns the workdirs of the runs of each method and seed of which all folds are finished."""
  groups: dict[tuple[str, int], list[str]] = {}
  for point, outcome in zip(points, outcomes, strict=True):
    if point.fold is not None and not outcome.problem:
      groups.setdefault((point.method, point.seed), []).append(wd.join(directory, point.name))
  folds = {point.method: point.config.data.folds for point in points}
  return {key: runs for key, runs in groups.items() if len(runs) == folds[key[0]]}


def write_results(
  comparison: Comparison,
  points: Sequence[Point],
  directory: str,
  out: Path,
  name: str,
  *,
  plot: bool,
  more: Sequence[str] = (),
) -> list[Path]:
  """Writes the page, the runs, the curves and the index of a finished sweep; returns their paths.

  Args:
    comparison: The comparison of the finished sweep.
    points: The points of the sweep.
    directory: The directory of the points' workdirs.
    out: The folder of the results of all sweeps, which has the index.
    name: The name of this sweep's folder in it, such as "digits/default".
    plot: Whether to draw the curves, which needs matplotlib.
    more: Further sections of the page, in Markdown; they follow the table.
  """
  folder = out / name
  table, rows = folder / TABLE, folder / RUNS
  ended = zip(points, comparison.outcomes, strict=True)
  ran = [wd.join(directory, point.name) for point, outcome in ended if not outcome.problem]
  parts = [f"# {markdown.text(name)}", format_table(comparison), *more]
  drawn = []
  if plot and ran:
    curves, figure = read_curves(ran)
    published = find_published_curves({m.name: m.published for m in comparison.methods}, figure)
    drawn = draw(RunCurves(curves, figure, published=published), folder)
    parts.append(f"![learning curves]({drawn[0].name})")
  parts += _quote(comparison.methods)
  parts += ["## Run", _describe_run(comparison, ran)]
  replace_text(rows, format_csv(comparison))
  replace_text(table, "\n\n".join(parts) + "\n")
  return [table, rows, *drawn, *write_index(out)]


def write_index(out: Path) -> list[Path]:
  """Writes the index of a folder, unless its README.md is another text; returns paths written."""
  index, title = out / INDEX, INDEX_HEAD.partition("\n")[0]
  if index.exists() and not index.read_text(encoding="utf-8").startswith(title):
    return []
  replace_text(index, format_index(out))
  return [index]


def format_index(out: Path) -> str:
  """Returns the index of the designs `out/DESIGN` and `out/SOURCE/DESIGN` in Markdown."""
  files = [*out.glob(f"*/{RUNS}"), *out.glob(f"*/*/{RUNS}")]
  return INDEX_HEAD + "".join(_list_design(path, out) for path in sorted(files))


def _list_design(path: Path, out: Path) -> str:
  """Returns the line of the index about the design whose runs are in a file."""
  with open(path, newline="", encoding="utf-8") as file:
    columns, *runs = csv.reader(file)
  page, count = path.with_name(TABLE), str(len(runs))
  if page.exists():
    text = page.read_text(encoding="utf-8")
    facts = dict(re.findall(r"^- ([\w ]+): (.*)$", text, re.MULTILINE))
    date = facts.get("table made") or facts["date"]
    cells = [_list_figures(text), count, date, facts["hardware"], facts["command"]]
  else:
    page, cells = path, [f"columns {', '.join(columns)}", count, "", "", ""]
  name = markdown.text(path.parent.relative_to(out).as_posix())
  link = urllib.parse.quote(page.relative_to(out).as_posix())
  cells = [re.sub(r"(?<!\\)\|", r"\|", cell) for cell in (f"[{name}]({link})", *cells)]
  return f"| {' | '.join(cells)} |\n"


def _list_figures(page: str) -> str:
  """Returns the test figure of every method of a page, which its first table has."""
  lines = [line for line in page.split("\n\n")[1].splitlines() if line.startswith("|")]
  head, _, *rows = (re.split(r"(?<!\\)\|", line)[1:-1] for line in lines)
  at = next(place for place, name in enumerate(head) if name.startswith(" test "))
  figures = (f"{row[0].strip()} {row[at].strip()}" for row in rows)
  return f"{head[at].strip()}: {', '.join(figures)}"


def _quote(methods: Sequence[Method]) -> list[str]:
  """Returns a list with one Markdown table of all published results; [] if there are none."""
  names = list(dict.fromkeys(name for method in methods for name in method.published))
  if not names:
    return []
  rows = [["as printed", *names]]
  rows += [
    [method.name, *(_show(method.published.get(name)) for name in names)] for method in methods
  ]
  return [markdown.table(rows)]


def _show(value: Any) -> str:
  if isinstance(value, Mapping):  # the values by epoch
    last = list(value)[-1]
    return f"{value[last]:g} at {last}"
  return f"{value:,}" if isinstance(value, int | float) else str(value or "")


def _describe_run(comparison: Comparison, runs: Sequence[str]) -> str:
  environments = [wd.read_json(wd.find_run(run), wd.ENVIRONMENT) for run in runs]
  hours = dict.fromkeys((method.name for method in comparison.methods), 0.0)
  for outcome in comparison.outcomes:
    hours[outcome.method] += outcome.seconds / 3600
  shares = ", ".join(f"{markdown.text(name)} {value:.3g}" for name, value in hours.items())
  command = shlex.join(["vitx", *markdown.shorten_paths(sys.argv[1:])])
  lines = {
    "command": [markdown.code(command)],
    "table made": [datetime.date.today().isoformat()],
    "hours of training": [f"{sum(hours.values()):.3g} in all; {shares}"],
    "hardware": map(_hardware, environments),
    "data": (_data(environment["data"]) for environment in environments),
    "versions": map(_versions, environments),
    "commit": (str(environment["commit"]) for environment in environments),
  }
  return "\n".join(
    f"- {name}: {' · '.join(dict.fromkeys(values))}" for name, values in lines.items()
  )


def _hardware(environment: Mapping[str, Any]) -> str:
  devices = environment["devices"]
  kinds = ", ".join(f"{devices.count(kind)} x {kind}" for kind in dict.fromkeys(devices))
  return f"{kinds}; {environment['cores']} cores of {environment['processor'] or 'unknown kind'}"


def _data(data: Mapping[str, Any]) -> str:
  source = markdown.text(markdown.shorten_paths(data.get("source")))
  return f"{source}, fingerprint {data['fingerprint']}, {json.dumps(data.get('examples'))}"


def _versions(environment: Mapping[str, Any]) -> str:
  versions = {"python": environment["python"], **environment["versions"]}
  return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
