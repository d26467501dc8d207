"""Examples kept in memory as arrays, since indexing an array is faster than any loader."""

import contextlib
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
from tqdm import tqdm

from vitx.config.errors import ConfigError, UnreadableError
from vitx.data.dataset import Example, Examples, SplitPart, Subset, read_encoded
from vitx.data.transform import Transform

# A thread takes this many examples at once.
_CHUNK = 64
# An error lists at most this many unreadable examples and counts the others.
_LISTED = 100
SKIP = "In training, data.on_unreadable=skip leaves out examples that cannot be read."


class Storage:
  """The transformed arrays of examples, each of which is read when a role first needs it.

  Attributes:
    transform: The transform that made the arrays.
    arrays: The arrays by key, (count, ...) each, which are zero for an example that is not read; {}
      before the first one is read.
    is_read: Whether each example is read, bool (count,).
    copy: The number of examples that were read when the arrays were copied to the devices, and the
      copy; None if there is none.
  """

  def __init__(self, transform: Transform, count: int):
    self.transform = transform
    self.arrays: Example = {}
    self.is_read = np.zeros(count, np.bool_)
    self.copy: tuple[int, object] | None = None


class SharedSplit(Subset):
  """All examples of a split, and what the runs of a sweep share of them.

  Attributes:
    storage: The transformed arrays of the examples; None before they are kept.
    moments: The mean and the mean square of the pixels of each channel, by the example's index, for
      the examples of which they were computed.
  """

  storage: Storage | None = None

  def __init__(self, examples: Examples):
    super().__init__(examples, lambda: np.arange(len(examples)))
    self.moments: dict[int, tuple[np.ndarray, np.ndarray]] = {}


class InMemory(Subset):
  """Examples whose transformed arrays are in memory.

  Args:
    parent: The examples that a storage is for.
    indices: The index of each example in `parent`, int64 (n,).
    storage: The arrays of these examples, which it may have of others too.
  """

  def __init__(self, parent: Examples, indices: np.ndarray, storage: Storage):
    super().__init__(parent, lambda: indices)
    self.storage = storage

  def __getitem__(self, i: int) -> Example:
    return {key: array[self.indices[i]] for key, array in self.storage.arrays.items()}

  encoded = __getitem__  # type: ignore[assignment]


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
  while type(examples) is Subset:  # `spread` may have taken some examples of `InMemory`
    i, examples = int(examples.indices[i]), examples.parent
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
      "data.memory='always' cannot keep examples that are drawn anew in each step, as by"
      " data.resize_mode='random' or windows of a text; set it to 'auto'."
    )
  if not len(examples):
    raise ConfigError("a split has no examples. Change data.splits or data.validation.")
  if memory == "never" or transform.draws or isinstance(examples, InMemory):
    return examples
  stored = _find_storage(examples, transform)
  storage, indices = stored.storage, stored.indices
  missing = np.flatnonzero(~storage.is_read[indices])
  known = {0: transform_one(examples, transform, 0)} if 0 in missing else {}
  first = known[0] if known else {key: array[0] for key, array in storage.arrays.items()}
  size = len(missing) * sum(array.nbytes for array in first.values())
  if memory == "auto" and size > psutil.virtual_memory().available / 2:
    return examples
  storage.arrays = storage.arrays or blank_rows(first, len(storage.is_read))

  def read(number: int) -> None:
    i = int(missing[number])
    row = known[i] if i in known else transform_one(examples, transform, i)
    store_row(storage.arrays, indices[i], row, examples, i)
    storage.is_read[indices[i]] = True

  raise_all(list(find_problems(read, len(missing), threads).values()))
  return stored


def find_split(examples: Examples) -> tuple[Examples, np.ndarray]:
  """Returns the split that contains all the examples, and the index of each in it."""
  split, indices = examples, np.arange(len(examples))
  # Other kinds of subsets may change an example.
  while isinstance(split, Subset) and type(split) in (Subset, SplitPart):
    indices, split = split.indices[indices], split.parent
  return split, indices


def _find_storage(examples: Examples, transform: Transform) -> InMemory:
  """Returns examples with the storage of their arrays, some or all of which are not read yet.

  The runs of a sweep share the storage of a split. A small part of a split has its own, unless that
  of the split exists, since the arrays of the whole split could be too large.
  """
  split, indices = find_split(examples)
  if isinstance(split, SharedSplit):
    with contextlib.suppress(ValueError):  # the equality of NumPy arrays has no truth value
      if split.storage is not None and split.storage.transform == transform:
        return InMemory(split, indices, split.storage)
    if 2 * len(indices) >= len(split):
      split.storage = Storage(transform, len(split))
      return InMemory(split, indices, split.storage)
  return InMemory(examples, np.arange(len(examples)), Storage(transform, len(examples)))
