"""States as named arrays: `params/blocks_0/kernel`, in whatever containers they come."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flax.serialization import from_state_dict, to_state_dict

from vitx.checkpoints.errors import ShapeMismatch
from vitx.config.errors import ConfigError, listing, nearest

LISTED = 10  # differing leaves that an error names; it only counts the others


def name_leaves(tree: Any) -> dict[str, Any]:
  """Returns the leaves of any Flax-serializable tree by name; `None` and {} have no leaves.

  Raises:
    ConfigError: A key contains "/", or two names differ only in "/" and "." (one file to Orbax).
  """
  leaves = dict(_walk(to_state_dict(tree), ""))
  if len({name.replace("/", ".") for name in leaves}) < len(leaves):
    raise ConfigError("a state has two leaves whose names differ only in '/' and '.'; rename one")
  return leaves


def name_arrays(tree: Any) -> dict[str, np.ndarray]:
  """Returns the leaves as NumPy arrays by name.

  Raises:
    ConfigError: A leaf is no array of numbers, or is on other hosts.
  """
  found = {}
  for name, leaf in name_leaves(tree).items():
    try:
      found[name] = np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
      raise ConfigError(f"state leaf {name!r} cannot be saved: {error}") from error
    if found[name].dtype.kind in "OSUMm":
      raise ConfigError(f"state leaf {name!r} is no array of numbers but {type(leaf).__name__}")
  return found


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
  """Returns nested dicts of leaves by name, the inverse of `name_leaves`."""
  tree: dict[str, Any] = {}
  for name, leaf in leaves.items():
    *parents, last = name.split("/")
    node = tree
    for key in parents:
      node = node.setdefault(key, {})
    node[last] = leaf
  return tree


def fill(target: Any, leaves: Mapping[str, Any]) -> Any:
  """Returns a tree of the target's structure with the leaves that have the target's names."""
  return from_state_dict(target, _replace(to_state_dict(target), leaves, ""))


def take_under(leaves: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
  """Returns the leaves below these top-level keys.

  Raises:
    ConfigError: There are no such leaves.
  """
  keys = set(keys)
  selected = {name: leaf for name, leaf in leaves.items() if name.split("/")[0] in keys}
  if not selected:
    tops = {name.split("/")[0] for name in leaves}
    hint = "".join(nearest(key, tops) for key in sorted(keys))
    raise ConfigError(
      f"the state has no arrays under {listing(keys)}.{hint} It has: {listing(tops)}."
    )
  return selected


def check_match(stored: Mapping[str, Mapping], target: Any, where: str) -> None:
  """Compares the names, shapes and dtypes of a checkpoint's leaves with a target.

  Args:
    stored: The shape and dtype of each leaf, as `digest.describe` returns them.
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
    f"  {name}: checkpoint {_text(found.get(name))}, wanted {_text(wanted.get(name))}"
    for name in differing[:LISTED]
  ]
  if len(differing) > LISTED:
    lines.append(f"  and {len(differing) - LISTED} more")
  raise ShapeMismatch(
    f"{where} is intact but of another shape: {len(differing)} of {len(names)} leaves differ\n"
    + "\n".join(lines)
    + "\nUse the config it was trained with, or start a new run from its weights with init_from."
  )


def check_arrays(arrays: Any, target: Any, where: str) -> None:
  """Compares a tree of arrays with a target, as `check_match` does."""
  found = {
    name: {"shape": x.shape, "dtype": x.dtype.name} for name, x in name_arrays(arrays).items()
  }
  check_match(found, target, where)


def _walk(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
  if not isinstance(node, Mapping):
    if node is not None:
      yield prefix[:-1], node
    return
  for key, child in node.items():
    if "/" in key:
      raise ConfigError(f"state key {key!r} under {prefix!r} contains '/'; rename it")
    yield from _walk(child, f"{prefix}{key}/")


def _replace(node: Any, leaves: Mapping[str, Any], prefix: str) -> Any:
  if isinstance(node, Mapping):
    return {key: _replace(child, leaves, f"{prefix}{key}/") for key, child in node.items()}
  return None if node is None else leaves[prefix[:-1]]


def _kind(leaf: Any) -> tuple[tuple[int, ...], str]:
  array = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else np.asarray(leaf)
  return tuple(array.shape), array.dtype.name


def _text(kind: tuple[tuple[int, ...], str] | None) -> str:
  return "has none" if kind is None else f"{kind[1]}{list(kind[0])}"
