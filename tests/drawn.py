"""Variables of which none stands where it starts, without compiling what a module starts from."""

from functools import partial

import jax
import numpy as np


def draw_variables(init, *args, scale=0.3, seed=0, **kwargs) -> dict:
  """Draws what `init(key, *args, **kwargs)` would make, as NumPy's arrays.

  Parameters are normal with deviation `scale`; all else, such as variances, lies in [0.5, 1.5).
  """
  shapes = dict(jax.eval_shape(partial(init, **kwargs), jax.random.key(0), *args))
  random = np.random.default_rng(seed)
  normal = lambda x: (scale * random.normal(size=x.shape)).astype(x.dtype)  # noqa: E731
  params = jax.tree.map(normal, shapes.pop("params"))
  state = jax.tree.map(lambda x: random.uniform(0.5, 1.5, x.shape).astype(x.dtype), shapes)
  return {"params": params, **state}
