"""The TFDS builder of `digits`."""

import io

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image


class Digits(tfds.core.GeneratorBasedBuilder):
  """Scanned digits of 8x8 gray pixels, by E. Alpaydin and C. Kaynak (1998), doi 10.24432/C50P49.

  Image i of scikit-learn's `load_digits` is in test if i % 5 == 4 (359 images), and otherwise in
  train (1,438 images).
  """

  VERSION = tfds.core.Version("1.0.0")

  def _info(self) -> tfds.core.DatasetInfo:
    return tfds.core.DatasetInfo(
      builder=self,
      description="The test part of UCI's handwritten digits, as shipped with scikit-learn.",
      homepage="https://archive.ics.uci.edu/dataset/80",
      features=tfds.features.FeaturesDict(
        {
          "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
          "label": tfds.features.ClassLabel(names=[str(digit) for digit in range(10)]),
          "id": tfds.features.Text(),
        }
      ),
      supervised_keys=("image", "label"),
    )

  def _split_generators(self, dl_manager):
    test = np.arange(1797) % 5 == 4
    return {
      "train": self._generate_examples(np.flatnonzero(~test)),
      "test": self._generate_examples(np.flatnonzero(test)),
    }

  def _generate_examples(self, indices):
    from sklearn.datasets import load_digits

    digits = load_digits()
    for i in indices.tolist():
      # A pixel is the number of dark points, 0..16, in a 4x4 cell of the scan.
      pixels = (digits.images[i] * (255 / 16)).round().astype(np.uint8)
      example = {"image": _png(pixels), "label": int(digits.target[i]), "id": f"digits_{i:04d}"}
      yield i, example


def _png(pixels: np.ndarray) -> bytes:
  """Returns the PNG file of a gray image, uint8 (H, W), without compression.

  Compressed bytes, and so the fingerprint of the set, would depend on the version of zlib.
  """
  buffer = io.BytesIO()
  Image.fromarray(pixels).save(buffer, format="PNG", compress_level=0)
  return buffer.getvalue()
