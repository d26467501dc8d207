"""Examples kept in memory as arrays, since indexing an array is faster than any loader."""

import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
from tqdm import tqdm

from vitx.config.errors import ConfigError, UnreadableError
from vitx.data.dataset import Example, Examples, read_encoded
from vitx.data.transform import Transform

# A thread takes this many examples at once.
_CHUNK = 64
# An error lists at most this many unreadable examples and counts the others.
_LISTED = 100
SKIP = "In training, data.on_unreadable=skip leaves out examples that cannot be read."


class InMemory:
  """Examples whose transformed arrays are in memory.

  Attributes:
    arrays: The arrays of all examples by key, (n, ...) each.
  """

  def __init__(self, examples: Examples, transform: Transform, threads: int):
    self._examples = examples
    count = len(examples)
    self.arrays = blank_rows(transform_one(examples, transform, 0), count)

    def read(i: int) -> None:
      store_row(self.arrays, i, transform_one(examples, transform, i), examples, i)

    raise_all(list(find_problems(read, count, threads).values()))

  @property
  def labels(self) -> np.ndarray | None:
    return self._examples.labels

  def __len__(self) -> int:
    return len(self._examples)

  def __getitem__(self, i: int) -> Example:
    return {key: array[i] for key, array in self.arrays.items()}

  def name(self, i: int) -> str:
    return self._examples.name(i)


def find_problems(
  read: Callable[[int], object], count: int, threads: int
) -> dict[int, ConfigError]:
  """Reads all examples, with a progress bar, and collects the errors of the unreadable ones.

  Args:
    read: A function that reads the example with a given index.
    count: The number of examples.
    threads: The number of reading threads.

  Returns:
    The errors by the index of the example, in ascending order.
  """
  problems: dict[int, ConfigError] = {}

  def read_chunk(start: int) -> None:
    for i in range(start, min(start + _CHUNK, count)):
      try:
        read(i)
      except ConfigError as error:
        problems[i] = error

  starts = range(0, count, _CHUNK)
  bar = dict(desc="reading", unit="examples", unit_scale=_CHUNK)
  pool = ThreadPoolExecutor(threads)
  chunks = pool.map(read_chunk, starts)
  try:
    list(tqdm(chunks, total=len(starts), delay=2, mininterval=1, leave=False, **bar))
  finally:
    pool.shutdown(cancel_futures=True)  # no other chunk is read after an interrupt
  return dict(sorted(problems.items()))


def blank_rows(first: Example, count: int) -> Example:
  """Returns arrays of zeros for a number of examples, with the shapes and dtypes of one example."""
  return {key: np.zeros((count, *array.shape), array.dtype) for key, array in first.items()}


def store_row(rows: Example, place: int, row: Example, examples: Examples, i: int) -> None:
  """Copies the transformed arrays of example `i` into a row of arrays from `blank_rows`.

  Args:
    rows: The arrays to write to by key, (n, ...) each.
    place: The index of the row.
    row: The transformed arrays of the example.
    examples: The examples, for the name in the error.
    i: The index of the example.
  """
  for key, target in rows.items():
    array = row[key]
    if array.shape != target.shape[1:] or array.dtype != target.dtype:
      raise ConfigError(
        f"data.source: the array {key!r} of {examples.name(i)!r} is {array.dtype}"
        f" {array.shape}, but that of the first example is {target.dtype} {target.shape[1:]}."
      )
    target[place] = array


def raise_all(problems: Sequence[ConfigError], fix: str = "") -> None:
  """Raises several errors as one UnreadableError, see `list_problems`; does nothing without errors.

  Args:
    problems: The errors.
    fix: A sentence about what to do, which becomes the last line; "" for none.
  """
  if problems:
    count = f"{len(problems)} examples cannot be read:\n" if len(problems) > 1 else ""
    raise UnreadableError(f"{count}{list_problems(problems)}\n{fix}".strip()) from problems[0]


def list_problems(problems: Sequence[ConfigError]) -> str:
  """Returns a text with a line for each of the first 100 errors and a line that counts the rest."""
  lines = [f"  {problem}" for problem in problems[:_LISTED]]
  if len(problems) > _LISTED:
    lines.append(f"  and {len(problems) - _LISTED} more")
  return "\n".join(lines)


def transform_one(
  examples: Examples, transform: Transform, i: int, bits: np.random.Philox | None = None
) -> Example:
  """Reads and transforms an example; an example of `InMemory` is transformed already."""
  if isinstance(examples, InMemory):
    return examples[i]
  read = read_encoded if getattr(transform, "takes_encoded", False) else operator.getitem
  row = transform(read(examples, i), bits)
  return {key: np.asarray(value) for key, value in row.items()}


def keep(examples: Examples, *, transform: Transform, memory: str, threads: int) -> Examples:
  """Transforms all examples and keeps them in memory if they fit; else returns them unchanged.

  Args:
    examples: The examples of one role: train, validation or test.
    transform: The transform that is applied to examples before they are kept. Examples whose
      transform draws for each step cannot be kept.
    memory: The setting `data.memory`: always, never or auto. auto keeps examples that take at most
      half of the available memory.
    threads: The number of threads that read and transform.
  """
  if memory == "always" and transform.draws:
    raise ConfigError(
      "data.memory='always' cannot keep data.resize_mode='random'; set it to 'auto'."
    )
  if not len(examples):
    raise ConfigError("a split has no examples. Change data.splits or data.validation.")
  if memory == "never" or transform.draws or isinstance(examples, InMemory):
    return examples
  if memory == "auto":
    row = sum(array.nbytes for array in transform_one(examples, transform, 0).values())
    if len(examples) * row > psutil.virtual_memory().available / 2:
      return examples
  return InMemory(examples, transform, threads)
