"""Computes digests of stored arrays and JSON values, which a reader compares to notice damage.

Orbax does not notice flipped bits.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

SIZE = 16  # bytes; random damage goes unnoticed once in 2^128 cases


def digest_array(array: np.ndarray) -> str:
  """Returns the BLAKE2b digest, as hex digits, of an array's dtype, shape and elements.

  The elements are hashed in C order.
  """
  digest = hashlib.blake2b(f"{array.dtype.name}{array.shape}".encode(), digest_size=SIZE)
  digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
  return digest.hexdigest()


def digest_json(value: Any) -> str:
  """Returns the BLAKE2b digest of a JSON value as hex digits; the order of keys is ignored."""
  text = json.dumps(value, sort_keys=True, separators=(",", ":"))
  return hashlib.blake2b(text.encode(), digest_size=SIZE).hexdigest()


def describe(leaves: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
  """Returns the description of each array by name: its digest, shape and dtype, as JSON values."""
  with ThreadPoolExecutor() as pool:  # hashing releases the GIL
    digests = list(pool.map(digest_array, leaves.values()))
  return {
    name: {"digest": digest, "shape": list(array.shape), "dtype": array.dtype.name}
    for (name, array), digest in zip(leaves.items(), digests, strict=True)
  }
