"""Figures that need no learning, to stand beside those of a density model.

They are computed once per data, on at most 10 MB of each role, and kept in the cache directory.
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

# Tokens of each role that are used, its first.
LIMIT = 10_000_000
# Of the count models: better here than estimating it, so the harder figure to beat.
DISCOUNT = 0.75
# Part of the digest: another number computes anew what was kept.
VERSION = 2

SequenceKind = Literal["images", "documents"]


def reference_figures(
  train: Iterable[np.ndarray], test: Iterable[np.ndarray], *, vocabulary: int, kind: SequenceKind
) -> dict[str, float]:
  """Returns the bits per token that models which only count, and compressors, need for test.

  Args:
    train: sequences (n,) of tokens, which the count models count; read only as far as needed.
    test: sequences that are predicted and compressed.
    vocabulary: V <= 256; tokens are 0 ... V-1.
    kind: images are sequences of one length N, whose positions are counted, too.

  Returns:
    count_0 ... count_5, gzip, xz, bz2 (of test, a byte per token) and, for images, per_position:
    bits per token. reference_bytes and reference_train_bytes: how many of test and train were used.
  """
  train, test = _take(train, kind), _take(test, kind)
  path = cache_directory() / "references" / f"{_digest(train, test, vocabulary, kind)}.json"
  kept = _load(path)
  if kept is not None:
    return kept
  sizes = {
    "reference_bytes": float(sum(map(len, test))),
    "reference_train_bytes": float(sum(map(len, train))),
  }
  logging.info("computing what count models and compressors need, once for these data: %s", sizes)
  bits = count_model_bits(train, test, vocabulary, discount=DISCOUNT)
  figures = {f"count_{order}": value for order, value in enumerate(bits)}
  figures |= compressor_bits(b"".join(each.tobytes() for each in test))
  if kind == "images":
    figures["per_position"] = per_position_bits(np.stack(train), np.stack(test), vocabulary)
  figures |= sizes
  _store(path, figures)
  return figures


def compressor_bits(data: bytes) -> dict[str, float]:
  """Returns the bits per byte of gzip, xz and bz2 files, each at its strongest."""
  sizes = {
    "gzip": len(gzip.compress(data, 9)),
    "xz": len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
    "bz2": len(bz2.compress(data, 9)),
  }
  return {name: 8 * size / len(data) for name, size in sizes.items()}


def _take(sequences: Iterable[np.ndarray], kind: SequenceKind) -> list[np.ndarray]:
  """Returns the first sequences, whole images or up to the last byte that is used."""
  taken: list[np.ndarray] = []
  left = LIMIT
  for each in sequences:
    # Cut before it is copied: a document may be a file mapped into memory.
    part = np.array(each if kind == "images" else each[:left], np.uint8).ravel()
    if taken and len(part) > left:
      break
    taken.append(part)
    left -= len(part)
    if left <= 0:
      break
  return taken


def _digest(
  train: list[np.ndarray], test: list[np.ndarray], vocabulary: int, kind: SequenceKind
) -> str:
  parts: list[str | bytes] = [f"{VERSION} {LIMIT} {vocabulary} {kind}", str(len(train))]
  return digest([*parts, *(each.tobytes() for each in (*train, *test))])


def _load(path: Path) -> dict[str, float] | None:
  """Returns what was kept; None if there is nothing, or it cannot be read as what it should be."""
  try:
    kept = json.loads(path.read_text())
  except (OSError, ValueError):
    return None
  if not isinstance(kept, dict) or "reference_bytes" not in kept:
    return None
  return kept if all(isinstance(value, float) for value in kept.values()) else None


def _store(path: Path, figures: Mapping[str, float]) -> None:
  """Keeps the figures; a place that cannot be written costs only the time of the next run."""
  try:
    replace_text(path, json.dumps(figures))  # however many runs compute it
  except OSError as error:
    logging.warning("%s cannot be written (%s): it will be computed again", path, error)
