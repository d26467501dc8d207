"""Lists or leaves out examples that cannot be read, and reports what was not read."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from vitx.config.errors import ConfigError, UnreadableError, listing
from vitx.data.dataset import Dataset, Examples, Subset
from vitx.data.in_memory import SKIP, find_problems, list_problems, raise_all


@contextlib.contextmanager
def listing_all(examples: Examples, threads: int) -> Iterator[None]:
  """Replaces an error about one unreadable example by one about all that cannot be read."""
  try:
    yield
  except UnreadableError as error:
    logging.warning("All examples are read now, to list those like this: %s", error)
    problems = find_problems(examples.__getitem__, len(examples), threads)
    raise_all([*problems.values()] or [error], SKIP)


LISTED = 5  # a warning names this many things of a kind and counts the others


def warn_of_unread(name: str, unread: Mapping[str, Sequence[str]]) -> None:
  """Logs one line about everything that was not read, with the number and the first names.

  Args:
    name: The name of the data set.
    unread: The names that were not read, grouped by kind, see `Dataset.unread`.
  """
  parts = []
  for kind, names in unread.items():
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    parts += [f"{len(names)} {kind}: {', '.join(names[:LISTED])}{more}"] if names else []
  if parts:
    logging.warning("%s: skipped %s", name, "; ".join(parts))


def skip_unreadable(dataset: Dataset, threads: int) -> Dataset:
  """Returns a data set without the examples that cannot be read, for `data.on_unreadable="skip"`.

  When a split is opened, all its examples are read once, before the split is divided, so that the
  result depends on nothing but the config and the data. `Dataset.unreadable` lists the names of the
  examples that are left out.

  Args:
    dataset: The data set. Its examples must be independent, not documents.
    threads: The number of reading threads.
  """
  if dataset.carve is not None:
    raise ConfigError(
      "data.on_unreadable='skip' does not work for documents, which are a sequence."
    )
  unreadable: list[str] = []

  @functools.cache
  def open_split(expression: str) -> Examples:
    return _drop_unreadable(dataset, expression, threads, unreadable)

  count = dataset.count or (lambda split: len(dataset.open_split(split)))
  return dataclasses.replace(dataset, open_split=open_split, unreadable=unreadable, count=count)


def _drop_unreadable(dataset: Dataset, split: str, threads: int, unreadable: list[str]) -> Examples:
  """Returns the readable examples of a split; adds the names of the others to `unreadable`."""
  examples = dataset.open_split(split)
  problems = find_problems(examples.__getitem__, len(examples), threads)
  if not problems:
    return examples
  count, names, labels = len(examples), dataset.info.class_names, examples.labels
  readable = np.setdiff1d(np.arange(count), list(problems))
  reasons = list_problems(list(problems.values()))
  message = f"{len(problems)} of {count} examples of {split!r}, which cannot be read:\n{reasons}"
  absent = "" if readable.size else "any class"
  if readable.size and names is not None and labels is not None and labels.ndim == 1:
    remaining = np.append(labels[readable], -1)  # -1 is no class, but a missing label
    absent = listing(names[k] for k in np.setdiff1d(labels, remaining))
  if absent:
    raise ConfigError(
      f"data.on_unreadable='skip' leaves no example of {absent} in {dataset.info.name!r}: {message}"
    )
  logging.warning("%s: skipped %s", dataset.info.name, message)
  unreadable += [name for i in problems if (name := examples.name(i)) not in unreadable]
  return Subset(examples, lambda: readable)
