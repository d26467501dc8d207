"""What frozen parameters hold still besides themselves: the statistics that were learned with them.

State such as batch statistics belongs to the innermost module around it that has parameters. Where
all of these are frozen it neither moves nor depends on the batch: as Keras does it for layers that
are not trainable, batch normalization runs as in evaluation. Dropout goes on: it has no state.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import flax.linen as nn
import jax

MARK = "keeps_state"  # a class attribute of modules that keep state where they are told `train`


def hold(names: Collection[str], frozen: Collection[str]) -> AbstractContextManager:
  """Lets frozen modules that keep state run as in evaluation while a network is traced inside.

  Those are modules with the class attribute `keeps_state`, and Flax's `BatchNorm`.

  Args:
    names: of all parameters of the network.
    frozen: those of them that are.
  """

  def run(call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> Any:
    module = context.module
    is_flax = isinstance(module, nn.BatchNorm)
    if context.method_name != "__call__" or not (is_flax or getattr(module, MARK, False)):
      return call(*args, **kwargs)
    if not is_frozen(module.path, names, frozen):
      return call(*args, **kwargs)
    bound = inspect.signature(type(module).__call__).bind(module, *args, **kwargs)
    if is_flax:  # which takes it as a field, too, and refuses both
      bound.arguments.pop("use_running_average", None)
      object.__setattr__(module, "use_running_average", True)
    else:
      bound.arguments["train"] = False
    return call(*bound.args[1:], **bound.kwargs)

  return nn.intercept_methods(run) if frozen else nullcontext()


def keep_state(old: Any, new: Any, names: Collection[str], frozen: Collection[str]) -> Any:
  """Returns the new state of a network, in which that of frozen modules is the old.

  Args:
    old: collections by name, before a step.
    new: after it.
    names: of all parameters of the network.
    frozen: those of them that are.
  """

  def choose(path: tuple, before: Any, after: Any) -> Any:
    _, *owner, _ = [str(getattr(key, "key", key)) for key in path]  # collection, module, variable
    return before if is_frozen(owner, names, frozen) else after

  return jax.tree.map_with_path(choose, old, new) if frozen else new


def is_frozen(module: Sequence[str], names: Collection[str], frozen: Collection[str]) -> bool:
  """Returns whether all parameters are frozen of the innermost module around a path that has any.

  Args:
    module: the path.
    names: of all parameters.
    frozen: those of them that are.
  """
  for depth in range(len(module), -1, -1):
    inside = "".join(f"{each}/" for each in module[:depth])
    below = [name for name in names if name.startswith(inside)]
    if below:
      return set(frozen).issuperset(below)
  return False
