"""Converts a state, a tree of any kinds of containers, to a dict of arrays by name, and back.

The name of an array is its path in the tree, such as `params/head/kernel`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.serialization import from_state_dict, to_state_dict
from flax.traverse_util import flatten_dict, unflatten_dict

from vitx.checkpoints.errors import ShapeMismatch
from vitx.config.errors import ConfigError

LISTED = 10  # differing leaves that an error names; it only counts the others


def name_leaves(tree: Any) -> dict[str, Any]:
  """Returns the leaves of any tree that Flax can serialize, by name.

  `None` and {} have no leaves.

  Raises:
    ConfigError: Two names are equal but for "/" and "."; Orbax would use one file for both.
  """
  flat = flatten_dict(to_state_dict(tree)).items()
  leaves = {"/".join(path): leaf for path, leaf in flat if leaf is not None}
  if len({name.replace("/", ".") for name in leaves}) < sum(leaf is not None for _, leaf in flat):
    raise ConfigError("a state has two leaves whose names differ only in '/' and '.'; rename one.")
  return leaves


def name_arrays(tree: Any) -> dict[str, np.ndarray]:
  """Returns the leaves of a tree, which must be completely on this host, as arrays by name."""
  return {name: np.asarray(leaf) for name, leaf in name_leaves(tree).items()}


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
  """Converts a dict of leaves by name to nested dicts, the inverse of `name_leaves`."""
  return unflatten_dict(dict(leaves), sep="/")


def fill(target: Any, leaves: Mapping[str, Any]) -> Any:
  """Returns a tree with the structure of `target`, whose leaves are taken from `leaves` by name."""

  def find(path: tuple, _: Any) -> Any:
    return leaves[jax.tree_util.keystr(path, simple=True, separator="/")]

  return from_state_dict(target, jax.tree.map_with_path(find, to_state_dict(target)))


def zeros(shapes: Any) -> Any:
  """Returns a tree of NumPy arrays of zeros, given a tree of shapes and dtypes."""
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def check_match(stored: Mapping[str, Any], target: Any, where: str) -> None:
  """Compares the names, shapes and dtypes of a checkpoint's leaves with a target.

  Args:
    stored: The leaves by name: arrays, or their descriptions by `digest.describe`.
    target: A tree of arrays or `jax.ShapeDtypeStruct`.
    where: The name of the checkpoint in the error.

  Raises:
    ShapeMismatch: Leaves differ; the message lists the first of them.
  """
  needed = {name: _kind(leaf) for name, leaf in name_leaves(target).items()}
  kinds = {name: _kind(leaf) for name, leaf in stored.items()}
  differing = [name for name in {**needed, **kinds} if kinds.get(name) != needed.get(name)]
  if differing:
    lines = "\n".join(
      f"  {name}: {kinds.get(name, 'nothing')} in the checkpoint,"
      f" {needed.get(name, 'nothing')} wanted"
      for name in differing[:LISTED]
    )
    raise ShapeMismatch(
      f"{where} is intact but of another shape: {len(differing)} leaves differ.\n{lines}\nUse the"
      " config of its training, or start a new run from its weights with init_from."
    )


def _kind(leaf: Any) -> str:
  """Returns the dtype and shape of a leaf, such as "float32[2, 3]"."""
  if isinstance(leaf, Mapping):
    return f"{leaf['dtype']}{leaf['shape']}"
  array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
  return f"{array.dtype.name}{list(array.shape)}"
