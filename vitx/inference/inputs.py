"""Turns the inputs of a prediction, such as paths of files and folders, into examples."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vitx.checkpoints import tree
from vitx.config.errors import ConfigError, listing
from vitx.data.sources.files import describe_others, find_files, warn_of_skipped
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
    ConfigError: A folder has no files of the task, or a link in it leads back to a folder above it.
    ValueError: The inputs are not a sequence, or are an array that does not fit the task.
  """
  found: list[Any] = []
  for given in _as_list(inputs, task.element_spec):
    if task.input_suffixes and isinstance(given, str | Path) and Path(given).is_dir():
      found += _files(Path(given), task.input_suffixes)
    else:
      found.append(given)
  return found


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

  def read(given: Any, number: int) -> Example:
    try:
      found = task.read_input(given, number)
    except ValueError as error:
      if isinstance(error, ConfigError) or not isinstance(given, str | Path):
        raise
      raise ConfigError(f"input {str(given)!r}: {error}") from error
    missing = [name for name in blank if name not in found and name not in task.targets]
    if missing:
      raise ConfigError(
        f"input {name_input(given, number)!r} has the arrays {listing(found) or 'none'} and lacks"
        f" {listing(missing)}; give every array of the task by name."
      )
    return prepare({**blank, **found}, None)

  return read


def name_input(given: Any, number: int) -> str:
  """Returns the path of an input, or its number from 0 if it has no path."""
  return str(given) if isinstance(given, str | Path) else str(number)


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
  found, others = find_files(f"folder {str(folder)!r}", folder, suffixes)
  if not found:
    raise ConfigError(
      f"folder {str(folder)!r} has no file to predict; put {listing(suffixes)} into it."
    )
  warn_of_skipped(str(folder), folder, others, describe_others(suffixes))
  return found


def _as_list(inputs: Any, spec: Mapping[str, jax.ShapeDtypeStruct]) -> list[Any]:
  array = isinstance(inputs, np.ndarray | jax.Array)
  rank = 1 + max(len(x.shape) for x in spec.values())
  single = isinstance(inputs, str | Path | Mapping) or not isinstance(inputs, Iterable)
  if single or (array and inputs.ndim != rank):
    what = f"an array of shape {inputs.shape}" if array else f"{inputs!r:.80}"
    raise ValueError(
      f"inputs must be a list or an array of {rank} axes, not {what}; one input is a list of one:"
      " [input]."
    )
  return list(np.asarray(inputs) if array else inputs)
