"""Random variables for a module, drawn without compiling its initialization."""

from functools import partial

import jax
import numpy as np


def draw_variables(init, *args, scale=0.3, seed=0, **kwargs) -> dict:
  """Draws the variables that `init(key, *args, **kwargs)` would make, as NumPy arrays.

  Parameters are normal with standard deviation `scale`. All other values, such as variances, are
  uniform in [0.5, 1.5).
  """
  shapes = dict(jax.eval_shape(partial(init, **kwargs), jax.random.key(0), *args))
  random = np.random.default_rng(seed)
  normal = lambda x: (scale * random.normal(size=x.shape)).astype(x.dtype)  # noqa: E731
  params = jax.tree.map(normal, shapes.pop("params"))
  state = jax.tree.map(lambda x: random.uniform(0.5, 1.5, x.shape).astype(x.dtype), shapes)
  return {"params": params, **state}
