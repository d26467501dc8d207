"""Writes samples of a density model to files: grids of images, arrays, texts, WAV files."""

import dataclasses
import io
import math
import wave
from pathlib import Path

import numpy as np
from PIL import Image

from vitx.data.images.settings import FILE_MODES
from vitx.files import replace_bytes
from vitx.inference.density_model import Kind
from vitx.tasks.density_images import to_values

GAP = 2  # The space between images in pixels.
SIDE = 64  # The size in pixels up to which small images are enlarged by an integer factor.


@dataclasses.dataclass(frozen=True)
class Samples:
  """The S samples that a density model drew.

  If R originals were completed, each several times, S is the number of all completions.

  Attributes:
    tokens: The tokens of the samples, int32 (S, N), including the prompt.
    prompt_length: The number of tokens of the prompt at the beginning of each sample.
    originals: The originals whose beginnings were completed, int32 (R, N), or `None`.
    levels: The number of gray levels of an image's values.
    grid: The grid of a sample's tokens, which is (height, width, channels) for images.
  """

  tokens: np.ndarray
  prompt_length: int
  originals: np.ndarray | None
  kind: Kind
  levels: int
  grid: tuple[int, ...]

  @property
  def images(self) -> np.ndarray:
    """Returns the samples as images, uint8 (S, height, width, channels)."""
    return self.to_images(self.tokens)

  @property
  def texts(self) -> list[str]:
    """Returns the samples as UTF-8 text, with a replacement character for invalid bytes."""
    return [to_text(tokens) for tokens in self.tokens]

  def to_images(self, tokens: np.ndarray) -> np.ndarray:
    """Returns tokens (n, N) as images, uint8 (n, height, width, channels)."""
    return to_values(tokens, self.levels).reshape(-1, *self.grid)


def write_samples(samples: Samples, folder: Path) -> Path:
  """Writes the files of samples into a folder, which is created if absent.

  Images are drawn into one file; if no image file has their number of channels, they are written as
  arrays, uint8 (n, height, width, channels). The sounds of an earlier call that wrote more of them
  are removed.

  Returns:
    The file of all images or texts, or the folder of the sounds.
  """
  folder.mkdir(parents=True, exist_ok=True)
  name = "samples" if samples.originals is None else "completions"
  if samples.kind == "image" and samples.grid[-1] not in FILE_MODES:
    files = {f"{name}.npy": to_numpy_file(samples.images)}
    if samples.originals is not None:
      files["originals.npy"] = to_numpy_file(samples.to_images(samples.originals))
  elif samples.kind == "image":
    files = {f"{name}.png": to_png(draw_grid(*_arrange(samples)))}
  elif samples.kind == "text":
    files = {f"{name}.txt": title_texts(samples).encode()}
  else:
    sounds = {name: samples.tokens}
    if samples.originals is not None:
      sounds["original"] = samples.originals
    files = {}
    for stem, tokens in sounds.items():
      files |= {f"{stem}_{number}.wav": to_wav(codes) for number, codes in enumerate(tokens)}
      _remove_sounds(folder, stem, first=len(tokens))
  for file, content in files.items():
    replace_bytes(folder / file, content)
  return folder if samples.kind == "audio" else folder / next(iter(files))


def _remove_sounds(folder: Path, stem: str, first: int) -> None:
  """Removes the sounds `stem` of a folder from the number `first` on, up to the first gap."""
  while (path := folder / f"{stem}_{first}.wav").exists():
    path.unlink()
    first += 1


def _arrange(samples: Samples) -> tuple[np.ndarray, int]:
  """Returns the images to draw in a grid, in the order of its rows, and the number of columns.

  A row of completions begins with their original.
  """
  if samples.originals is None:
    return samples.images, math.ceil(math.sqrt(len(samples.tokens)))
  originals = samples.to_images(samples.originals)[:, None]
  completions = samples.images.reshape(len(originals), -1, *samples.grid)
  rows = np.concatenate([originals, completions], axis=1)
  return rows.reshape(-1, *samples.grid), rows.shape[1]


def title_texts(samples: Samples) -> str:
  """Joins all samples to one text, in which each sample follows a title.

  A completed original has three titles: its given part, the rest of the original, and the
  completion.
  """
  parts = []
  for number, text in enumerate(samples.texts):
    if samples.originals is None:
      parts.append(f"--- sample {number}\n{text}\n")
      continue
    rest = slice(samples.prompt_length, None)
    parts.append(
      f"--- given {number}\n{to_text(samples.tokens[number, : samples.prompt_length])}\n"
      f"--- original\n{to_text(samples.originals[number, rest])}\n"
      f"--- completion\n{to_text(samples.tokens[number, rest])}\n"
    )
  return "".join(parts)


def draw_grid(images: np.ndarray, columns: int) -> Image.Image:
  """Draws images, uint8 (n, height, width, 1, 3 or 4), in rows on white; enlarges small ones."""
  factor = max(1, SIDE // max(images.shape[1:3]))
  images = images.repeat(factor, axis=1).repeat(factor, axis=2)
  gaps = ((0, -len(images) % columns), (GAP, 0), (GAP, 0), (0, 0))
  tiles = np.pad(images, gaps, constant_values=255)
  tiles = tiles.reshape(-1, columns, *tiles.shape[1:])
  rows = [np.concatenate(row, axis=1) for row in tiles]
  edge = ((0, GAP), (0, GAP), (0, 0))
  canvas = np.pad(np.concatenate(rows), edge, constant_values=255)
  return Image.fromarray(canvas[..., 0] if canvas.shape[-1] == 1 else canvas)


def to_text(tokens: np.ndarray) -> str:
  """Returns bytes as UTF-8 text, with replacement characters for invalid or unprintable parts."""
  text = tokens.astype(np.uint8).tobytes().decode("utf-8", errors="replace")
  return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def to_png(image: Image.Image) -> bytes:
  """Returns the PNG file of an image."""
  file = io.BytesIO()
  image.save(file, "PNG")
  return file.getvalue()


def to_numpy_file(array: np.ndarray, suffix: str = ".npy") -> bytes:
  """Returns the file of an array: an NPZ file if the suffix is ".npz", otherwise an NPY file."""
  file = io.BytesIO()
  (np.savez if suffix == ".npz" else np.save)(file, array)
  return file.getvalue()


def to_wav(codes: np.ndarray) -> bytes:
  """Converts mu-law codes, uint8 (n,), to a WAV file of 16-bit samples at the model's rate."""
  from vitx.data.mu_law import mu_law_decode
  from vitx.data.sources.audio import RATE

  samples = np.rint(mu_law_decode(codes) * 32767).astype("<i2")
  file = io.BytesIO()
  with wave.open(file, "wb") as sound:
    sound.setparams((1, 2, RATE, len(samples), "NONE", "not compressed"))
    sound.writeframes(samples.tobytes())
  return file.getvalue()
