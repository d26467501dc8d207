"""Draws parameters and tokens and calls a mixer, for tests that write its definition as loops."""

from functools import partial

import jax
import numpy as np

from tests.drawn import draw_variables


def draw(module, layout, width, seed=0):
  """Returns parameters of which none is small, and tokens for two examples."""
  x = np.random.default_rng(seed + 1).normal(size=(2, layout.length, width)).astype(np.float32)
  variables = draw_variables(module.init, x, layout=layout, train=False, scale=0.5, seed=seed)
  return variables["params"], x


def linear(x, module):
  """Applies the recorded projection of tokens (..., C), in float64."""
  kernel = np.asarray(module["kernel"], float)
  return np.tensordot(np.asarray(x, float), kernel, (-1, 0)) + np.asarray(module["bias"], float)


@partial(jax.jit, static_argnums=(0, 3))
def apply(module, params, x, layout, mask):
  options = {"mask": mask, "train": False, "mutable": ["intermediates"]}
  out, sown = module.apply({"params": params}, x, layout, **options)
  return out, {name: value[0] for name, value in sown.get("intermediates", {}).items()}


def run(module, params, x, layout, mask=None):
  """Returns the output and the sown arrays by name."""
  return jax.device_get(apply(module, params, x, layout, mask))
