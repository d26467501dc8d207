"""Reference values for density models: the bits per token of simple predictors and compressors.

They are computed once for each data set, from at most 10 MB each of its training and its test data,
and cached.
"""

import bz2
import gzip
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from absl import logging

from vitx.data.cache import cache_directory
from vitx.data.count_models import count_model_bits, per_position_bits
from vitx.data.fingerprint import digest
from vitx.files import replace_text

# The first LIMIT tokens of the training data and of the test data are used.
LIMIT = 10_000_000
# Part of the digest: a new number makes cached figures be computed again.
VERSION = 2

SequenceKind = Literal["images", "documents"]


def reference_figures(
  train: Iterable[np.ndarray], test: Iterable[np.ndarray], *, vocabulary: int, kind: SequenceKind
) -> dict[str, float]:
  """Measures how well simple predictors and compressors code a test set.

  Args:
    train: The token sequences, (n,) each, whose tokens the predictors count. At most about `LIMIT`
      tokens are read.
    test: The sequences to predict and to compress, read up to the same limit.
    vocabulary: The number of tokens V <= 256; tokens are 0 ... V-1.
    kind: The kind of sequences: "images" or "documents". Images have equal lengths, and their
      tokens are also counted separately for each position.

  Returns:
    The bits per token of count models of orders 0 to 5 (count_0 ... count_5), of compressors with
    one byte per token (gzip, xz, bz2) and, for images, of counts for each position (per_position);
    and the number of bytes used of test (reference_bytes) and of train (reference_train_bytes).
  """
  train, test = _take_first(train, kind), _take_first(test, kind)
  content = (sequence.tobytes() for sequence in (*train, *test))
  key = digest([f"{VERSION} {LIMIT} {vocabulary} {kind}", str(len(train)), *content])
  path = cache_directory() / "references" / f"{key}.json"
  cached = _load(path)
  if cached is not None:
    return cached
  sizes = {
    "reference_bytes": float(sum(map(len, test))),
    "reference_train_bytes": float(sum(map(len, train))),
  }
  logging.info("computing the figures of count models and compressors for these data: %s", sizes)
  bits = count_model_bits(train, test, vocabulary)
  figures = {f"count_{order}": value for order, value in enumerate(bits)}
  figures |= compressor_bits(b"".join(sequence.tobytes() for sequence in test))
  if kind == "images":
    figures["per_position"] = per_position_bits(np.stack(train), np.stack(test), vocabulary)
  figures |= sizes
  try:
    replace_text(path, json.dumps(figures))  # several runs may write at once
  except OSError as error:
    logging.warning("%s cannot be written (%s); the next run computes it again", path, error)
  return figures


def compressor_bits(data: bytes) -> dict[str, float]:
  """Returns the bits per byte that gzip, xz and bz2 need at their highest level, by name."""
  sizes = {
    "gzip": len(gzip.compress(data, 9)),
    "xz": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    "bz2": len(bz2.compress(data, 9)),
  }
  return {name: 8 * size / len(data) for name, size in sizes.items()}


def _take_first(sequences: Iterable[np.ndarray], kind: SequenceKind) -> list[np.ndarray]:
  """Returns the first sequences, which together have at most LIMIT tokens.

  Images are taken whole, and the first one even if it is longer than the limit. The last document
  is cut at the limit.
  """
  parts: list[np.ndarray] = []
  room = LIMIT
  for sequence in sequences:
    # The cut comes before the copy, as a document may be a file mapped into memory.
    part = np.array(sequence if kind == "images" else sequence[:room], np.uint8).ravel()
    if parts and len(part) > room:
      break
    parts.append(part)
    room -= len(part)
    if room <= 0:
      break
  return parts


def _load(path: Path) -> dict[str, float] | None:
  """Returns the cached `reference_figures`, or None if the file is missing or not valid."""
  try:
    cached = json.loads(path.read_text())
    valid = "reference_bytes" in cached and all(isinstance(x, float) for x in cached.values())
    return cached if valid else None
  except (OSError, ValueError, AttributeError):
    return None
