"""Reads the headers and samples of WAV files with `soundfile`."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.errors import importing
from vitx.files import reading


@dataclass(frozen=True)
class Wav:
  """A WAV file, as its header describes it.

  Attributes:
    rate: The number of samples per second.
    samples: The number of samples per channel; fewer than the header says if the file is cut short.
  """

  path: Path
  rate: int
  samples: int

  def read(self) -> np.ndarray:
    """Returns the samples, float32 (samples, channels); PCM samples are scaled to [-1, 1)."""
    with _open_sound(self.path) as sound:
      return sound.read(dtype="float32", always_2d=True)


def read_head(path: Path) -> Wav:
  """Reads the header of a WAV file."""
  with _open_sound(path) as sound:
    return Wav(path, sound.samplerate, sound.frames)


@contextlib.contextmanager
def _open_sound(path: Path) -> Iterator[Any]:
  with importing(f"Reading the WAV file {path}", "audio"):
    import soundfile
  problem = f"{path} cannot be read as WAV"
  with reading(problem), open(path, "rb") as file, soundfile.SoundFile(file) as sound:
    yield sound
