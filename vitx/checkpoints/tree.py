"""Converts a state, a tree of any kinds of containers, to a dict of arrays by name, and back.

The name of an array is its path in the tree, such as `params/head/kernel`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from flax.serialization import from_state_dict, to_state_dict
from flax.traverse_util import flatten_dict, unflatten_dict

from vitx.checkpoints.errors import ShapeMismatch
from vitx.config.errors import ConfigError, listing, nearest

LISTED = 10  # differing leaves that an error names; it only counts the others


def name_leaves(tree: Any) -> dict[str, Any]:
  """Returns the leaves of any tree that Flax can serialize, by name.

  `None` and {} have no leaves.

  Raises:
    ConfigError: A key contains "/", or two names differ only in "/" and ".", for which Orbax would
      use one file.
  """
  leaves = {}
  for path, leaf in flatten_dict(to_state_dict(tree)).items():
    if key := next((key for key in path if "/" in key), None):
      raise ConfigError(f"the key {key!r} of a state contains '/'; rename it.")
    if leaf is not None:
      leaves["/".join(path)] = leaf
  if len({name.replace("/", ".") for name in leaves}) < len(leaves):
    raise ConfigError("a state has two leaves whose names differ only in '/' and '.'; rename one.")
  return leaves


def name_arrays(tree: Any) -> dict[str, np.ndarray]:
  """Returns the leaves of a tree as NumPy arrays by name.

  Raises:
    ConfigError: A leaf is not an array of numbers, or is partly on other hosts.
  """
  found = {}
  for name, leaf in name_leaves(tree).items():
    try:
      found[name] = np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
      raise ConfigError(f"state leaf {name!r} cannot be saved: {error}") from error
    if found[name].dtype.kind in "OSUMm":
      raise ConfigError(f"state leaf {name!r} is no array of numbers but {type(leaf).__name__}.")
  return found


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


def take_under(leaves: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
  """Returns the leaves under some top-level keys, such as `params/head/kernel` under `params`.

  Raises:
    ConfigError: There are no leaves under these keys.
  """
  keys = set(keys)
  selected = {name: leaf for name, leaf in leaves.items() if name.split("/")[0] in keys}
  if not selected:
    tops = {name.split("/")[0] for name in leaves}
    hint = "".join(nearest(key, tops) for key in sorted(keys))
    raise ConfigError(
      f"the state has no arrays under {listing(keys)}.{hint} It has {listing(tops)}."
    )
  return selected


def check_match(stored: Mapping[str, Mapping], target: Any, where: str) -> None:
  """Compares the names, shapes and dtypes of a checkpoint's leaves with a target.

  Args:
    stored: The shape and dtype of each leaf by name, as `digest.describe` returns them.
    target: A tree of arrays or `jax.ShapeDtypeStruct`.
    where: The name of the checkpoint in the error.

  Raises:
    ShapeMismatch: Leaves differ; the message lists them.
  """
  wanted = {name: _kind(leaf) for name, leaf in name_leaves(target).items()}
  found = {name: (tuple(s["shape"]), s["dtype"]) for name, s in stored.items()}
  names = [*wanted, *(name for name in found if name not in wanted)]
  differing = [name for name in names if found.get(name) != wanted.get(name)]
  if not differing:
    return
  lines = [
    f"  {name}: {_text(found.get(name))} in the checkpoint, {_text(wanted.get(name))} wanted"
    for name in differing[:LISTED]
  ]
  if len(differing) > LISTED:
    lines.append(f"  and {len(differing) - LISTED} more")
  raise ShapeMismatch(
    f"{where} is intact but of another shape: {len(differing)} of {len(names)} leaves differ.\n"
    + "\n".join(lines)
    + "\nUse the config of its training, or start a new run from its weights with init_from."
  )


def check_arrays(arrays: Any, target: Any, where: str) -> None:
  """Compares a tree of arrays with a target, as `check_match` does."""
  kinds = {name: _kind(leaf) for name, leaf in name_leaves(arrays).items()}
  found = {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in kinds.items()}
  check_match(found, target, where)


def _kind(leaf: Any) -> tuple[tuple[int, ...], str]:
  array = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
  return tuple(array.shape), array.dtype.name


def _text(kind: tuple[tuple[int, ...], str] | None) -> str:
  return "nothing" if kind is None else f"{kind[1]}{list(kind[0])}"
