"""Looks for errors in a set of images: duplicates, suspect labels, unusual images and bursts.

Everything here is computed from arrays and names; `vitx.inference.audit` reads the examples.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from vitx.analysis.figures.mistakes import to_color
from vitx.config.errors import importing

SIDE = 16  # A perceptual hash has SIDE x SIDE bits.
# The most bits in which the hashes of duplicates differ. Resized, re-encoded and mirrored photos
# differ in at most 6, the most similar different photos of Imagenette in 56, 8 x 8 digits in 36.
NEAR = 32
THUMBNAIL = 8  # The side of the image whose pixels are the features of an example, in pixels.
AT_ONCE = 2**20  # The most distances of images in memory at once.
BLANK = 2.0  # The largest deviation of the brightness in a blank image, in 0..255.
# The measures of an image, and the least difference from the quartiles that makes it unusual: the
# logarithms of the shorter side and of width / height, the mean and deviation of the brightness.
MEASURES = {"size": 1.4, "shape": 0.7, "brightness": 70.0, "contrast": 40.0}


@dataclasses.dataclass(frozen=True)
class AuditedImage:
  """An image, with the facts from which duplicates and oddities are found.

  Attributes:
    number: The index of the image in `Source.all_roles()`.
    role: The role of the image: train, validation or test.
    class_name: The name of its class, or the names of several; "" without any.
    moment: The camera and the minute of a photo; "" if they are unknown.
    hashes: The perceptual hashes of the image and of its mirror image, uint64 (2, 4).
    thumbnail: The colors of the image at 8 x 8 pixels, float32 (192,).
    measures: The values of `MEASURES`.
  """

  number: int
  name: str
  role: str
  class_name: str
  moment: str
  hashes: np.ndarray
  thumbnail: np.ndarray
  measures: tuple[float, ...]


def measure_image(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
  """Returns the last three fields of an `AuditedImage` for its pixels, uint8 (height, width, C).

  Raises:
    MissingExtraError: The package imagehash is not installed.
  """
  with importing("vitx audit", "audit"):
    from imagehash import phash
  picture, (height, width) = to_color(pixels), pixels.shape[:2]
  gray = picture.convert("L")
  bits = np.stack([phash(x, SIDE).hash.ravel() for x in (gray, ImageOps.mirror(gray))])
  small = picture.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
  sizes, light = np.log([min(height, width), width / height]), np.asarray(gray, np.float32)
  hashes = np.packbits(bits, axis=1).view(np.uint64)
  return hashes, np.asarray(small, np.float32).ravel(), (*sizes, light.mean(), light.std())


def find_duplicates(images: Sequence[AuditedImage]) -> tuple[np.ndarray, dict[int, str]]:
  """Finds images whose perceptual hashes, or that of one mirrored, differ in at most `NEAR` bits.

  Blank images are left out, since their hashes are noise.

  Returns:
    The number of the group of each image, int (n,), in which each image is a duplicate of another;
    and a text about each duplicate, by index.
  """
  hashes, count = np.stack([image.hashes for image in images]), len(images)
  is_blank = np.array([image.measures[-1] < BLANK for image in images])
  texts, edges = dict[int, str](), [np.zeros((0, 2), int)]
  rows = max(AT_ONCE // count, 1)
  for start in range(0, count, rows):
    part = np.arange(start, min(start + rows, count))[:, None]
    bits = np.bitwise_count(hashes[part, :1] ^ hashes).sum(axis=-1, dtype=np.uint16)
    bits[is_blank[part] | is_blank | (part == np.arange(count))] = SIDE * SIDE
    pairs = np.argwhere(bits.min(axis=-1) <= NEAR)
    for i, j in pairs:
      mirrored = ", mirrored" * int(bits[i, j].argmin())
      texts[start + int(i)] = f"{bits[i, j].min()} of {SIDE * SIDE} bits differ{mirrored}"
    edges.append(pairs + np.array([start, 0]))
  i, j = np.concatenate(edges).T
  graph = coo_array((np.ones(len(i)), (i, j)), (count, count))
  return connected_components(graph, directed=False)[1], texts


def list_groups(values: Sequence[Any] | np.ndarray) -> list[np.ndarray]:
  """Returns the indices of equal values, of which there are several, for each such value."""
  numbers = np.unique(values, return_inverse=True)[1]
  several = np.flatnonzero(np.bincount(numbers) > 1)
  return [np.flatnonzero(numbers == number) for number in several]


def rank_suspects(
  probabilities: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
  """Ranks labels by how likely they are wrong, by confident learning.

  The threshold of a class is the mean probability that its examples have for it. An example is
  confidently of the most probable class among those whose thresholds its probabilities reach. It is
  suspect if this class is not its label (the entries off the diagonal of the confident joint;
  Northcutt, Jiang and Chuang 2021, section 3.1). Suspects are ranked by the margin by which another
  class is more probable than the label.

  Args:
    probabilities: The probabilities of K classes by a classifier that did not learn from the
      example, (n, K).
    labels: The class of each example as it is labeled, int (n,).

  Returns:
    The indices of all examples, the most suspect first; the most probable class of each example
    that is not its label, int (n,); and the number of suspects.
  """
  rows, sizes = np.arange(len(labels)), np.bincount(labels, minlength=probabilities.shape[1])
  label_probabilities = probabilities[rows, labels]
  sums = np.bincount(labels, label_probabilities, minlength=len(sizes))
  thresholds = np.where(sizes, sums / np.maximum(sizes, 1), np.inf)
  confident = np.where(probabilities >= thresholds, probabilities, -1)
  is_suspect = (confident.max(axis=1) >= 0) & (confident.argmax(axis=1) != labels)
  others = probabilities.copy()
  others[rows, labels] = -1
  margins = others.max(axis=1) - label_probabilities
  return np.lexsort((-margins, ~is_suspect)), others.argmax(axis=1), int(is_suspect.sum())


def find_unusual(images: Sequence[AuditedImage]) -> list[tuple[int, str]]:
  """Finds blank images, and those whose size, shape, brightness or contrast is an outlier.

  A value is an outlier if it is further from the quartiles than three times their distance (Tukey
  1977, "far out") and than the difference in `MEASURES`.

  Returns:
    The index and the oddity of each, sorted.
  """
  values = np.array([image.measures for image in images])
  low, high = np.quantile(values, [0.25, 0.75], axis=0)
  reach = np.maximum(3 * (high - low), [*MEASURES.values()])
  far = (values < low - reach) | (values > high + reach)
  odd = [", ".join(itertools.compress(MEASURES, row)) for row in far]
  texts = np.where(values[:, -1] < BLANK, "blank", odd).tolist()
  return [(i, text) for i, text in enumerate(texts) if text]


def write_groups(groups: Sequence[Sequence[str]]) -> str:
  """Returns an expression for `data.groups` that keeps the examples of each group together.

  Any other example is a group of its own. Signs of a name that are no letters, digits, slashes or
  hyphens become ".", which needs no quotes and matches any sign.
  """
  names = ("|".join(re.sub(r"[^\w/-]", ".", name) for name in group) for group in groups)
  return "".join(f"^(?:{group})()$|" for group in names) + "(.*)"
