"""Writes samples of a density model to files: grids of images, arrays, texts, WAV files."""

import dataclasses
import io
import itertools
import math
import wave
from pathlib import Path

import numpy as np
from PIL import Image

from vitx.checkpoints import own_files
from vitx.data.images.settings import FILE_MODES
from vitx.inference.density_model import Kind
from vitx.tasks.density_images import to_values

GAP = 2  # The space between images in pixels.
SIDE = 64  # The size in pixels up to which small images are enlarged by an integer factor.


@dataclasses.dataclass(frozen=True)
class Samples:
  """The S samples that a density model drew.

  If R originals were completed, each several times, S is the number of all completions.

  Attributes:
    tokens: The tokens of the samples, int32 (S, N), including the given ones.
    given: The number of given tokens at the beginning of each sample.
    originals: The originals whose beginnings were completed, int32 (R, N); `None` if no originals
      were completed.
    kind: The kind of data that the tokens encode.
    levels: The number of gray levels of an image's values.
    grid: The grid of a sample's tokens, which is (height, width, channels) for images.
  """

  tokens: np.ndarray
  given: int
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


def write_samples(found: Samples, folder: Path) -> Path:
  """Writes the files of samples into a folder, which is created if absent.

  Images are drawn into one file; if no image file has their number of channels, they are written as
  arrays, uint8 (n, height, width, channels). The sounds of an earlier call that wrote more of them
  are removed.

  Returns:
    The file of all images or texts, or the folder of the sounds.
  """
  folder.mkdir(parents=True, exist_ok=True)
  name = "samples" if found.originals is None else "completions"
  if found.kind == "image" and found.grid[-1] not in FILE_MODES:
    files = {f"{name}.npy": to_numpy_file(found.images)}
    if found.originals is not None:
      files["originals.npy"] = to_numpy_file(found.to_images(found.originals))
  elif found.kind == "image":
    files = {f"{name}.png": to_png(draw_grid(*_arrange(found)))}
  elif found.kind == "text":
    files = {f"{name}.txt": title_texts(found).encode()}
  else:
    sounds = {name: found.tokens}
    if found.originals is not None:
      sounds["original"] = found.originals
    files = {}
    for stem, tokens in sounds.items():
      files |= {f"{stem}_{number}.wav": to_wav(codes) for number, codes in enumerate(tokens)}
      _remove_sounds(folder, stem, first=len(tokens))
  for file, content in files.items():
    own_files.replace(folder, file, content)
  return folder if found.kind == "audio" else folder / next(iter(files))


def _remove_sounds(folder: Path, stem: str, first: int) -> None:
  """Removes the sounds `stem` of a folder from the number `first` on, up to the first gap."""
  for number in itertools.count(first):
    try:
      (folder / f"{stem}_{number}.wav").unlink()
    except FileNotFoundError:
      return


def _arrange(found: Samples) -> tuple[np.ndarray, int]:
  """Returns the images to draw in a grid, in the order of its rows, and the number of columns.

  A row of completions begins with their original.
  """
  if found.originals is None:
    return found.images, math.ceil(math.sqrt(len(found.tokens)))
  originals = found.to_images(found.originals)[:, None]
  completions = found.images.reshape(len(originals), -1, *found.grid)
  rows = np.concatenate([originals, completions], axis=1)
  return rows.reshape(-1, *found.grid), rows.shape[1]


def title_texts(found: Samples) -> str:
  """Joins all samples to one text, in which each sample follows a title.

  A completed original has three titles: its given part, the rest of the original, and the
  completion.
  """
  parts = []
  for number, text in enumerate(found.texts):
    if found.originals is None:
      parts.append(f"--- sample {number}\n{text}\n")
      continue
    rest = slice(found.given, None)
    parts.append(
      f"--- given {number}\n{to_text(found.tokens[number, : found.given])}\n"
      f"--- original\n{to_text(found.originals[number, rest])}\n"
      f"--- completion\n{to_text(found.tokens[number, rest])}\n"
    )
  return "".join(parts)


def draw_grid(images: np.ndarray, columns: int) -> Image.Image:
  """Draws images in rows on white, and enlarges small ones.

  Args:
    images: The images, uint8 (n, height, width, c), c = 1, 3 or 4.
    columns: The number of images in a row.
  """
  factor = max(1, SIDE // max(images.shape[1:3]))
  images = images.repeat(factor, axis=1).repeat(factor, axis=2)
  empty = -len(images) % columns
  gaps = ((0, empty), (GAP, 0), (GAP, 0), (0, 0))
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
    sound.setnchannels(1)
    sound.setsampwidth(2)
    sound.setframerate(RATE)
    sound.writeframes(samples.tobytes())
  return file.getvalue()
