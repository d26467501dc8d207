"""Digests of a data set's content, by which a run recognizes its data."""

import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from vitx.config.errors import UnreadableError
from vitx.data.dataset import Dataset, Examples

# A fingerprint covers all of a set up to this size in bytes, and SAMPLE items of a larger set.
HASH_ALL = 256 * 2**20
SAMPLE = 256


def digest(parts: Iterable[str | bytes]) -> str:
  """Returns one digest of several strings, the first 32 hexadecimal digits of SHA-256.

  The length of each string is hashed before it, so that a different division of the bytes into
  strings gives a different digest.
  """
  sha = hashlib.sha256()
  for part in parts:
    # Names of files may have bytes that are no UTF-8.
    data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
    sha.update(len(data).to_bytes(8, "little"))
    sha.update(data)
  return sha.hexdigest()[:32]


def choose_sample(count: int, size_in_bytes: int) -> np.ndarray:
  """Returns the indices of the items that a fingerprint covers.

  It covers all items, or `SAMPLE` evenly spaced items if all together exceed `HASH_ALL` bytes.
  """
  if size_in_bytes <= HASH_ALL or count <= SAMPLE:
    return np.arange(count)
  return np.linspace(0, count - 1, SAMPLE).astype(np.int64)


def read_sample(read: Callable[[int], bytes], count: int, size_in_bytes: int) -> Iterator[bytes]:
  """Yields the bytes of all or some of `count` files; those of an unreadable file are empty."""
  for i in choose_sample(count, size_in_bytes).tolist():
    try:
      yield read(i)
    except UnreadableError:
      yield b""


def digest_arrays(dataset: Dataset) -> str:
  """Computes the fingerprint of a data set from the arrays of its examples.

  Reads every example of each split, or a sample if the split is large.
  """
  parts: list[str | bytes] = [dataset.info.name, *(dataset.info.class_names or ())]
  for split in sorted(dataset.splits):
    examples = dataset.open_split(split)
    parts += [split, str(len(examples)), digest(_content(examples))]
  return digest(parts)


def _content(examples: Examples) -> Iterator[str | bytes]:
  if not len(examples):
    return
  size = sum(np.asarray(array).nbytes for array in examples[0].values())
  for i in choose_sample(len(examples), len(examples) * size).tolist():
    for key, value in sorted(examples[i].items()):
      array = np.ascontiguousarray(value)
      yield f"{key} {array.dtype} {array.shape}"
      yield array.tobytes()
