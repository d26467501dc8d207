"""What the recorders of attention share: sizes, inputs, and how a file is written."""

from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
WIDTH, HEADS = 16, 4
DIM = WIDTH // HEADS


def save(name, module, x, out, **more):
  """Weights of linear maps as `<name>.weight`, as PyTorch has them: (out, in)."""
  arrays = {"x": x, "out": out, **more}
  if module is not None:
    arrays |= dict(module.state_dict())
  np.savez_compressed(HERE / f"{name}.npz", **{key: _plain(x) for key, x in arrays.items()})


def _plain(x):
  """Float32, or the integers and booleans that they are."""
  x = np.asarray(x.detach() if isinstance(x, torch.Tensor) else x)
  return x if x.dtype.kind in "biu" else x.astype(np.float32)


def tokens(n, seed=0):
  return torch.randn(2, n, WIDTH, generator=torch.Generator().manual_seed(seed))
