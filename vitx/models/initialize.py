"""The starting values of a network: what its modules draw, then its `initialization`."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax


def initialize(model: nn.Module, rngs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
  """Returns the variables that training starts from.

  They are those of `model.init`, with the model's `initialization` applied to the parameters where
  it has that field. `model.init` itself is Flax's own and knows nothing of `initialization`.

  Args:
    model: a network, with a field `initialization`, `(key, params) -> params`, or without.
    rngs: a key, or a dict of keys by stream with "params" among them.
    *args: what the model is called with, images (B, height, width, channels) for a classifier.
    **kwargs: further arguments of that call, such as `train`.
  """
  variables = dict(model.init(rngs, *args, **kwargs))
  initialization = getattr(model, "initialization", None)
  if initialization is not None:
    key = rngs["params"] if isinstance(rngs, Mapping) else rngs
    # Not the key that the modules drew from.
    variables["params"] = initialization(jax.random.fold_in(key, 1), variables["params"])
  return variables
