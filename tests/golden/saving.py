"""Common parts of the recorders of attention: sizes, inputs, and the writing of a file."""

from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
WIDTH, HEADS = 16, 4
DIM = WIDTH // HEADS


def save(name, module, x, out, **more):
  """Writes the input, the output and the weights of a module to a file.

  The weight of a linear map is `<name>.weight`, (out, in), as in PyTorch.
  """
  arrays = {"x": x, "out": out, **more}
  if module is not None:
    arrays |= dict(module.state_dict())
  np.savez_compressed(HERE / f"{name}.npz", **{key: _plain(x) for key, x in arrays.items()})


def _plain(x):
  """Returns an array as float32; integers and booleans keep their dtype."""
  x = np.asarray(x.detach() if isinstance(x, torch.Tensor) else x)
  return x if x.dtype.kind in "biu" else x.astype(np.float32)


def tokens(n, seed=0):
  return torch.randn(2, n, WIDTH, generator=torch.Generator().manual_seed(seed))
