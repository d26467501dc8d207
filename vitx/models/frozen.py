"""Freezes the state of modules, such as batch statistics, together with their parameters.

A state belongs to the innermost module that contains it and has parameters. If all parameters of
this module are frozen, the state is frozen too: it does not change, and the module runs as in
evaluation, so that batch normalization does not depend on the batch. Keras treats layers that are
not trainable in this way. Dropout stays active, since it has no state.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import flax.linen as nn
import jax


def freeze(names: Collection[str], frozen: Collection[str]) -> AbstractContextManager:
  """Returns a context in which the frozen modules of a network run as in evaluation.

  This concerns modules with state: those with the class attribute `keeps_state`, and Flax's
  `BatchNorm`. Trace the training step inside this context.

  Args:
    names: The names of all parameters of the network.
    frozen: The names of the frozen parameters.
  """

  def run(call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> Any:
    module = context.module
    is_flax = isinstance(module, nn.BatchNorm)
    has_state = is_flax or getattr(module, "keeps_state", False)
    is_call = context.method_name == "__call__"
    if not (is_call and has_state and is_frozen(module.path, names, frozen)):
      return call(*args, **kwargs)
    bound = inspect.signature(type(module).__call__).bind(module, *args, **kwargs)
    if is_flax:  # Flax raises an error if both the field and the argument are set.
      bound.arguments.pop("use_running_average", None)
      object.__setattr__(module, "use_running_average", True)
    else:
      bound.arguments["train"] = False
    return call(*bound.args[1:], **bound.kwargs)

  return nn.intercept_methods(run) if frozen else nullcontext()


def keep_state(old: Any, new: Any, names: Collection[str], frozen: Collection[str]) -> Any:
  """Returns the state of a network after a step, in which frozen modules keep their old state.

  Args:
    old: The collections of state, such as "batch_stats", by name before the step.
    new: The collections of state by name after the step.
    names: The names of all parameters of the network.
    frozen: The names of the frozen parameters.
  """

  def choose(path: tuple, before: Any, after: Any) -> Any:
    _, *owner, _ = [str(getattr(key, "key", key)) for key in path]  # collection, module, variable
    return before if is_frozen(owner, names, frozen) else after

  return jax.tree.map_with_path(choose, old, new) if frozen else new


def is_frozen(module: Sequence[str], names: Collection[str], frozen: Collection[str]) -> bool:
  """Returns whether all parameters of a module are frozen.

  For a module without parameters, the innermost enclosing module that has parameters decides.

  Args:
    module: The path of the module.
    names: The names of all parameters of the network.
    frozen: The names of the frozen parameters.
  """
  for depth in range(len(module), -1, -1):
    inside = "".join(f"{part}/" for part in module[:depth])
    below = [name for name in names if name.startswith(inside)]
    if below:
      return set(frozen).issuperset(below)
  return False
