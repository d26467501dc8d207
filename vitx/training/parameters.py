"""The names of parameters, such as "block_0/attention/query/kernel"."""

import difflib
from collections.abc import Sequence
from typing import Any

import jax


def parameter_names(params: Any) -> list[str]:
  """Returns the path of each parameter, joined by "/", in the order of `jax.tree.leaves`."""
  paths, _ = jax.tree.flatten_with_path(params)
  return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def replace_leaves(params: Any, leaves: Sequence[Any]) -> Any:
  """Returns a tree like `params` with other leaves, in the order of `parameter_names`."""
  return jax.tree.unflatten(jax.tree.structure(params), leaves)


def nearest_names(pattern: str, names: Sequence[str], count: int = 3) -> list[str]:
  """Returns the `count` names most similar to a pattern, for an error message."""
  return difflib.get_close_matches(pattern, names, n=count, cutoff=0.0)
