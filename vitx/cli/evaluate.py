"""Evaluates a trained model from its workdir: `vitx evaluate --workdir DIR`."""

import argparse
import contextlib
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from tqdm import tqdm

from vitx.checkpoints.errors import CheckpointError
from vitx.checkpoints.load import Loaded, load
from vitx.data import splits
from vitx.data.dataset import Joined
from vitx.data.sources import Dataset, Examples, open_dataset
from vitx.errors import ConfigError, nearest
from vitx.training import cache, evaluation, parallel
from vitx.training.setup import make_task

SPLITS = (*splits.ROLES, "all")


def evaluate(
  workdir: str | Path,
  *,
  checkpoint: str | int = "best",
  split: str | None = None,
  source: str | None = None,
  data_dir: str | None = None,
  batch_size: int | None = None,
  predictions: str | Path | None = None,
) -> dict[str, Any]:
  """Evaluates over exactly every example of a split, on any number of devices.

  Args:
    workdir: of a training run.
    checkpoint: "best" by top-1 on *select*, "latest" or a step.
    split: train, select or report (the roles as in training), or all: every labeled example of the
      source, whatever its splits. None: report of the run's source, all of another.
    source: another source with the same classes, such as folder:PATH; none: the run's.
    data_dir: where TFDS sets lie, if not where the run found them.
    batch_size: over all devices; none: the run's evaluation batch.
    predictions: a CSV file to write, a row per example: name, label, prediction, probabilities.

  Returns:
    workdir, step, source, split, class_names; examples, top1, top5, nll (nats), ece, class_top1.

  Raises:
    ConfigError: no workdir, checkpoint, source or split of that name, or other classes.
    CorruptCheckpoint: the checkpoint is damaged.
  """
  cache.enable()
  loaded = load(workdir, checkpoint)
  config = loaded.config
  if batch_size is not None:
    if batch_size < 1:
      raise ConfigError(f"batch_size={batch_size} must be at least 1")
    config.evaluation.batch_size = batch_size
  dataset, examples, split = _open(loaded, split, source, data_dir)
  variables = {name: parallel.replicate(tree) for name, tree in loaded.variables.items()}
  params = variables.pop("params")
  batches = tqdm(
    evaluation.split_batches(config, examples),
    total=-(-len(examples) // evaluation.batch_size_for(config)),
    desc="evaluating",
    delay=3,
    leave=False,
  )
  evaluate_step = evaluation.make_evaluate(make_task(config))
  with _predictions(predictions, examples, loaded.class_names) as write:
    figures = evaluation.evaluate(evaluate_step, params, variables, batches, write)
  return {
    "workdir": str(workdir),
    "step": loaded.step,
    "source": dataset.name,
    "split": split,
    "class_names": list(loaded.class_names),
    **figures,
  }


def _open(
  loaded: Loaded, split: str | None, source: str | None, data_dir: str | None
) -> tuple[Dataset, Examples, str]:
  """The data set, the examples to evaluate and which split they are."""
  data = loaded.config.data.copy_and_resolve_references()
  own = source in (None, data.source)
  split = split or ("report" if own else "all")
  if split not in SPLITS:
    raise ConfigError(
      f"split={split!r} is no role.{nearest(split, SPLITS)} Choose {', '.join(SPLITS)}."
    )
  if not own:
    data.source, data.fraction = source, 1.0
    data.splits = {role: "" for role in splits.ROLES}
  if data_dir is not None:
    data.data_dir = data_dir
  dataset = open_dataset(data)
  _check_classes(loaded, dataset)
  same = dataset.fingerprint == loaded.fingerprint
  if own and not same:
    logging.warning(
      "%s has changed since the run: what is now its %s may have been trained on",
      dataset.name,
      split,
    )
  if not own and same:
    logging.warning("%s holds the very data of the run, also what it was trained on", dataset.name)
  if split == "all":
    return dataset, Joined([dataset.open_split(name) for name in dataset.splits]), split
  return dataset, splits.assign(dataset, data, loaded.config.data_seed)[split], split


def _check_classes(loaded: Loaded, dataset: Dataset) -> None:
  names, wanted = dataset.class_names, loaded.class_names
  if names != wanted:
    missing = [name for name in wanted if name not in names][:5]
    extra = [name for name in names if name not in wanted][:5]
    raise ConfigError(
      f"source={dataset.name!r} has {len(names)} classes, the model was trained on"
      f" {len(wanted)}; they must be the same in the same order (not in the source:"
      f" {missing or 'none'}; not in the model: {extra or 'none'})"
    )
  if dataset.channels != loaded.config.data.channels:
    raise ConfigError(
      f"source={dataset.name!r} has images of {dataset.channels} channels, the model takes"
      f" {loaded.config.data.channels}"
    )


@contextlib.contextmanager
def _predictions(
  path: str | Path | None, examples: Examples, class_names: Sequence[str]
) -> Iterator[Callable[[np.ndarray, np.ndarray], None] | None]:
  """Gives a function that writes rows of example numbers (n,) and probabilities (n, K)."""
  if path is None:
    yield None
    return
  try:
    file = open(path, "w", newline="", encoding="utf-8")  # noqa: SIM115 (closed below)
  except OSError as error:
    raise ConfigError(f"predictions={str(path)!r} cannot be written: {error}") from error
  with file:
    writer = csv.writer(file)
    writer.writerow(["name", "label", "prediction", *(f"p({name})" for name in class_names)])

    def write(numbers: np.ndarray, probabilities: np.ndarray) -> None:
      for i, p in zip(numbers.tolist(), probabilities, strict=True):
        label, prediction = class_names[examples.label(i)], class_names[p.argmax()]
        # str gives as many digits as tell every float32 from its neighbors.
        writer.writerow([examples.name(i), label, prediction, *map(str, p)])

    yield write


def table(result: Mapping[str, Any]) -> str:
  """The figures for reading; accuracies in percent."""
  lines = [
    f"{result['workdir']}, checkpoint {result['step']}, on {result['source']} ({result['split']})",
    f"  examples            {result['examples']:>9,}",
    f"  top-1               {result['top1']:>9.2%}",
    f"  top-5               {result['top5']:>9.2%}",
    f"  NLL (nats)          {result['nll']:>9.4f}",
    f"  calibration error   {result['ece']:>9.4f}",
    "  top-1 by class",
  ]
  for name, value in zip(result["class_names"], result["class_top1"], strict=True):
    lines.append(f"    {name:<18}{'no examples' if value is None else f'{value:.2%}':>9}")
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(prog="vitx evaluate", description=__doc__)
  parser.add_argument("--workdir", required=True, help="of a training run")
  parser.add_argument("--checkpoint", default="best", help="best, latest or a step")
  parser.add_argument(
    "--split",
    help="train, select or report, as in training, or all of the source;"
    " without it report of the run's source, all of another",
  )
  parser.add_argument("--source", help="another source with the same classes, e.g. folder:PATH")
  parser.add_argument("--data_dir", help="where TFDS sets lie, if not where the run found them")
  parser.add_argument("--batch_size", type=int, help="over all devices; else the run's")
  parser.add_argument("--predictions", metavar="FILE", help="write a CSV row per example")
  parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
  options = vars(parser.parse_args(argv))
  workdir, json_file = options.pop("workdir"), options.pop("json")
  try:
    result = evaluate(workdir, **options)
    print(table(result))
    if json_file:
      Path(json_file).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
  except (ConfigError, CheckpointError, OSError) as error:
    # The message says it all; a traceback would bury it.
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())
