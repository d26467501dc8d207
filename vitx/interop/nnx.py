"""A trained model as a module of Flax NNX."""

from flax import nnx
from flax.nnx import bridge
from flax.nnx.bridge.variables import linen_vars_to_nnx_attrs

from vitx.checkpoints.load import Loaded


def to_nnx(loaded: Loaded) -> bridge.ToNNX:
  """Returns the network as an NNX module, by Flax's own bridge, with the trained weights in it.

  It is called as the network is, with inputs as the task prepares them: `module(inputs)`, in
  training `module(inputs, train=True, rngs=nnx.Rngs(dropout=0), mutable=["batch_stats"])`.
  `nnx.split`, `nnx.jit`, `nnx.grad` and NNX's optimizers take it; each collection is a type of
  variables, "params" `nnx.Param`, "batch_stats" `nnx.BatchStat`.

  Args:
    loaded: of `vitx.load`; it and the module share no variable, so the one may change without the
      other.
  """
  module = bridge.ToNNX(loaded.model)
  for name, value in linen_vars_to_nnx_attrs(loaded.variables).items():
    setattr(module, name, nnx.data(value))
  return module
