"""Examples that cannot be read, found before anything is trained on the others."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from absl import logging
from tqdm import tqdm

from vitx.data.dataset import Dataset, Examples, Subset
from vitx.errors import ConfigError, listing

_CHUNK = 64  # examples that a thread takes at once
_LISTED = 100  # that a warning names; further ones are counted


def skip_unreadable(dataset: Dataset, threads: int) -> Dataset:
  """Returns a data set without the examples that cannot be read (`data.on_unreadable="skip"`).

  A split is read once as it is opened, before it plays a role or is divided; so a run is a function
  of its config and its data. `Dataset.unreadable` names what was left out so far.

  Args:
    dataset: whose examples stand for themselves.
    threads: that read.

  Raises:
    ConfigError: its examples are documents; and, when a split is opened, none of its examples, or
      none of a class, can be read.
  """
  if dataset.carve is not None:
    raise ConfigError(
      f"data.on_unreadable='skip' cannot leave parts of {dataset.info.name!r} out: it is one"
      " sequence of documents. Leave the field out, and mend or remove what cannot be read"
    )
  unreadable: list[str] = []
  opened: dict[str, Examples] = {}

  def open_split(expression: str) -> Examples:
    if expression not in opened:
      opened[expression] = _leave_out(dataset, expression, threads, unreadable)
    return opened[expression]

  return dataclasses.replace(dataset, open_split=open_split, unreadable=unreadable)


def _leave_out(dataset: Dataset, split: str, threads: int, unreadable: list[str]) -> Examples:
  """Returns the examples of a split that can be read; adds the others' names to `unreadable`."""
  examples = dataset.open_split(split)
  problems = _find_problems(examples, threads)
  if not problems:
    return examples
  count, name = len(examples), dataset.info.name
  kept = np.setdiff1d(np.arange(count), list(problems))
  lines = [f"  {problems[i]}" for i in sorted(problems)[:_LISTED]]
  lines += [f"  and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
  told = f"{len(problems)} of {count} examples of {split!r} that cannot be read:\n" + "\n".join(
    lines
  )
  _check_classes(dataset, examples, kept, split, told)
  logging.warning("%s: skipped %s", name, told)
  unreadable += [each for i in sorted(problems) if (each := examples.name(i)) not in unreadable]
  return Subset(examples, lambda: kept)


def _find_problems(examples: Examples, threads: int) -> dict[int, ConfigError]:
  count, problems = len(examples), {}

  def read(start: int) -> int:
    stop = min(start + _CHUNK, count)
    for i in range(start, stop):
      try:
        examples[i]
      except ConfigError as error:
        problems[i] = error
    return stop - start

  show = tqdm(total=count, desc="reading", delay=2, mininterval=1, leave=False, unit="examples")
  with show, ThreadPoolExecutor(threads) as pool:
    try:
      for done in pool.map(read, range(0, count, _CHUNK)):
        show.update(done)
    except BaseException:
      pool.shutdown(cancel_futures=True)
      raise
  return problems


def _check_classes(
  dataset: Dataset, examples: Examples, kept: np.ndarray, split: str, told: str
) -> None:
  """Raises ConfigError where no example is left, or none of a class."""
  names, labels = dataset.info.class_names, examples.labels
  lost = "any example" if not kept.size else ""
  if kept.size and names is not None and labels is not None:
    lost = listing(names[k] for k in np.setdiff1d(labels, labels[kept]))
  if lost:
    raise ConfigError(f"{dataset.info.name!r}: nothing is left of {lost} without {told}")
