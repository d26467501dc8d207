"""What a user gives for prediction: a list or an array, of which folders become their files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vitx.config.errors import ConfigError, listing
from vitx.data.sources.files import find_files, warn_of_skipped
from vitx.tasks.base import Example, Task


def list_inputs(inputs: Any, task: Task) -> list[Any]:
  """Returns the inputs one by one, the files of a folder in its place.

  They are found as the folder source finds them: beneath it at any depth, sorted by their paths,
  links followed, hidden ones left out; what has none of the task's suffixes is skipped with a
  warning.

  Args:
    inputs: a sequence of what `Task.read_input` takes and of paths of folders, or one array.
    task: knows which files it reads.

  Raises:
    ConfigError: a folder without such files, or with a link that leads back to where it lies.
    ValueError: no sequence, or an array that holds no inputs of the task.
  """
  found: list[Any] = []
  for given in _as_list(inputs, task.element_spec):
    if task.input_suffixes and isinstance(given, str | Path) and Path(given).is_dir():
      found += _files(Path(given), task.input_suffixes)
    else:
      found.append(given)
  return found


def make_reader(task: Task) -> Callable[[Any, int], Example]:
  """Returns a function from an input and its number to an example as the task evaluates it.

  What only an answer would say, such as a label, is blank. The function raises ConfigError for a
  file that cannot be read and for arrays without one that the task reads, and ValueError for an
  input of another kind.
  """
  prepare = task.transform(train=False)
  blank = {name: np.zeros(x.shape, x.dtype) for name, x in task.element_spec.items()}

  def read(given: Any, number: int) -> Example:
    try:
      found = task.read_input(given, number)
    except ConfigError:
      raise
    except ValueError as error:
      if isinstance(given, str | Path):
        raise ConfigError(f"input {str(given)!r}: {error}") from error
      raise
    missing = [name for name in blank if name not in found and name not in task.answers]
    if missing:
      raise ConfigError(
        f"input {name_input(given, number)!r} has the arrays {listing(found) or 'none'} and lacks"
        f" {listing(missing)}; give every array that the task reads by its name"
      )
    return prepare({**blank, **found}, None)

  return read


def name_input(given: Any, number: int) -> str:
  """Returns the path of an input, or its number, from 0, where it has none."""
  return str(given) if isinstance(given, str | Path) else str(number)


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
  found, others = find_files(f"folder {str(folder)!r}", folder, suffixes)
  if not found:
    raise ConfigError(
      f"folder {str(folder)!r} holds no file to predict; put {listing(suffixes)} in it"
    )
  warn_of_skipped(str(folder), folder, others, suffixes)
  return found


def _as_list(inputs: Any, spec: Mapping[str, jax.ShapeDtypeStruct]) -> list[Any]:
  array = isinstance(inputs, np.ndarray | jax.Array)
  rank = 1 + max(len(x.shape) for x in spec.values())
  single = isinstance(inputs, str | Path | Mapping) or not isinstance(inputs, Iterable)
  if single or (array and inputs.ndim != rank):
    what = f"an array of shape {inputs.shape}" if array else f"{inputs!r:.80}"
    raise ValueError(
      f"inputs must be a list or an array of {rank} axes, not {what}; one input is a list of one:"
      " [input]"
    )
  return list(np.asarray(inputs) if array else inputs)
