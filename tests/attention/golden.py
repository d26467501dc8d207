"""Reads recorded values and lays other libraries' weights out as our modules have them."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from vitx.ops.layout import TokenLayout

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
HEADS = 4
BOTH = pytest.mark.parametrize("implementation", ["masked", "kernelized"])


def load(name):
  with np.load(GOLDEN / f"{name}.npz") as file:
    return dict(file)


def inward(weight, bias=None, heads=HEADS):
  """Returns PyTorch's weight (H D, C) as parameters with the kernel (C, H, D)."""
  params = {"kernel": weight.T.reshape(weight.shape[1], heads, -1)}
  return params if bias is None else params | {"bias": bias.reshape(heads, -1)}


def outward(weight, bias):
  return {"kernel": weight.T.reshape(HEADS, -1, weight.shape[0]), "bias": bias}


def linear(g, name):
  """Returns the parameters of the linear map recorded as `name.weight` and `name.bias`."""
  return inward(g[f"{name}.weight"], g[f"{name}.bias"])


def run(module, variables, x, mask=None, layout=None):
  layout = TokenLayout((x.shape[1],)) if layout is None else layout
  apply = jax.jit(partial(module.apply, layout=layout, train=False))
  return np.asarray(apply(variables, x, mask=mask))


def close(a, b, where=None):
  """Checks that arrays (B, N, C) are equal within float32's rounding, where `where` is True."""
  if where is not None:
    a, b = np.asarray(a)[where], b[where]
  np.testing.assert_allclose(a, b, atol=3e-6 * np.abs(b).max(), rtol=2e-5)
