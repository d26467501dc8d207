"""WAV files: the head without the sound, and the sound as float32.

The chunks of RIFF/WAVE as Microsoft and IBM define them. The standard library reads no float, SciPy
warns of every chunk it does not know, which threads cannot silence safely.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from vitx.config.errors import ConfigError, listing
from vitx.files import open_file

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
# By (format, bits); 24 bits have no type of their own.
TYPES = {
  (PCM, 8): "u1",
  (PCM, 16): "<i2",
  (PCM, 24): "3u1",
  (PCM, 32): "<i4",
  (FLOAT, 32): "<f4",
  (FLOAT, 64): "<f8",
}


@dataclass(frozen=True)
class Wav:
  """A WAV file, as its head describes it.

  Attributes:
    path: of the file.
    rate: samples per second.
    channels: number of them.
    samples: of each channel; fewer than the head says where the file was cut short.
    kind: (format, bits), a key of `TYPES`.
    start: byte at which the samples start.
  """

  path: Path
  rate: int
  channels: int
  samples: int
  kind: tuple[int, int]
  start: int

  def read(self) -> np.ndarray:
    """Returns the samples, float32 (samples, channels); PCM in [-1, 1).

    Raises:
      ConfigError: the file cannot be read any more.
    """
    dtype = np.dtype(TYPES[self.kind])
    try:
      raw = np.fromfile(self.path, dtype, self.samples * self.channels, offset=self.start)
      raw = raw.reshape(self.samples, self.channels, *dtype.shape)
    except (OSError, ValueError) as error:
      raise ConfigError(f"{self.path} cannot be read ({error}).") from error
    return _to_float(raw, self.kind)


def _to_float(raw: np.ndarray, kind: tuple[int, int]) -> np.ndarray:
  form, bits = kind
  if form == FLOAT:
    return raw.astype(np.float32)
  if bits == 8:  # the one width without a sign
    return (raw.astype(np.float32) - 128) / 128
  if bits == 24:
    low, middle, high = (raw[..., i].astype(np.int32) for i in range(3))
    return ((low << 8 | middle << 16 | high << 24) >> 8).astype(np.float32) / 2**23
  return raw.astype(np.float32) / 2 ** (bits - 1)


def read_head(path: Path) -> Wav:
  """Returns what the head of a WAV file says.

  Raises:
    ConfigError: it cannot be read, is no WAV of PCM or float, or has no samples.
  """
  try:
    with open_file(path) as file:
      result = _parse(path, file)
  except OSError as error:
    raise ConfigError(f"{path} cannot be read ({error}). Replace or remove it.") from error
  except struct.error as error:
    raise ConfigError(f"{path} is empty or cut short. Replace or remove it.") from error
  if not result.samples:
    raise ConfigError(f"{path} has no samples. Replace or remove it.")
  return result


def _parse(path: Path, file: BinaryIO) -> Wav:
  size = os.fstat(file.fileno()).st_size
  riff, _, wave = struct.unpack("<4sI4s", file.read(12))
  if (riff, wave) != (b"RIFF", b"WAVE"):
    raise ConfigError(f"{path} is no WAV file. Convert, replace or remove it.")
  head: tuple[int, int, int, int] | None = None
  while True:
    chunk, length = struct.unpack("<4sI", file.read(8))
    start = file.tell()
    if chunk == b"fmt ":
      head = _format(file.read(min(length, 40)))
    elif chunk == b"data" and head is not None:
      form, channels, rate, bits = head
      if (form, bits) not in TYPES or not channels or not rate:
        known = listing(f"{'PCM' if form == PCM else 'float'} of {bits}" for form, bits in TYPES)
        raise ConfigError(
          f"{path} is WAV of format {form}, {bits} bits, {channels} channels at {rate} Hz, which"
          f" cannot be read. Convert it to one of: {known} bits."
        )
      length = min(length, size - start)  # who writes to a pipe says the largest there is
      return Wav(path, rate, channels, length // (channels * bits // 8), (form, bits), start)
    file.seek(start + length + length % 2)


def _format(chunk: bytes) -> tuple[int, int, int, int]:
  """Returns format, channels, rate and bits."""
  form, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
  if form == EXTENSIBLE:  # the true format begins the GUID at byte 24
    (form,) = struct.unpack_from("<H", chunk, 24)
  return form, channels, rate, bits
