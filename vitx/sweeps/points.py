"""Makes the runs of a sweep: all combinations of a config file's rows, field values and seeds.

A row is a named variant in a config file, such as a row of a paper's table. A method is a
combination of a row and field values. A point is one run of the sweep: a method with one seed and,
in cross-validation, one fold.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from vitx.checkpoints.workdir import to_plain
from vitx.config.errors import ConfigError, listing
from vitx.config.fields import check_fold
from vitx.config.loader import find_published, join_text, load_config, split_text
from vitx.config.overrides import set_field, split
from vitx.runtime.progress import count_bar
from vitx.sweeps.sweep import Point
from vitx.training import phases
from vitx.training.experiment import make_experiment
from vitx.training.trial import count_training_flops

FOLD = "data.fold"  # each of its values is another run of one method, like each seed
ROW = "row"  # the name by which a grid varies the row of the config file
SEED = "{seed}"  # stands for the seed of each run in the texts of configs


def parse_grid(text: str) -> dict[str, list[str]]:
  """Parses the values that a sweep combines, written as `field=[value,value],field=[value]`.

  The values of the special field `row` are rows of the config file (its named variants).

  Raises:
    ConfigError: The text has another form, a field has no values or occurs twice.
  """
  grid: dict[str, list[str]] = {}
  for item in split(text):
    field, _, values = (part.strip() for part in item.partition("="))
    if not field or field in grid or not re.fullmatch(r"\[.+\]", values, re.DOTALL):
      raise ConfigError(
        f"over={item!r} must be field=[value,value] with all values of a field, such as"
        " learning_rate=[1e-3,2e-3]."
      )
    grid[field] = split(values[1:-1])
  return grid


def match_published(path: str, points: Iterable[Point]) -> dict[str, Mapping[str, Any]]:
  """Returns the published results of those methods that train on the publication's data set.

  Only a method that is named as a row of the config file has published results. It does not train
  on the publication's data set if its `data.source` differs from the row's own.
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
    ConfigError: Two methods have equal names.
  """
  path, arg = split_text(config)
  items = split(arg)
  rows = [item for item in items if "=" not in item]
  texts: dict[str, str] = {}
  short = _shorten(grid)
  for values in itertools.product(*grid.values()):
    chosen = dict(zip(grid, values, strict=True))
    settings = [f"{field}={value}" for field, value in chosen.items() if field != ROW]
    row = [chosen[ROW]] if ROW in chosen else []
    parts = [f"{'' if f == ROW else f'{short[f]}-'}{_clean(v)}" for f, v in chosen.items()]
    name = "_".join(parts or rows or [_clean(name_file(path))])
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

  Raises:
    ConfigError: A method runs in phases, cannot train, or needs more than the budget for one step.
  """
  configs = {method: load_config(text.replace(SEED, "0")) for method, text in texts.items()}
  # The run that is measured has any length. The schedule is checked later, with the true length.
  trial = {"seed": 0, "duration": f"{2**31 - 1} steps", "schedule": "constant"}
  for config, (field, value) in itertools.product(configs.values(), trial.items()):
    set_field(config, field, value)
  phases.use_cores(configs.values())  # before a measurement starts JAX
  fitted = {}
  for method, config in configs.items():
    if config.get("phases"):
      raise ConfigError(f"budget: {method} has phases; set phases.NAME.duration instead.")
    # The number of examples decides the batch size, see `min_steps_per_epoch`.
    flops = count_training_flops(make_experiment(config, is_trial=True).settings)
    if budget < flops:
      raise ConfigError(f"budget={budget:.3g}: one step of {method} has {flops:.3g} FLOP.")
    fitted[method] = join_text(texts[method], [f"duration={int(budget // flops)} steps"])
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
    ConfigError: Two points have equal configs, folds of equal number are of different divisions of
      the data, or a fold does not exist.
  """
  points = []
  with count_bar("reading configs", len(texts) * seeds * len(folds or ("",)), "point") as bar:
    for method, text in texts.items():
      for seed, fold in itertools.product(range(seeds), folds or (None,)):
        fields = [f"seed={seed}"] if fold is None else [f"{FOLD}={fold}", f"seed={seed}"]
        config = load_config(join_text(text, fields).replace(SEED, str(seed)))
        part = "" if fold is None else f"_fold-{config.data.fold}"
        number = None if fold is None else config.data.fold
        points.append(Point(f"{method}{part}_seed-{seed}", method, seed, config, number))
        bar.update()
  names: dict[str, str] = {}
  for point in points:  # before any training, only one point of each method is checked
    config = _fingerprint(point.config)
    if config in names:
      raise ConfigError(
        f"the points {names[config]!r} and {point.name!r} have equal configs. Leave one of the"
        " values out."
      )
    names[config] = point.name
    if point.fold is not None and point.config.data.folds is not None:
      check_fold(point.fold, point.config.data.folds)
  divisions = {point.config.data.folds for point in points if point.fold is not None}
  if len(divisions) > 1:
    raise ConfigError(f"data.folds={listing(divisions)}: methods need the same test examples.")
  return sorted(points, key=lambda point: (point.seed, point.fold or 0))


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
