"""Learned scalars of a network's modules that are logged during training.

A module declares them by `logged: ClassVar = ("alpha", "beta")`, the names of its own parameters.
The log has the mean of each parameter, so a parameter with an entry for each head is one number.
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
def finding() -> Iterator[set[str]]:
  """Finds the parameters that the modules of a network declare as `logged`, while it is traced.

  Yields:
    A set that fills with the ends of parameters' names, such as "token_mixer/alpha". Whole names
    are not known, since a module that runs in a loop over layers is called once for all layers.
  """
  found: set[str] = set()

  def look(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    for name in getattr(context.module, "logged", ()):
      found.add("/".join((*context.module.path, name)))
    return call(*args, **kwargs)

  with nn.intercept_methods(look):
    yield found


def means(params: Any, ends: tuple[str, ...]) -> dict[str, jax.Array]:
  """Returns the float32 mean of each parameter whose name has one of these ends.

  Args:
    params: The parameters, by name or stacked; see `vitx.models.stacked`.
    ends: The ends of names that `finding` found.

  Returns:
    The means, by names such as "alpha/block_00" for "block_0/token_mixer/alpha"; see
    `names.figure_of`.
  """
  flat = flatten_dict(params, sep="/")
  suffixes = tuple(f"/{end}" for end in ends)
  chosen = {path: x for path, x in flat.items() if f"/{path}".endswith(suffixes)}
  named = flatten_dict(unstack(unflatten_dict(chosen, sep="/")), sep="/")
  found = {names.figure_of(path): jnp.mean(x.astype(jnp.float32)) for path, x in named.items()}
  return {name: found[name] for name in sorted(found)}
