"""Probes: simple classifiers trained on a network's frozen features, in seconds."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging

from vitx.analysis.figures import style
from vitx.analysis.figures.few_shot import plot_few_shot
from vitx.analysis.probes import METHODS, LabeledFeatures, score
from vitx.analysis.statistics import mean_interval
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_folder
from vitx.config import registry
from vitx.config.checks import NonNegativeInt, PositiveInt, Seed, check_choice, check_value
from vitx.config.errors import ConfigError
from vitx.config.fields import seed_of
from vitx.config.loader import load_config
from vitx.config.settings import change
from vitx.data import order
from vitx.data.cache import cache_directory
from vitx.data.dataset import ROLES, Source, check_arrays
from vitx.data.sources import divide
from vitx.inference import opening
from vitx.inference.features import read_features
from vitx.runtime import cache as programs
from vitx.runtime.weights import with_teacher_model
from vitx.tasks import settle
from vitx.tasks.classification import Classification

SHOTS = (1, 2, 5, 10)


def probe(
  workdir: str | Path | Loaded | None = None,
  *,
  config: str | Mapping[str, Any] | None = None,
  checkpoint: str | int = "best",
  weights: str | None = None,
  source: str | None = None,
  data_dir: str | None = None,
  batch_size: int | None = None,
  methods: Sequence[str] = tuple(METHODS),
  shots: Sequence[int] = SHOTS,
  draws: int = 5,
  seed: int = 0,
  out: str | Path | None = None,
  cache: str | Path | None = None,
  trust_code: bool = False,
) -> dict[str, Any]:
  """Trains simple classifiers on a network's frozen features, and measures their accuracy.

  A feature is the vector that the network's last layer (the head) reads: the pooled tokens. The
  features of train, validation and test are computed once and kept in a file. Each classifier
  learns from train. Its one setting is chosen on *validation*, and the result is its accuracy on
  test.

  Args:
    workdir: The workdir of a training run, the repository of a model, or a model that `vitx.load`
      returned, which has its checkpoint and weights already.
    config: A config, or its text `FILE:ROW,field=value`, to be given instead of a workdir. Its
      `init_from` must name weights.
    checkpoint: "best", "latest" or a step of the workdir.
    weights: The weights, "ema" or "raw", see `vitx.load`; `None` means those that selected the best
      checkpoint.
    source: A source other than the workdir's, with any classes, such as folder:PATH. A copy of the
      run's data in another place has the run's splits.
    data_dir: The directory of TFDS sets; `None` means the run's.
    batch_size: The number of examples in a batch; `None` means the evaluation batch size.
    methods: The names of the methods, any of knn, ridge and logistic.
    shots: The numbers of training examples of each class for the few-shot curves. Numbers above the
      size of the smallest class are left out.
    draws: The number of times that the examples of a few-shot result are drawn; 0 means no curves.
    seed: The seed of these draws.
    out: A folder for a picture of the few-shot curves, `few_shot.png`.
    cache: The folder of the files of features; `None` means `features` in vitx's cache directory.
    trust_code: Whether to import the objects that the config names as `module:Name`.

  Returns:
    A dict with the model, step, source and class_names; the number of `features`, which is the
    length of the vector; the number of `examples` in train, validation and test; and whether the
    features were `cached`, that is, read from a file. `methods` has the setting of each method,
    its accuracies on validation and test, and whether the setting is `at_end`, the first or last
    value of the grid. `few_shot` has a dict for each method and number of shots: the test
    accuracies of the draws (`values`), their `mean`, and the ends `low` and `high` of the mean's
    95 % t interval (`None` if the interval is not defined).

  Raises:
    ConfigError: The workdir or the weights do not exist, or the model or the data have no classes.
    MissingExtraError: Matplotlib is not installed, and `out` is given.
  """
  for name in methods:
    check_choice(name, "methods", tuple(METHODS))
  check_value(tuple(shots), "shots", tuple[PositiveInt, ...])
  check_value(draws, "draws", NonNegativeInt)
  check_value(seed, "seed", Seed)
  check_value(batch_size, "batch_size", PositiveInt | None)
  if out is not None:
    check_folder(out, "out")
  folder = cache_directory() / "features" if cache is None else Path(cache)
  with registry.trusting(trust_code or None):
    if config is not None and workdir is None and source is None:
      model, data = open_config(config, data_dir)
    elif workdir is not None and config is None:
      with opening.open_model(workdir, checkpoint, weights=weights, source=source) as loaded:
        model, data = _open_run(loaded, source, data_dir)
    else:
      raise ConfigError("give a workdir, or a config, which sets its own data.source.")
    if batch_size is not None:
      settings = change(model.settings, {"evaluation.batch_size": batch_size})
      model = dataclasses.replace(model, settings=settings)
    _check_data(model, data)
    features, cached = read_features(model, data, folder)
  result = {
    "model": model.workdir,
    "step": model.step,
    "source": data.info.name,
    "class_names": list(data.info.class_names or ()),
    "features": features["train"].values.shape[1],
    "examples": {role: len(features[role]) for role in ROLES},
    "cached": cached,
    "methods": {name: _measure(name, features) for name in methods},
    "few_shot": list(_measure_few(methods, features, shots, draws, seed)),
  }
  if out is not None and result["few_shot"]:
    style.save(plot_few_shot(result), Path(out), "few_shot")
  return result


def _open_run(model: Loaded, source: str | None, data_dir: str | None) -> tuple[Loaded, Source]:
  """Opens the data of a run, or another source; the returned model's settings have its fields."""
  is_own = opening.is_own(model, source)
  data = opening.change_folder(model, data_dir)
  dataset, data = opening.change_source(model, data, source)
  is_same = is_own or dataset.info.fingerprint == model.fingerprint
  # The folds depend on the order of the classes, which a file beside the data may have given.
  names = model.class_names if is_same else None
  opened = divide(dataset, data, seed_of(model.settings, "data_seed"), names)
  if is_own and model.fingerprint and opened.info.fingerprint != model.fingerprint:
    logging.warning(
      "%s has changed since the run: its test may have examples that the run was trained on",
      opened.info.name,
    )
  return dataclasses.replace(model, settings=change(model.settings, {"data": data})), opened


def open_config(config: str | Mapping[str, Any], data_dir: str | None) -> tuple[Loaded, Source]:
  """Returns the model of a config with the weights of its `init_from`, and the config's data."""
  programs.enable()
  label = config if isinstance(config, str) else "config"
  config = load_config(config) if isinstance(config, str) else config
  settings = settle.read(config)
  if not settings.init_from:
    raise ConfigError(f"config={label!r} has no weights; set init_from, or give a workdir.")
  settings = with_teacher_model(settings)
  if data_dir is not None:
    settings = change(settings, {"data.data_dir": data_dir})
  source = settle.open_data(settings)
  settled = settle.settle(settings, source)
  settings, task = settled.settings, settled.task
  variables = opening.read_variables(settings, source.info, task)
  names = list(source.info.class_names or ())
  about = {"fingerprint": source.info.fingerprint, "class_names": names}
  return Loaded(settings, task, variables, about, step=0, workdir=label), source


def _check_data(model: Loaded, source: Source) -> None:
  """Checks that a source has classes, and that the network can read its examples."""
  info, labels = source.info, source.train.labels
  if info.class_names is None or labels is None or labels.ndim != 1:
    raise ConfigError(f"data.source={info.name!r} has no class for each example; a probe needs it.")
  if isinstance(model.task, Classification):
    check_arrays(info, {"image": ("uint8", 3), "label": ("integer", 0)}, model.settings.task.name)
    opening.check_channels(model, info)


def _measure(method: str, features: dict[str, LabeledFeatures]) -> dict[str, Any]:
  result = dataclasses.asdict(score(method, *(features[role] for role in ROLES)))
  return {METHODS[method].setting: result.pop("setting"), **result}


def _measure_few(
  methods: Sequence[str],
  features: dict[str, LabeledFeatures],
  shots: Sequence[int],
  draws: int,
  seed: int,
) -> Iterator[dict[str, Any]]:
  """Yields the accuracies of each method with few training examples of each class."""
  train, validation, test = (features[role] for role in ROLES)
  smallest = np.unique(train.labels, return_counts=True)[1].min()
  for method in methods:
    for count in sorted({count for count in shots if count <= smallest} if draws else ()):
      parts = [train.take(draw_shots(train.labels, count, seed, draw)) for draw in range(draws)]
      values = [score(method, part, validation, test).test for part in parts]
      low, high = mean_interval(values) or (None, None)
      row = {"method": method, "shots": count, "mean": float(np.mean(values))}
      yield {**row, "low": low, "high": high, "values": values}


def draw_shots(labels: np.ndarray, count: int, seed: int, draw: int) -> np.ndarray:
  """Draws `count` training examples of each class, as a function of the seed and the draw alone.

  In one draw, the examples for a smaller `count` are among those for a larger one.

  Returns:
    The indices of the examples.
  """
  shuffled = order.shuffle(seed, order.SHOTS, draw, len(labels))
  by_class = [shuffled[labels[shuffled] == label][:count] for label in np.unique(labels)]
  return np.sort(np.concatenate(by_class))
