"""The file format of `vitx compress`: a magic number, a version, a header in JSON and the code.

The code is the output of the arithmetic coder.
"""

import dataclasses
import hashlib
import json
import math
import operator
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vitx.checkpoints.digest import describe, digest_json
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.tree import name_arrays
from vitx.config.errors import ConfigError
from vitx.files import check_inflated, read_bytes

MAGIC = b"vitx"
VERSION = 1
AXES = {"bytes": 1, "image": 4, "images": 4}  # the number of axes of each kind of content
_HEAD = struct.Struct("<4sBH")  # magic, version, length of the JSON in bytes


@dataclasses.dataclass(frozen=True)
class Header:
  """The first part of a compressed file, which says what the file contains and who can decode it.

  Attributes:
    kind: The kind of content: "bytes", "image" (one image file) or "images" (an array of images).
    shape: The shape of the content: (n,) bytes or (n, height, width, channels).
    lanes: The number of windows of tokens that are coded at a time, which is the model's batch
      size.
    step: The step of the checkpoint.
    weights: A digest of the model's variables, by which the decoder recognizes the model.
    tokens: A digest of the tokens, by which the decoder checks its result.
    made_on: The kind of device and the version of JAX that wrote the file; the last bits of the
      probabilities depend on them.
  """

  kind: str
  shape: tuple[int, ...]
  lanes: int
  step: int
  weights: str
  tokens: str
  made_on: str

  @property
  def count(self) -> int:
    """Returns the number of tokens in the content."""
    return int(np.prod(self.shape, dtype=np.int64))


def write(header: Header, code: bytes) -> bytes:
  """Returns the bytes of a compressed file."""
  text = json.dumps(dataclasses.asdict(header), separators=(",", ":")).encode()
  return _HEAD.pack(MAGIC, VERSION, len(text)) + text + code


def read(path: str | Path) -> tuple[Header, bytes]:
  """Returns the header and the code of a compressed file.

  Raises:
    ConfigError: The file is not a compressed file, is cut off, has another version, or declares
      more tokens than `files.check_inflated` allows.
    OSError: The file cannot be read.
  """
  data = read_bytes(path)
  if data[:4] != MAGIC or len(data) < _HEAD.size:
    raise ConfigError(f"{path} is not a file of vitx compress; name one.")
  _, version, size = _HEAD.unpack_from(data)
  if version != VERSION:
    raise ConfigError(
      f"{path} has version {version} of the format, but this vitx reads version {VERSION};"
      " use the vitx that wrote it."
    )
  try:
    fields: dict[str, Any] = json.loads(data[_HEAD.size : _HEAD.size + size])
    header = Header(**{**fields, "shape": tuple(map(operator.index, fields["shape"]))})
    if len(header.shape) != AXES[header.kind] or min(header.shape) < 1:
      raise ValueError("the shape does not fit the kind")
    declared = 4 * math.prod(header.shape)  # the bytes of the tokens, 4 each
  except (ValueError, KeyError, TypeError) as error:
    raise ConfigError(f"{path} has a damaged header; restore the file from a copy.") from error
  check_inflated(str(path), declared, len(data))
  return header, data[_HEAD.size + size :]


def digest_weights(loaded: Loaded) -> str:
  """Returns a digest of the model's variables, 16 hexadecimal digits."""
  found = describe(name_arrays(loaded.variables))
  return digest_json({name: each["digest"] for name, each in found.items()})[:16]


def digest_tokens(tokens: np.ndarray) -> str:
  """Returns a digest of integers, 16 hexadecimal digits."""
  return hashlib.blake2b(tokens.astype("<i4").tobytes(), digest_size=8).hexdigest()


def describe_machine() -> str:
  """Returns the kind of device and JAX's version, on which the last bits of a logit depend."""
  return f"{jax.devices()[0].device_kind}, jax {jax.__version__}"
