"""Turns the inputs of a prediction, such as paths of files and folders, into examples."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vitx.checkpoints import tree
from vitx.config.errors import ConfigError, listing
from vitx.data.readable import warn_of_unread
from vitx.data.sources.files import describe_others, find_files
from vitx.tasks.base import Example, Task


def list_inputs(inputs: Any, task: Task) -> list[Any]:
  """Returns the inputs as a list, with a folder replaced by its files.

  Files are found by the folder source's rules: at any depth, sorted by path, links followed, hidden
  files left out. A file whose suffix is not one of the task's is skipped with a warning.

  Args:
    inputs: A sequence whose entries are inputs of `Task.read_input` or paths of folders, or one
      array of all inputs.
    task: The task, which decides the suffixes of its files.

  Raises:
    ValueError: The inputs are a single input, or an array that does not fit the task.
  """
  rank = 1 + max(len(x.shape) for x in task.element_spec.values())
  is_array = isinstance(inputs, np.ndarray | jax.Array)
  if isinstance(inputs, str | Path | Mapping) or (is_array and inputs.ndim != rank):
    raise ValueError(f"inputs must be a list, or an array of {rank} axes; one input is [input].")
  listed: list[Any] = []
  for entry in np.asarray(inputs) if is_array else inputs:
    if not (task.input_suffixes and isinstance(entry, str | Path) and Path(entry).is_dir()):
      listed.append(entry)
      continue
    files, others = find_files(f"folder {str(entry)!r}", Path(entry), task.input_suffixes)
    warn_of_unread(str(entry), describe_others(Path(entry), others, task.input_suffixes))
    listed += files
  return listed


def make_reader(task: Task) -> Callable[[Any, int], Example]:
  """Makes the function that reads one input of a prediction, such as a file of an image.

  Args:
    task: The task, which reads inputs and prepares them as for an evaluation.

  Returns:
    A function `(input, number) -> example`. `number` counts the inputs from 0; errors name an input
    without a path by its number. The example has all arrays of the task. If the input lacks an
    array of `task.targets`, such as the label, the example has zeros in its place. The function
    raises ConfigError if a file cannot be read or another array is missing, and ValueError for an
    input of a wrong type.
  """
  prepare = task.transform(train=False)
  blank = tree.zeros(dict(task.element_spec))

  def read(entry: Any, number: int) -> Example:
    try:
      arrays = task.read_input(entry, number)
    except ValueError as error:
      if isinstance(error, ConfigError) or not isinstance(entry, str | Path):
        raise
      raise ConfigError(f"input {str(entry)!r}: {error}") from error
    missing = blank.keys() - arrays.keys() - set(task.targets)
    if missing:
      name = name_input(entry, number)
      raise ConfigError(f"input {name!r} has the arrays {[*arrays]} and lacks {listing(missing)}.")
    return prepare({**blank, **arrays}, None)

  return read


def name_input(entry: Any, number: int) -> str:
  """Returns the path of an input, or its number from 0 if it has no path."""
  return str(entry) if isinstance(entry, str | Path) else str(number)
