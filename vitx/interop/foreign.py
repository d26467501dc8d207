"""Reads the published weights of other projects from their files: `init_from=deit_small.pth`.

`read_arrays` returns a file's arrays by the names of its project, such as "blocks.0.norm1.weight"
of timm, and `read_variables` also renames them, to nested variables of vitx. `hf:OWNER/NAME` and
`timm:NAME` download the file from the Hugging Face Hub. As a file has no config, `count_heads` and
`guess_layout` derive the number of heads and the layout of tokens from the shapes of variables.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from vitx import files
from vitx.checkpoints.tree import name_leaves, nest
from vitx.config.errors import ConfigError, importing, naming
from vitx.interop import hub
from vitx.interop.foreign_names import FAMILIES, find_family, strip, to_ours
from vitx.interop.published import check_digest
from vitx.interop.torch_file import Opaque, read_torch
from vitx.models import names
from vitx.ops.layout import TokenLayout

SUFFIXES = (".pth", ".pt", ".bin", ".tar", ".ckpt", ".npz", ".safetensors")
# A file of `torch.save` may have the weights under one of these keys. If it has several, the first
# one in this order is used: for two networks that train each other, the one that is evaluated.
STATE_DICTS = (
  *("model", "state_dict", "model_state_dict", "network", "net", "module", "teacher"),
  *("target_encoder", "student", "encoder", "backbone", "model_ema", "state_dict_ema", "ema"),
)
GRID = "vitx_grid"  # the key of the grid of patches, such as "14x14", among a file's metadata
_NUMBERS = (jnp.floating, jnp.integer, np.bool_)
_DTYPES = {
  **{"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1"},
  **{"U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?"},
  "BF16": ml_dtypes.bfloat16,
  "F8_E4M3": ml_dtypes.float8_e4m3fn,
  "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
  "F8_E5M2": ml_dtypes.float8_e5m2,
  "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
  "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


def is_file(source: str) -> bool:
  """Returns whether `source` names a file of weights, local or on the Hub, not a workdir."""
  path = Path(source)
  has_suffix = source.endswith(SUFFIXES) and not path.is_dir()
  return hub.is_name(source) or has_suffix or path.is_file()


class ForeignWeights(NamedTuple):
  """The weights of a file, as nested variable collections of vitx.

  Attributes:
    variables: The collections.
    unused: The names of the arrays for which vitx has no parameter.
    ignored: Descriptions, by name, of everything else in the file, such as an epoch.
    posemb: The fields that the network's `posemb` must have, see `foreign_names.Family`.
    grid: The numbers of rows and columns of the network's patches; () if the file does not have
      them.
  """

  variables: dict[str, Any]
  unused: list[str]
  ignored: dict[str, str]
  posemb: Mapping[str, Any]
  grid: tuple[int, ...]


def read_variables(source: str, num_heads: int) -> ForeignWeights:
  """Returns a file's weights under the names of vitx.

  Args:
    source: The path of the file, `hf:OWNER/NAME` or `timm:NAME`.
    num_heads: The number of heads H of the network, which splits kernels (C, H D) to (C, H, D).

  Raises:
    ConfigError: The file cannot be read, has another SHA-256 than the published file of its name,
      or its naming scheme is unknown.
    MissingExtraError: A package that reads the file is not installed.
  """
  path = hub.download(source) if hub.is_name(source) else source
  arrays, ignored = read_arrays(path)
  check_digest(path)
  with naming(f"init_from={source!r}"):
    theirs, notes = strip(arrays, STATE_DICTS)
    ours, unused = to_ours(theirs, num_heads)
  posemb = FAMILIES[find_family(theirs)].posemb
  return ForeignWeights(nest(ours), unused, ignored | notes, posemb, read_grid(path))


def read_arrays(path: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Reads the arrays of a `.safetensors`, `.npz` or `torch.save` file.

  Pickled code in the file is never executed.

  Returns:
    The arrays by name, and descriptions of the file's other values, such as an epoch, by name.

  Raises:
    ConfigError: The file does not exist, cannot be read, or contains no dict of arrays.
    MissingExtraError: The file is `.safetensors`, and that package is not installed.
  """
  if path.endswith(".safetensors"):
    return read_safetensors(path, f"init_from={path!r}"), {}
  if path.endswith(".npz"):
    return _separate(files.read_arrays(path), "")
  content = read_torch(path)
  with naming(f"init_from={path!r}"):
    return _find_weights(content)


def read_safetensors(path: str, where: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a `.safetensors` file by name.

  Args:
    path: The path of the file.
    where: The name of the file in errors.
  """
  with importing(where, "foreign"):
    from safetensors import deserialize
  with files.reading(f"{where} is no readable safetensors file"):
    return {
      name: np.frombuffer(x["data"], _DTYPES[x["dtype"]]).reshape(x["shape"])
      for name, x in deserialize(Path(path).read_bytes())
    }


def read_grid(path: str) -> tuple[int, ...]:
  """Returns the grid of patches that vitx wrote into a `.safetensors` file, or ()."""
  if not path.endswith(".safetensors"):
    return ()
  from safetensors import safe_open

  with files.reading(f"{path!r} is no readable safetensors file"), safe_open(path, "np") as file:
    text = (file.metadata() or {}).get(GRID)
    return tuple(map(int, text.split("x"))) if text else ()


def _find_weights(content: Any, prefix: str = "") -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Returns the arrays inside the dict at `prefix`, such as "model.", and describes the rest."""
  if not isinstance(content, Mapping):
    raise ConfigError(
      f"its content is no dict of arrays but {_describe(content)}; save the state_dict() of the"
      " network."
    )
  networks = {str(key): value for key, value in content.items() if _holds_arrays(value)}
  keys = [key for key in STATE_DICTS if key in networks]
  if not keys and (not networks or any(isinstance(x, np.ndarray) for x in content.values())):
    return _separate(content, prefix)
  if not keys and len(networks) > 1:
    raise ConfigError(
      f"it has arrays under each of {', '.join(map(repr, networks))}; save the weights of one"
      " network in a separate file."
    )
  key = (keys or list(networks))[0]
  arrays, descriptions = _find_weights(networks[key], f"{prefix}{key}.")
  others = {f"{prefix}{name}": _describe(x) for name, x in content.items() if str(name) != key}
  return arrays, {f"{prefix}{key}.": "holds the weights", **others, **descriptions}


def _separate(
  content: Mapping[Any, Any], prefix: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
  """Separates the numeric arrays of a dict from its other values, and describes the latter."""
  arrays = {
    str(key): value
    for key, value in content.items()
    if isinstance(value, np.ndarray) and any(jnp.issubdtype(value.dtype, x) for x in _NUMBERS)
  }
  return arrays, {
    f"{prefix}{key}": _describe(x) for key, x in content.items() if str(key) not in arrays
  }


def _holds_arrays(value: Any, depth: int = 2) -> bool:
  """Returns whether a value is a dict of arrays, or has one under a key of `STATE_DICTS`."""
  if not isinstance(value, Mapping):
    return False
  inner = [value.get(key) for key in STATE_DICTS] if depth else []
  has_arrays = any(isinstance(x, np.ndarray) for x in value.values())
  return has_arrays or any(_holds_arrays(x, depth - 1) for x in inner)


def _describe(value: Any) -> str:
  if isinstance(value, Opaque):
    return f"a {type(value).__name__}, which was not executed"
  if isinstance(value, np.ndarray):
    return f"an array of {value.dtype}"
  if isinstance(value, Mapping):
    return f"other weights, {len(value)} names" if _holds_arrays(value) else "a dict"
  return f"of the type {type(value).__name__}"


def count_heads(params: Mapping[str, Any]) -> int:
  """Returns the number of heads of a network's first query projection (C, H, D); 1 without one."""
  queries = (x for name, x in name_leaves(params).items() if name.endswith("query/kernel"))
  return next((x.shape[1] for x in queries if x.ndim == 3), 1)


def guess_layout(variables: Mapping[str, Any], grid: tuple[int, ...] = ()) -> TokenLayout | None:
  """Returns the token layout that a network's weights imply, or `None` if they imply none.

  Args:
    variables: The network's variables.
    grid: The grid of the network's patches. If it is () or does not have as many tokens, a square
      grid is assumed.
  """
  params = variables["params"]
  tokens = [params[name] for name in (names.CLASS_TOKEN, names.EXTRA_TOKENS) if name in params]
  prefix = sum(x.shape[-2] for x in tokens if x.ndim > 1)
  rows = _count_rows(name_leaves(params))
  if grid and rows in (math.prod(grid), prefix + math.prod(grid)):
    return TokenLayout(grid, prefix)
  # A table has rows for all prefix tokens or, with registers, for none of them.
  for prefix_rows in (0, prefix) if names.EXTRA_TOKENS in params else (prefix, 0):
    side = math.isqrt(max(rows - prefix_rows, 0))
    if side and side**2 + prefix_rows == rows:
      return TokenLayout((side, side), prefix)
  return None


def _count_rows(leaves: Mapping[str, Any]) -> int:
  """Returns the length of the first position table, or else of the first token axis; 0 for none."""
  for name in sorted(leaves, key=lambda name: not names.is_position_table(name)):
    token_axis = names.token_axis(name, leaves[name].ndim)
    if token_axis is not None:
      return leaves[name].shape[token_axis[0]]
  return 0
