"""Samples as one looks at them or listens to them: grids of images, text, WAV files."""

import io
import math
import wave

import numpy as np
from PIL import Image

GAP = 2  # pixels between images
SIDE = 64  # pixels, to which smaller images are enlarged by an integer


def draw_grid(images: np.ndarray, columns: int) -> Image.Image:
  """Draws images in rows, enlarged where they are small, on white.

  Args:
    images: uint8 (n, height, width, c), c 1 or 3.
    columns: images of a row.
  """
  factor = max(1, SIDE // max(images.shape[1:3]))
  images = images.repeat(factor, axis=1).repeat(factor, axis=2)
  count, height, width, channels = images.shape
  rows = math.ceil(count / columns)
  shape = (rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, channels)
  canvas = np.full(shape, 255, np.uint8)
  for number, image in enumerate(images):
    row, column = divmod(number, columns)
    top, left = GAP + row * (height + GAP), GAP + column * (width + GAP)
    canvas[top : top + height, left : left + width] = image
  return Image.fromarray(canvas[..., 0] if channels == 1 else canvas)


def to_text(tokens: np.ndarray) -> str:
  """Returns bytes as text: UTF-8, with a sign in the place of what is none or does not print."""
  text = tokens.astype(np.uint8).tobytes().decode("utf-8", errors="replace")
  return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def to_png(image: Image.Image) -> bytes:
  """Returns the PNG file of an image."""
  file = io.BytesIO()
  image.save(file, "PNG")
  return file.getvalue()


def to_wav(codes: np.ndarray) -> bytes:
  """Returns the WAV file of mu-law codes, uint8 (n,): 16 bits at the rate that is modeled."""
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
