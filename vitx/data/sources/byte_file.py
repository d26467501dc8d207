"""The source `bytes:FILE`: a file as one document; its splits are slices in bytes or percent."""

import functools
import re

import numpy as np

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.data.dataset import Dataset, DatasetInfo
from vitx.data.documents import SPEC, VOCABULARY, Documents, carve_end
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.sources.files import find_path
from vitx.data.splits import FileRange, check_ranges, overlap
from vitx.files import reading

# The fingerprint of a large file samples blocks of this many bytes.
BLOCK = 2**20
_SLICE = re.compile(r"\s*train\s*(?:\[\s*(?P<low>[^:\]]*?)\s*:\s*(?P<high>[^:\]]*?)\s*\])?\s*")
_BYTES = re.compile(r"-?\d+(_\d+)*")
_PERCENT = re.compile(r"-?\d+(\.\d+)?%")


def open_bytes(data: DataSettings) -> Dataset:
  """Opens `bytes:FILE`: the whole file is the split `train`, mapped into memory.

  `data.splits` may slice `train` as TFDS does, in bytes or percent: `train[:90000000]`,
  `train[90_000_000:95_000_000]`, `train[-5%:]`, `train[:10%]+train[90%:]` (two documents).

  Args:
    data: The config's `data`, of which only source is read.
  """
  name = data.source
  path = find_path(name)
  with reading(f"data.source={name!r} cannot be read"):
    content = np.memmap(path, np.uint8, mode="r")
  slices = functools.partial(_slices, name, len(content))
  whole = slices("train")
  sample = choose_sample(-(-len(content) // BLOCK), len(content)).tolist()
  blocks = (content[i * BLOCK : (i + 1) * BLOCK].tobytes() for i in sample)
  fingerprint = digest(["bytes", str(len(content)), digest(blocks)])

  def open_split(expression: str) -> Documents:
    ranges = slices(expression)
    return Documents(
      read=lambda i: content[slice(*ranges[i][1:])],
      lengths=lambda: np.array([stop - start for _, start, stop in ranges]),
      name=lambda i: path.name + ("" if ranges == whole else "[{}:{}]".format(*ranges[i][1:])),
      cache_size=0,
    )

  return Dataset(
    info=DatasetInfo(name, SPEC, vocabulary=VOCABULARY, fingerprint=fingerprint),
    splits=("train",),
    open_split=open_split,
    overlap=lambda a, b: overlap(slices(a), slices(b)),
    carve=carve_end,
  )


def _slices(name: str, size: int, expression: str) -> list[FileRange]:
  """Returns the byte range of each term in a split expression like "train[:10%]+train[90%:]"."""
  result: list[FileRange] = []
  for term in expression.split("+"):
    match = _SLICE.fullmatch(term)
    start = match and _place(match["low"] or "0", size)
    stop = match and _place(match["high"] or str(size), size)
    if start is None or stop is None or not 0 <= start < stop <= size:
      raise ConfigError(
        f"data.splits: {term.strip()!r} is not a part of {name!r}, which has {size} bytes. Write"
        " train, or a slice in bytes or percent, such as train[:90000000] or train[90%:]."
      )
    result.append((name, start, stop))
  check_ranges(result, expression, name)
  return result


def _place(text: str, size: int) -> int | None:
  """Returns the position that a bound of a slice names; None if the text is not a bound."""
  if _BYTES.fullmatch(text):
    place = int(text)
  elif _PERCENT.fullmatch(text):
    place = round(float(text[:-1]) * size / 100)
  else:
    return None
  return place + size if text.startswith("-") else place
