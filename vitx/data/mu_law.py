"""Sound as bytes: the 8-bit mu-law code of WaveNet and the Sparse Transformer article.

The formula is the continuous one of ITU-T G.711, F(x) = sign(x) ln(1 + mu |x|) / ln(1 + mu). Its
range [-1, 1] is divided into 256 codes (van den Oord et al. 2016, equation in section 2.2).
"""

import numpy as np

MU = 255


def mu_law_encode(samples: np.ndarray) -> np.ndarray:
  """Returns the codes of samples, uint8, in the shape of the samples.

  Args:
    samples: Floating-point samples in [-1, 1]; louder ones are clipped. Silence has code 128.
  """
  x = np.clip(np.asarray(samples, np.float64), -1.0, 1.0)
  companded = np.sign(x) * np.log1p(MU * np.abs(x)) / np.log1p(MU)
  return np.floor((companded + 1) / 2 * MU + 0.5).astype(np.uint8)


def mu_law_decode(codes: np.ndarray) -> np.ndarray:
  """Returns the samples of the codes, float32 in [-1, 1]; `mu_law_encode` restores the codes."""
  y = 2 * np.asarray(codes, np.float64) / MU - 1
  return (np.sign(y) * np.expm1(np.abs(y) * np.log1p(MU)) / MU).astype(np.float32)
