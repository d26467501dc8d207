"""Reference figures for density models: the bits per token of simple predictors and compressors.

They are computed once for each data set, on at most 10 MB of each role, and cached.
"""

import bz2
import gzip
import json
import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from absl import logging

from vitx.data.cache import cache_directory
from vitx.data.count_models import count_model_bits, per_position_bits
from vitx.data.fingerprint import digest
from vitx.files import replace_text

# The first LIMIT tokens of each role are used.
LIMIT = 10_000_000
# Part of the digest: a new number makes cached figures be computed again.
VERSION = 2

SequenceKind = Literal["images", "documents"]


def reference_figures(
  train: Iterable[np.ndarray], test: Iterable[np.ndarray], *, vocabulary: int, kind: SequenceKind
) -> dict[str, float]:
  """Measures how well simple predictors and compressors code a test set.

  Args:
    train: The token sequences (n,) from which the predictors count; read only as far as needed.
    test: The sequences to predict and to compress.
    vocabulary: The number of tokens V <= 256; tokens are 0 ... V-1.
    kind: The kind of sequences: "images" or "documents". Images have one length N, and the tokens
      at each of their positions are counted too.

  Returns:
    The bits per token under count_0 ... count_5, under gzip, xz, bz2 (which compress test, a byte
    per token) and, for images, under per_position; the number of bytes used of test under
    reference_bytes, and of train under reference_train_bytes.
  """
  train, test = _take(train, kind), _take(test, kind)
  content = (each.tobytes() for each in (*train, *test))
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
  figures |= compressor_bits(b"".join(each.tobytes() for each in test))
  if kind == "images":
    figures["per_position"] = per_position_bits(np.stack(train), np.stack(test), vocabulary)
  figures |= sizes
  _store(path, figures)
  return figures


def compressor_bits(data: bytes) -> dict[str, float]:
  """Compresses bytes with gzip, xz and bz2 at their strongest, and returns the bits per byte."""
  sizes = {
    "gzip": len(gzip.compress(data, 9)),
    "xz": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    "bz2": len(bz2.compress(data, 9)),
  }
  return {name: 8 * size / len(data) for name, size in sizes.items()}


def _take(sequences: Iterable[np.ndarray], kind: SequenceKind) -> list[np.ndarray]:
  """Returns the first sequences up to LIMIT tokens: whole images, or documents cut at the limit."""
  taken: list[np.ndarray] = []
  left = LIMIT
  for each in sequences:
    # The cut comes before the copy, as a document may be a file mapped into memory.
    part = np.array(each if kind == "images" else each[:left], np.uint8).ravel()
    if taken and len(part) > left:
      break
    taken.append(part)
    left -= len(part)
    if left <= 0:
      break
  return taken


def _load(path: Path) -> dict[str, float] | None:
  """Returns the cached figures, or None if there are none or the file is not valid."""
  try:
    cached = json.loads(path.read_text())
    valid = "reference_bytes" in cached and all(isinstance(x, float) for x in cached.values())
    return cached if valid else None
  except (OSError, ValueError, AttributeError):
    return None


def _store(path: Path, figures: Mapping[str, float]) -> None:
  """Caches the figures; if that fails, the next run computes them again."""
  try:
    replace_text(path, json.dumps(figures))  # several runs may write at once
  except OSError as error:
    logging.warning("%s cannot be written (%s); the next run computes it again", path, error)
