"""Reads the headers and samples of WAV files with `soundfile`."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError, MissingExtraError, listing
from vitx.files import open_file

FORMATS = ("WAV", "WAVEX")  # libsndfile would accept many other formats under the suffix `.wav`
SUBTYPES = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")


@dataclass(frozen=True)
class Wav:
  """A WAV file, as its header describes it.

  Attributes:
    path: The path of the file.
    rate: The number of samples per second.
    channels: The number of channels.
    samples: The number of samples per channel; fewer than the header says if the file is cut short.
  """

  path: Path
  rate: int
  channels: int
  samples: int

  def read(self) -> np.ndarray:
    """Returns the samples, float32 (samples, channels); PCM samples are scaled to [-1, 1).

    Raises:
      ConfigError: The file can no longer be read.
    """
    with _open_sound(self.path) as sound:
      return sound.read(dtype="float32", always_2d=True)


def read_head(path: Path) -> Wav:
  """Reads the header of a WAV file.

  Raises:
    ConfigError: The file cannot be read, is not WAV of PCM or float, or has no samples.
    MissingExtraError: `soundfile` is not installed.
  """
  with _open_sound(path) as sound:
    if sound.format not in FORMATS:
      raise ConfigError(f"{path} is not a WAV file. Convert, replace or remove the file.")
    if sound.subtype not in SUBTYPES:
      raise ConfigError(
        f"{path} is a WAV file with the encoding {sound.subtype_info}, which vitx does"
        f" not read. Convert the file to one of: {listing(SUBTYPES)}."
      )
    if not sound.frames:
      raise ConfigError(f"{path} has no samples. Replace or remove the file.")
    return Wav(path, sound.samplerate, sound.channels, sound.frames)


@contextlib.contextmanager
def _open_sound(path: Path) -> Iterator[Any]:
  try:
    import soundfile
  except ImportError as error:
    raise MissingExtraError(f"Reading the WAV file {path}", "audio") from error
  try:
    with open_file(path) as file, soundfile.SoundFile(file) as sound:
      yield sound
  except OSError as error:
    raise ConfigError(f"{path} cannot be read ({error}). Replace or remove the file.") from error
  except soundfile.LibsndfileError as error:
    raise ConfigError(
      f"{path} is not a WAV file, is empty or is cut short"
      f" ({error.error_string.rstrip('.')}). Convert, replace or remove the file."
    ) from error
