"""Makes the runs of a sweep: all combinations of a config file's rows, field values and seeds.

A row is a named variant in a config file, such as a row of a paper's table. A method is a
combination of a row and field values. A point is one run of the sweep: a method with one seed and,
in cross-validation, one fold.

A finished sweep is recognized in a second, without JAX and without the config of each point. It
records the text that its command showed, and everything on which that depends: the arguments, the
texts of the points' configs, and the times of the config file, of the points' `point.json` and of
the files of results. If these are unchanged, nothing is left to do. A config is a function of its
text, of the config file and of the modules that the file imports, so the first point of each method
is also loaded and compared, which shows a change of vitx or of such a module. A record only shows a
text again; a point is always trained by a config that was loaded.
"""

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from vitx.checkpoints import workdir as wd
from vitx.config.errors import ConfigError, listing
from vitx.config.fields import check_fold
from vitx.config.loader import find, find_published, join_text, load_config, split_text
from vitx.config.overrides import set_field, split
from vitx.runtime.progress import count_bar

FOLD = "data.fold"  # each of its values is another run of one method, like each seed
ROW = "row"  # the name by which a grid varies the row of the config file
RECORD = "finished.json"  # the record of a finished sweep
SEED = "{seed}"  # stands for the seed of each run in the texts of configs


@dataclasses.dataclass(frozen=True)
class Point:
  """A run of a sweep: a method with a seed and, in cross-validation, a fold.

  Attributes:
    name: The name of the run's workdir in the sweep's directory.
    method: The name of the method. Points of one method differ only in seed and fold.
    seed: The seed of the run.
    text: The config of the run as `FILE:ROW,field=value`.
    fold: The fold that the run tests; None if the sweep does not vary `data.fold`.
  """

  name: str
  method: str
  seed: int
  text: str
  fold: int | None = None

  @functools.cached_property
  def config(self) -> ConfigDict:
    """Returns the config that `get_config` returned, not resolved; it is loaded at the first use.

    Raises:
      ConfigError: The config cannot be loaded, see `load_config`.
    """
    return load_config(self.text)


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
  if ROW in grid:  # its rows replace that of the config
    items = [item for item in items if item not in rows]
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
  from vitx.training import phases
  from vitx.training.experiment import make_experiment
  from vitx.training.trial import count_training_flops

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
  """Returns the points (runs) of a sweep, sorted by seed, then by fold, without a check.

  In this order all methods finish their first runs early, so that they can soon be compared.
  Without folds no config is loaded.

  Args:
    texts: The config of each method as `FILE:ROW,field=value`, without a seed, by the name of the
      method. `{seed}` in a text stands for the seed of each run, so that a run can begin with
      another sweep's run of the equal seed: `init_from=runs/dense/vit_seed-{seed}`.
    seeds: The number of seeds.
    folds: The values of `data.fold` to run; None if each config names its fold or has none.
  """
  points = []
  every = itertools.product(texts.items(), range(seeds), folds or (None,))
  for (method, text), seed, fold in every:
    fields = [f"seed={seed}"] if fold is None else [f"{FOLD}={fold}", f"seed={seed}"]
    whole = join_text(text, fields).replace(SEED, str(seed))
    number = None if fold is None else load_config(whole).data.fold
    part = "" if fold is None else f"_fold-{number}"
    points.append(Point(f"{method}{part}_seed-{seed}", method, seed, whole, number))
  return sorted(points, key=lambda point: (point.seed, point.fold or 0))


def check_points(points: Sequence[Point]) -> None:
  """Loads the configs of all points of a sweep, and checks that they differ.

  Raises:
    ConfigError: Two points have equal configs, folds of equal number are of different divisions of
      the data, or a fold does not exist.
  """
  names: dict[str, str] = {}
  with count_bar("reading configs", len(points), "point") as bar:
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
      bar.update()
  divisions = {point.config.data.folds for point in points if point.fold is not None}
  if len(divisions) > 1:
    raise ConfigError(f"data.folds={listing(divisions)}: methods need the same test examples.")


def identify(points: Sequence[Point], *arguments: Any) -> dict[str, Any]:
  """Returns the identity of a sweep as JSON values; loads the config of each method's first point.

  Args:
    points: The points of the sweep.
    *arguments: The arguments of the command that decide its results, as JSON values.
  """
  file = _stamp([str(find(split_text(points[0].text)[0]))])
  texts = {point.name: point.text for point in points}
  configs = [_fingerprint(point.config) for point in points if not point.seed]
  return {"points": texts, "configs": configs, "file": file, "rest": [*arguments]}


def record(identity: dict[str, Any], directory: str, paths: Iterable[Any], **result: Any) -> None:
  """Records that a sweep is finished.

  Args:
    identity: The identity of the sweep, made when the configs were loaded.
    directory: The directory of the points' workdirs.
    paths: The files of results.
    **result: The values that `read_record` returns.
  """
  files = [wd.join(directory, f"{name}/{wd.POINT}") for name in identity["points"]]
  more = {"stamps": _stamp([*files, *map(str, paths)]), "result": result}
  wd.write_json(directory, RECORD, identity | more)


def read_record(points: Sequence[Point], directory: str, *arguments: Any) -> dict[str, Any] | None:
  """Returns the result that `record` stored of a sweep; None if anything may have changed."""
  stored = wd.read_json(directory, RECORD)
  stamps, result = stored.pop("stamps", {}), stored.pop("result", None)
  if stored.get("points") != {point.name: point.text for point in points}:
    return None  # before a config is loaded
  return result if stored == identify(points, *arguments) and stamps == _stamp(stamps) else None


def _stamp(paths: Iterable[str]) -> dict[str, list[int]]:
  """Returns the time of the last change, in seconds, and the length in bytes of existing files."""
  stats = {path: epath.Path(path).stat() for path in paths if epath.Path(path).exists()}
  return {path: [int(stat.mtime), stat.length] for path, stat in stats.items()}


def _fingerprint(config: ConfigDict) -> str:
  """Returns a text that two configs share if they are equal."""
  plain = wd.to_plain(config)
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
