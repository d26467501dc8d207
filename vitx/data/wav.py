"""WAV files: the head without the sound, and the sound as float32, both read by `soundfile`."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError, MissingExtraError, listing
from vitx.files import open_file

FORMATS = ("WAV", "WAVEX")  # libsndfile reads many others, which a suffix `.wav` does not promise
SUBTYPES = ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")


@dataclass(frozen=True)
class Wav:
  """A WAV file, as its head describes it.

  Attributes:
    path: of the file.
    rate: samples per second.
    channels: number of them.
    samples: of each channel; fewer than the head says where the file was cut short.
  """

  path: Path
  rate: int
  channels: int
  samples: int

  def read(self) -> np.ndarray:
    """Returns the samples, float32 (samples, channels); PCM in [-1, 1).

    Raises:
      ConfigError: the file cannot be read any more.
    """
    with _open_sound(self.path) as sound:
      return sound.read(dtype="float32", always_2d=True)


def read_head(path: Path) -> Wav:
  """Returns what the head of a WAV file says.

  Raises:
    ConfigError: it cannot be read, is no WAV of PCM or float, or has no samples.
    MissingExtraError: `soundfile` is not installed.
  """
  with _open_sound(path) as sound:
    if sound.format not in FORMATS:
      raise ConfigError(f"{path} is no WAV file. Convert, replace or remove it.")
    if sound.subtype not in SUBTYPES:
      raise ConfigError(
        f"{path} is WAV of {sound.subtype_info}, which is not read. Convert it to one of:"
        f" {listing(SUBTYPES)}."
      )
    if not sound.frames:
      raise ConfigError(f"{path} has no samples. Replace or remove it.")
    return Wav(path, sound.samplerate, sound.channels, sound.frames)


@contextlib.contextmanager
def _open_sound(path: Path) -> Iterator[Any]:
  try:
    import soundfile
  except ImportError as error:
    raise MissingExtraError(f"{path}: reading WAV files", "audio") from error
  try:
    with open_file(path) as file, soundfile.SoundFile(file) as sound:
      yield sound
  except OSError as error:
    raise ConfigError(f"{path} cannot be read ({error}). Replace or remove it.") from error
  except soundfile.LibsndfileError as error:
    raise ConfigError(
      f"{path} is no WAV file, is empty or is cut short ({error.error_string}) Convert, replace or"
      " remove it."
    ) from error
