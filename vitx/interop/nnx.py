"""A trained model as a module of Flax NNX."""

from flax import nnx
from flax.nnx import bridge
from flax.nnx.bridge.variables import linen_vars_to_nnx_attrs

from vitx.checkpoints.load import Loaded


def to_nnx(loaded: Loaded) -> bridge.ToNNX:
  """Returns the network as an NNX module with the trained weights, made by Flax's own bridge.

  Call the module like the network, with inputs that the task prepared: `module(inputs)`, or in
  training `module(inputs, train=True, rngs=nnx.Rngs(dropout=0), mutable=["batch_stats"])`. It works
  with `nnx.split`, `nnx.jit`, `nnx.grad` and NNX's optimizers. Each collection is a type of
  variable: "params" is `nnx.Param`, "batch_stats" is `nnx.BatchStat`.

  Args:
    loaded: A model that `vitx.load` returned. The model and the module share no variable, so each
      may change without the other.
  """
  module = bridge.ToNNX(loaded.model)
  for name, value in linen_vars_to_nnx_attrs(loaded.variables).items():
    setattr(module, name, nnx.data(value))
  return module
