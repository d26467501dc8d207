"""Sound as bytes: 8-bit mu-law, as WaveNet and the Sparse Transformer article code music.

The formula is the continuous one of ITU-T G.711, F(x) = sign(x) ln(1 + mu |x|) / ln(1 + mu), whose
[-1, 1] is divided into 256 codes (van den Oord et al. 2016, equation in section 2.2).
"""

import numpy as np

MU = 255


def mu_law_encode(samples: np.ndarray) -> np.ndarray:
  """Returns the codes of samples, uint8, any shape.

  Args:
    samples: floating, in [-1, 1]; what is louder is clipped. Silence is code 128.
  """
  x = np.clip(np.asarray(samples, np.float64), -1.0, 1.0)
  companded = np.sign(x) * np.log1p(MU * np.abs(x)) / np.log1p(MU)
  return np.floor((companded + 1) / 2 * MU + 0.5).astype(np.uint8)


def mu_law_decode(codes: np.ndarray) -> np.ndarray:
  """Returns the samples of codes, float32 in [-1, 1]; `mu_law_encode` gives the codes back."""
  y = 2 * np.asarray(codes, np.float64) / MU - 1
  return (np.sign(y) * np.expm1(np.abs(y) * np.log1p(MU)) / MU).astype(np.float32)
