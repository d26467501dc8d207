"""Finds the names of parameters, such as "block_0/attention/query/kernel"."""

from collections.abc import Callable
from typing import Any

import jax


def parameter_names(params: Any) -> list[str]:
  """Returns the path of each parameter, joined by "/", in the order of `jax.tree.leaves`."""
  paths, _ = jax.tree.flatten_with_path(params)
  return [_name(path) for path, _ in paths]


def map_named(function: Callable[[str, Any], Any], params: Any) -> Any:
  """Returns a tree like `params` whose leaves are `function(name, leaf)`."""
  return jax.tree.map_with_path(lambda path, leaf: function(_name(path), leaf), params)


def _name(path: tuple) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")
