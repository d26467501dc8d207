"""Weights that others published, from their files: `init_from=deit_small.pth`.

They may also be named `hf:NAME`, and are then downloaded.
"""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitx.checkpoints import hub
from vitx.checkpoints.foreign_names import to_ours
from vitx.checkpoints.torch_file import read_torch
from vitx.checkpoints.tree import name_leaves, nest
from vitx.errors import ConfigError, MissingExtraError
from vitx.models import names
from vitx.ops.layout import TokenLayout

TORCH = (".pth", ".pt", ".bin", ".tar")
SUFFIXES = (*TORCH, ".npz", ".safetensors")
# Where training code puts the weights beside other things.
STATE_DICTS = ("model", "state_dict")


def is_file(source: str) -> bool:
  """Returns whether `init_from` names a file of weights, here or on the Hub, and not a workdir."""
  return hub.is_name(source) or source.endswith(SUFFIXES)


def read_arrays(path: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a `.safetensors` or `.npz` file, or of one of `torch.save`, by name.

  Nothing that a file pickles is executed.

  Raises:
    ConfigError: there is no such file, it cannot be read, or it holds no dict of arrays.
    MissingExtraError: `.safetensors` without that package.
  """
  if not Path(path).is_file():
    raise ConfigError(f"init_from={path!r}: there is no such file")
  if path.endswith(".safetensors"):
    return _read_safetensors(path)
  if path.endswith(".npz"):
    return _read_npz(path)
  content = read_torch(path)
  for key in STATE_DICTS:
    if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
      content = content[key]
  if not isinstance(content, Mapping) or not content:
    raise ConfigError(f"init_from={path!r} holds no arrays by name")
  other = [key for key, value in content.items() if not isinstance(value, np.ndarray)]
  if other:
    raise ConfigError(
      f"init_from={path!r}: {other[0]!r} is no array; the weights should be the whole of the file,"
      f" or under {' or '.join(map(repr, STATE_DICTS))}"
    )
  return {str(key): value for key, value in content.items()}


def read_variables(source: str, num_heads: int) -> tuple[dict[str, Any], list[str]]:
  """Returns a file's weights as collections of ours, nested, and the names that have no place.

  Args:
    source: path of the file, or `hf:NAME`.
    num_heads: H of the network.

  Raises:
    ConfigError: the file cannot be read, or its source is not known.
    MissingExtraError: a package is missing that reads it.
  """
  arrays = read_arrays(hub.download(source) if hub.is_name(source) else source)
  try:
    ours, left = to_ours(arrays, num_heads)
  except ConfigError as error:
    raise ConfigError(f"init_from={source!r}: {error}") from error
  return nest(ours), left


def count_heads(params: Mapping[str, Any]) -> int:
  """Returns H of a network by its first query projection (C, H, D); 1 where it has none."""
  for name, leaf in name_leaves(params).items():
    if name.endswith("query/kernel") and leaf.ndim == 3:
      return leaf.shape[1]
  return 1


def guess_layout(variables: Mapping[str, Any]) -> TokenLayout | None:
  """Returns how the tokens lie that some weights belong to, taking their grid for a square.

  `None` if no weights tell: there is neither a position table nor a mixer bound to the tokens, or
  their number is no square's.
  """
  params = variables["params"]
  prefix = sum(
    params[name].shape[-2] for name in (names.CLASS_TOKEN, names.EXTRA_TOKENS) if name in params
  )
  rows = _count_rows(name_leaves(params))
  # A table has a row for all tokens in front of the grid or, as with registers, for none of them.
  for known in (0, prefix) if names.EXTRA_TOKENS in params else (prefix, 0):
    side = math.isqrt(max(rows - known, 0))
    if side and side**2 + known == rows:
      return TokenLayout((side, side), prefix)
  return None


def _count_rows(leaves: Mapping[str, Any]) -> int:
  """Returns the entries of the first position table, else of weights that have one per token."""
  for name, leaf in leaves.items():
    if names.is_position_table(name):
      return leaf.shape[-2]
  for name, leaf in leaves.items():
    bound = names.token_axis(name)
    if bound is not None:
      return leaf.shape[bound[0]]
  return 0


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
  try:
    from safetensors import SafetensorError
    from safetensors.flax import load_file
  except ImportError as error:
    raise MissingExtraError(f"init_from={path!r}", "foreign") from error
  try:
    return {name: np.asarray(x) for name, x in load_file(path).items()}
  except (SafetensorError, OSError, ValueError) as error:
    raise ConfigError(f"init_from={path!r} is no readable safetensors file: {error}") from error


def _read_npz(path: str) -> dict[str, np.ndarray]:
  try:
    # NumPy leaves a file open that it cannot read, if it opened it itself.
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
      return dict(file)
  except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
    raise ConfigError(f"init_from={path!r} is no readable .npz file: {error}") from error
