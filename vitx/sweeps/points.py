"""Makes the runs of a sweep: all combinations of a config file's rows, field values and seeds.

A row is a named variant in a config file, such as a row of a paper's table. A method is a
combination of a row and field values. A point is one run of the sweep: a method with one seed and,
in cross-validation, one fold.
"""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from vitx.checkpoints.workdir import to_plain
from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.fields import check_fold
from vitx.config.loader import join_text, load_config, open_config, split_text
from vitx.config.overrides import set_field, split
from vitx.sweeps.sweep import Point
from vitx.training import phases
from vitx.training.experiment import LONGEST as LONGEST_RUN
from vitx.training.experiment import make_experiment
from vitx.training.record.progress import count_bar
from vitx.training.trial import count_training_flops

FOLD = "data.fold"  # each of its values is another run of one method, like each seed
ROW = "row"  # the name by which a grid varies the row of the config file
SEED = "{seed}"  # stands for the seed of each run in the texts of configs
LONGEST = 200  # the most characters of a workdir's name
MOST = 10_000  # the most points of a sweep


def parse_grid(text: str) -> dict[str, list[str]]:
  """Parses the values that a sweep combines, written as `field=[value,value],field=[value]`.

  The values of the special field `row` are rows of the config file (its named variants).

  Raises:
    ConfigError: The text has another form, a field has no values or occurs twice, or the field is
      `seed`.
  """
  grid: dict[str, list[str]] = {}
  if not split(text):
    raise ConfigError("over='' has no field: leave --over out to vary the seed alone.")
  for item in split(text):
    field, _, values = (part.strip() for part in item.partition("="))
    if not field or not re.fullmatch(r"\[.*\]", values, re.DOTALL):
      raise ConfigError(
        f"over={item!r} is not of the form field=[value,value], such as learning_rate=[1e-3,2e-3]."
      )
    if field in grid:
      raise ConfigError(f"over: {field} occurs twice; give all its values in one list.")
    grid[field] = split(values[1:-1])
    if not grid[field]:
      raise ConfigError(f"over='{field}=[]' has no value: the sweep is empty. Give a value.")
  if "seed" in grid:
    raise ConfigError("over='seed=[...]': give the number of seeds by --seeds instead.")
  return grid


def find_rows(path: str, wanted: Sequence[str]) -> list[str]:
  """Returns the wanted rows (named variants) of a config file, or all rows if none is wanted.

  Raises:
    ConfigError: A wanted row is unknown (the error names the nearest) or occurs twice, or the file
      has no rows.
  """
  known = () if path.endswith(".json") else tuple(open_config(path).get("ROWS", ()))
  if not known:
    raise ConfigError(f"config={path!r} has no ROWS; use vitx sweep, which trains one config.")
  for row in wanted:
    if row not in known:
      raise ConfigError(
        f"rows={row!r} is no row of {path!r}.{nearest(row, known)} Its rows are {listing(known)}."
      )
    if list(wanted).count(row) > 1:
      raise ConfigError(f"rows={','.join(wanted)!r} has {row!r} twice; name each row once.")
  return list(wanted or known)


def find_published(path: str) -> Mapping[str, Mapping[str, Any]]:
  """Returns the results that a config file quotes from a publication, by row of the file."""
  return {} if path.endswith(".json") else open_config(path).get("PUBLISHED", {})


def match_published(path: str, points: Iterable[Point]) -> dict[str, Mapping[str, Any]]:
  """Returns the published results of those methods that train on the publication's data set.

  Only a method that is named as a row of the config file has published results. It does not train
  on the publication's data set if its `data.source` differs from the row's own.

  Args:
    path: The path of the config file.
    points: The points of the sweep.
  """
  published = find_published(path)
  configs = {point.method: point.config for point in points if point.method in published}
  return {
    row: published[row]
    for row, config in configs.items()
    if config.data.source == load_config(f"{path}:{row}").data.source
  }


def expand(config: str, grid: Mapping[str, Sequence[str]]) -> dict[str, str]:
  """Returns each method's config as a text `FILE:ROW,field=value`, by the method's name.

  A method is a combination of a row and field values.

  Args:
    config: The config that the sweep varies, as a text `FILE` or `FILE:ROW,field=value`.
    grid: The values to combine, by field, from `parse_grid`; if it is empty, the config itself is
      the only method.

  Raises:
    ConfigError: The config and the grid both name rows, the config sets a seed, two methods have
      equal names, or there are more than `MOST` methods.
  """
  path, arg = split_text(config)
  items = split(arg)
  own = [item for item in items if "=" not in item]
  if own and ROW in grid:
    raise ConfigError(
      f"config={config!r} names the row {own[0]!r}, and --over names others. Name rows in one"
      " place."
    )
  if any(item.partition("=")[0].strip() == "seed" for item in items):
    raise ConfigError(f"config={config!r} sets a seed; give the number of seeds by --seeds.")
  _check_count(math.prod(map(len, grid.values())), "over")
  texts: dict[str, str] = {}
  short = _shorten(grid)
  for values in itertools.product(*grid.values()):
    chosen = dict(zip(grid, values, strict=True))
    settings = [f"{field}={value}" for field, value in chosen.items() if field != ROW]
    row = [chosen[ROW]] if ROW in chosen else []
    parts = [f"{'' if f == ROW else f'{short[f]}-'}{_clean(v)}" for f, v in chosen.items()]
    name = "_".join(parts or own or [_clean(name_file(path))])
    if name in texts:
      raise ConfigError(f"over: two points have the name {name!r}; leave out one of the values.")
    texts[name] = f"{path}:{','.join([*row, *items, *settings])}"
  return texts


def fit_budget(texts: Mapping[str, str], budget: float) -> dict[str, str]:
  """Sets the duration of each method to the most steps that a budget of FLOPs allows.

  The duration that a method has, whether valid or not, is replaced.

  Args:
    texts: The config of each method as `FILE:ROW,field=value`, by the name of the method. The run
      with the seed 0 is measured.
    budget: The floating-point operations of a whole training.

  Returns:
    The config of each method as `FILE:ROW,field=value`, with the new `duration`.

  Raises:
    ConfigError: A method runs in phases, cannot train, or needs more than the budget for one step.
  """
  configs = {method: load_config(text.replace(SEED, "0")) for method, text in texts.items()}
  # The run that is measured has any length. The schedule is checked later, with the true length.
  trial = {"seed": 0, "duration": f"{LONGEST_RUN} steps", "schedule": "constant"}
  for config, (field, value) in itertools.product(configs.values(), trial.items()):
    set_field(config, field, value)
  phases.use_cores(configs.values())  # before a measurement starts JAX
  fitted = {}
  for method, config in configs.items():
    if config.get("phases"):
      raise ConfigError(
        f"budget={budget:.3g}: {method} has phases; set phases.NAME.duration instead."
      )
    # The number of examples decides the batch size, see `min_steps_per_epoch`.
    each = count_training_flops(make_experiment(config, is_trial=True).config)
    if budget < each:
      raise ConfigError(
        f"budget={budget:.3g} FLOP is less than the {each:.3g} of one step of {method}; raise it."
      )
    fitted[method] = join_text(texts[method], [f"duration={int(budget // each)} steps"])
  return fitted


def make_points(
  texts: Mapping[str, str], seeds: int, folds: Sequence[str] | None = None
) -> list[Point]:
  """Returns the points (runs) of a sweep, sorted by seed, then by fold.

  In this order all methods finish their first runs early, so that they can soon be compared.

  Args:
    texts: The config of each method as `FILE:ROW,field=value`, without a seed, by the name of the
      method. `{seed}` in a text stands for the seed of each run, so that a run can begin with
      another sweep's run of the equal seed: `init_from=runs/dense/vit_seed-{seed}`.
    seeds: The number of seeds.
    folds: The values of `data.fold` to run; None if each config names its fold or has none.

  Raises:
    ConfigError: There is no seed, there are more than `MOST` points, a field is unknown or has a
      wrong value, two points have equal configs, folds of equal number are of different divisions
      of the data, a fold does not exist, or a name is too long for a folder.
  """
  total = count_points(texts, seeds, folds)
  points = []
  with count_bar("reading configs", total, "point") as bar:
    for method, text in texts.items():
      load_config(text.replace(SEED, "0"))  # so that an error quotes no `seed=0` of ours
      for seed, fold in itertools.product(range(seeds), folds or (None,)):
        own = [] if fold is None else [f"{FOLD}={fold}"]
        config = load_config(join_text(text, [*own, f"seed={seed}"]).replace(SEED, str(seed)))
        part = "" if fold is None else f"_fold-{config.data.fold}"
        number = None if fold is None else config.data.fold
        points.append(Point(f"{method}{part}_seed-{seed}", method, seed, config, number))
        bar.update()
  _check_apart(points)
  divisions = {point.config.data.folds for point in points if point.fold is not None}
  if len(divisions) > 1:
    raise ConfigError(
      f"data.folds={listing(divisions)}: the methods would be compared on different test examples;"
      " give all of them one number of folds, or a sweep of its own for each number."
    )
  for point in points:  # before any training, only one point of each method is checked
    if point.fold is not None and point.config.data.folds is not None:
      check_fold(point.fold, point.config.data.folds)
  return sorted(points, key=lambda point: (point.seed, point.fold or 0))


def count_points(texts: Mapping[str, str], seeds: int, folds: Sequence[str] | None = None) -> int:
  """Returns the number of points that `make_points` makes of the same arguments.

  Raises:
    ConfigError: There is no seed, or there are more than `MOST` points.
  """
  if seeds < 1:
    raise ConfigError(f"seeds={seeds}: the sweep is empty; give at least 1.")
  total = len(texts) * seeds * len(folds or ("",))
  _check_count(total, f"seeds={seeds}")
  return total


def _check_count(points: int, field: str) -> None:
  if points > MOST:
    raise ConfigError(f"{field} gives {points:,} points, but {MOST:,} is the most; vary less.")


def _check_apart(points: Iterable[Point]) -> None:
  seen: dict[str, str] = {}
  for point in points:
    if len(point.name) > LONGEST:
      raise ConfigError(f"over: the name {point.name!r} exceeds {LONGEST} characters; vary less.")
    config = _fingerprint(point.config)
    if config in seen:
      raise ConfigError(
        f"the points {seen[config]!r} and {point.name!r} have equal configs. Leave one of the"
        " values out."
      )
    seen[config] = point.name


def _fingerprint(config: ConfigDict) -> str:
  plain = to_plain(config)
  for name, value in plain.items():
    if isinstance(value, dict) and set(value) == {"name"}:
      plain[name] = value["name"]  # a choice without fields equals its name
  return json.dumps(plain, sort_keys=True, default=repr)  # a wrong type is refused later, by name


def _shorten(fields: Iterable[str]) -> dict[str, str]:
  """Returns a short name for each field: its last part, such as "width" for "model.width".

  Fields whose last parts are equal keep their whole names.
  """
  last = {field: field.rpartition(".")[2] for field in fields}
  ends = list(last.values())
  return {field: end if ends.count(end) == 1 else field for field, end in last.items()}


def name_file(path: str) -> str:
  """Returns the name of a config file without its folder and suffix."""
  return re.sub(r"\.(py|json)$", "", path.rstrip("/").rpartition("/")[2])


def _clean(text: str) -> str:
  """Replaces characters that need quotes in a shell by "-", for the name of a folder."""
  cleaned = re.sub(r"[^\w.+-]+", "-", text).rstrip("-")
  return cleaned if re.match(r"-\d", text) else cleaned.lstrip("-")  # "-3" keeps its sign
