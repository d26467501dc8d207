"""The source `bytes:FILE`: a file as one document; its splits are slices in bytes or percent."""

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings, read_fields
from vitx.data.dataset import Dataset, DatasetInfo
from vitx.data.documents import SPEC, VOCABULARY, Documents, carve_end
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.sources.files import find_path
from vitx.data.splits import FileRange, check_ranges, overlap
from vitx.files import open_file

# The fingerprint of a large file samples blocks of this many bytes.
BLOCK = 2**20
_SLICE = re.compile(r"\s*train\s*(?:\[\s*(?P<low>[^:\]]*?)\s*:\s*(?P<high>[^:\]]*?)\s*\])?\s*")
_BYTES = re.compile(r"-?\d+(_\d+)*")
_PERCENT = re.compile(r"-?\d+(\.\d+)?%")


def open_bytes(data: Mapping[str, Any]) -> Dataset:
  """Opens `bytes:FILE`: the whole file is the split `train`, mapped into memory.

  `data.splits` may slice `train` as TFDS does, in bytes or percent: `train[:90000000]`,
  `train[90_000_000:95_000_000]`, `train[-5%:]`, `train[:10%]+train[90%:]` (two documents).

  Args:
    data: The config's `data`, of which only source is read.

  Raises:
    ConfigError: The path is no file, or the file is empty. Opening a split also raises this error
      if a slice is malformed, empty or beyond the file.
    OSError: The file cannot be read.
  """
  name = read_fields(DataSettings, data).source
  path = find_path(name)
  content = _map(name, path)
  slices = functools.partial(_slices, name, len(content))

  def open_split(expression: str) -> Documents:
    ranges = slices(expression)
    return Documents(
      read=lambda i: content[slice(*ranges[i][1:])],
      lengths=lambda: np.array([stop - start for _, start, stop in ranges]),
      name=lambda i: _name(path, ranges[i], len(content)),
      cache_size=0,
    )

  return Dataset(
    info=DatasetInfo(name, SPEC, vocabulary=VOCABULARY, fingerprint=_fingerprint(content)),
    splits=("train",),
    open_split=open_split,
    overlap=lambda a, b: overlap(slices(a), slices(b)),
    carve=carve_end,
  )


def _map(name: str, path: Path) -> np.ndarray:
  """Maps the bytes of a file into memory, uint8 (n,)."""
  if path.is_dir() or not path.exists():
    problem = "is a directory" if path.is_dir() else "does not exist"
    raise ConfigError(f"data.source={name!r}: {path} {problem}. Name one file.")
  with open_file(path) as file:
    if not os.fstat(file.fileno()).st_size:
      raise ConfigError(f"data.source={name!r}: {path} is empty. Name a file with some bytes.")
    return np.memmap(file, np.uint8, mode="r")


def _slices(name: str, size: int, expression: str) -> list[FileRange]:
  """Returns the byte range of each term in a split expression like "train[:10%]+train[90%:]"."""
  result: list[FileRange] = []
  for term in expression.split("+"):
    match = _SLICE.fullmatch(term)
    start = match and _place(match["low"] or "0", size)
    stop = match and _place(match["high"] or str(size), size)
    if start is None or stop is None:
      raise ConfigError(
        f"data.splits: {expression!r} is not a split of {name!r}. Write train, or a slice"
        " in bytes or percent, such as train[:90000000] or train[90%:]."
      )
    if not 0 <= start < stop <= size:
      raise ConfigError(
        f"data.splits: {term.strip()!r} means the bytes {start} to {stop} of {name!r},"
        f" which has {size} bytes. Name a slice within the file, with at least one byte."
      )
    result.append((name, start, stop))
  check_ranges(result, expression, name)
  return result


def _place(text: str, size: int) -> int | None:
  """Returns the position in the file that a bound of a slice names; None if it is not a bound.

  A negative bound counts from the end of the file.
  """
  if _BYTES.fullmatch(text):
    place = int(text)
  elif _PERCENT.fullmatch(text):
    place = round(float(text[:-1]) * size / 100)
  else:
    return None
  return place + size if text.startswith("-") else place


def _name(path: Path, part: FileRange, size: int) -> str:
  _, start, stop = part
  return path.name if (start, stop) == (0, size) else f"{path.name}[{start}:{stop}]"


def _fingerprint(content: np.ndarray) -> str:
  """Returns a hash of a file's size and bytes, but not of its name.

  If the file is large, only a sample of its blocks is hashed.

  Args:
    content: The bytes of the file, uint8 (n,).
  """
  size = len(content)
  chosen = choose_sample(-(-size // BLOCK), size).tolist()
  blocks = (content[i * BLOCK : (i + 1) * BLOCK].tobytes() for i in chosen)
  return digest(["bytes", str(size), digest(blocks)])
