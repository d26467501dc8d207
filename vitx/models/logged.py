"""Finds and averages learned scalars, such as gains and temperatures, for the log of training.

A module declares the names of these parameters by `logged: ClassVar = ("alpha", "beta")`. The log
has the mean of each parameter, so a parameter with an entry for each head is one number.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from vitx.models import names
from vitx.models.stacked import unstack


@contextlib.contextmanager
def collect_names() -> Iterator[set[str]]:
  """Collects the names in `logged` of all modules that are called inside a `with` block.

  `logged` is a class attribute of a module. Trace a call of the network in the block.

  Yields:
    A set of names, empty at first. Every call of a module adds the names of its `logged`
    parameters, such as "token_mixer/alpha". These may be only the ends of the parameters' full
    names, since a module that runs in a loop over layers is called once for all layers.
  """
  collected: set[str] = set()

  def look(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    for name in getattr(context.module, "logged", ()):
      collected.add("/".join((*context.module.path, name)))
    return call(*args, **kwargs)

  with nn.intercept_methods(look):
    yield collected


def means(params: Any, ends: tuple[str, ...]) -> dict[str, jax.Array]:
  """Returns the float32 mean of each parameter whose name ends with one of some given ends.

  Args:
    params: The parameters, by name or stacked; see `vitx.models.stacked`.
    ends: The ends of names, such as "token_mixer/alpha", that `collect_names` collected.

  Returns:
    The means by the names of `names.name_figure`, such as "alpha/block_00" for
    "block_0/token_mixer/alpha".
  """
  flat = flatten_dict(params, sep="/")
  suffixes = tuple(f"/{end}" for end in ends)
  chosen = {path: x for path, x in flat.items() if f"/{path}".endswith(suffixes)}
  layers = flatten_dict(unstack(unflatten_dict(chosen, sep="/")), sep="/")
  figures = {names.name_figure(path): jnp.mean(x.astype(jnp.float32)) for path, x in layers.items()}
  return {name: figures[name] for name in sorted(figures)}
