"""The names of parameters; no other module knows the structure of a parameter tree.

A name is the path of a parameter, joined by "/", such as "block_0/token_mixer/query/kernel". At the
top, a network with one sequence of blocks has `stem`, `posemb`, `cls` (class token), `extra` (other
learned tokens), `start` (start vector), `block_0`, `block_1`, ..., `norm` and
`head` (a second head is `head_distillation` or `head_patches`). A network of several stages has
`stage_0_block_0`, `stage_0_block_1`, ... in place of these blocks.
While a network whose layers repeat is trained, `cycles` replaces the blocks; see
`vitx.models.stacked`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

STEM = "stem"
WHITENING = "whitening"  # the first convolution of a stem, set from the images
POSITIONS = "posemb"
CLASS_TOKEN = "cls"
EXTRA_TOKENS = "extra"
START = "start"
BLOCK = "block"
CYCLES = "cycles"
NORM = "norm"
POOL = "pool"
HEAD = "head"
HEAD_HIDDEN = "head_hidden"
HEAD_DISTILLATION = "head_distillation"  # the head of the distillation token
HEAD_PATCHES = "head_patches"  # the head of the patches
DECODER = "decoder"  # the decoder of a masked autoencoder, which has blocks of its own
MASK_TOKEN = "mask_token"

# Modules inside a block.
TOKEN_MIXER = "token_mixer"
MLP = "mlp"
QUERY, KEY, VALUE, OUT = "query", "key", "value", "out"

# Last components of names.
KERNEL = "kernel"
BIAS = "bias"
TABLE = "table"
LORA_A, LORA_B = "lora_a", "lora_b"  # the factors of an adapter, beside its kernel

# The last components of parameters that PyTorch code does not keep as the `weight` or `bias` of a
# layer. So torchsummary, and papers that print its count, do not count them. They are the position
# table, the class token and other learned tokens, Linformer's projections over the tokens, factor
# and offset of CvT's own normalization, LayerScale's factors, attention's temperatures, and
# attention pooling's query.
LAYERLESS = {TABLE, CLASS_TOKEN, EXTRA_TOKENS, MASK_TOKEN, "key_slots", "value_slots", "gain"}
LAYERLESS |= {"shift", "mixer_scale", "mlp_scale", "temperature", "probe"}

# Parameters of token mixers that have an entry for each token. The values are the axis of the
# tokens, and whether the network sums over this axis when it applies the parameter.
_OF_TOKENS = {
  (TOKEN_MIXER, "key_slots"): (0, True),
  (TOKEN_MIXER, "value_slots"): (0, True),
  (TOKEN_MIXER, "down"): (0, True),  # Sparsifiner
  (TOKEN_MIXER, "basis"): (0, False),
  (TOKEN_MIXER, "up", KERNEL): (0, True),  # MLPMixing
  (TOKEN_MIXER, "down", KERNEL): (1, False),
  (TOKEN_MIXER, "down", BIAS): (0, False),
}

# The modules before the blocks, which are layer 0 in layer-wise learning-rate decay.
_FIRST = frozenset({STEM, POSITIONS, CLASS_TOKEN, EXTRA_TOKENS, START})


def has_no_layer(name: str) -> bool:
  """Returns whether torchsummary omits a parameter, since it belongs to no PyTorch layer."""
  return name.split("/")[-1] in LAYERLESS


def is_position_table(name: str) -> bool:
  """Returns whether a parameter has a vector for each position."""
  return POSITIONS in name.split("/")[-2:]


def token_axis(name: str, ndim: int) -> tuple[int, bool] | None:
  """Finds the axis of a parameter that has an entry for each token.

  Args:
    name: The name of the parameter, such as that of a position table.
    ndim: The number of axes of the parameter.

  Returns:
    The axis, and whether the network sums over this axis when it applies the parameter, as a
    projection over tokens does; `None` if no axis has an entry for each token.
  """
  if is_position_table(name) and ndim > 1:
    return ndim - 2, False
  parts = tuple(name.split("/"))
  for end, (axis, summed) in _OF_TOKENS.items():
    if parts[-len(end) :] == end and axis < ndim:
      return axis, summed
  return None


def is_head(name: str) -> bool:
  """Returns whether a parameter belongs to a head, whose shape depends on the number of classes."""
  return not {HEAD, HEAD_DISTILLATION, HEAD_PATCHES}.isdisjoint(name.split("/"))


def is_first_kernel(name: str) -> bool:
  """Returns whether a parameter is a kernel of the stem; one of these kernels reads the pixels."""
  parts = name.split("/")
  return STEM in parts and parts[-1] == KERNEL


def input_axes(owner: str, ndim: int) -> tuple[int, ...]:
  """Returns the axes of a kernel over which a module sums when it applies the kernel to its input.

  Kernels are (in, out), (height, width, in / groups, out), (H, D, C) in the module "out", or
  (C, H, D) in other modules.

  Args:
    owner: The name of the module that has the kernel.
    ndim: The number of axes of the kernel.
  """
  return (0,) if ndim == 3 and owner != OUT else tuple(range(ndim - 1))


def layer_of(name: str, depth: int) -> int:
  """Returns the number of a parameter's layer, which decides its learning rate under `layer_decay`.

  The numbers follow BEiT (Bao et al. 2022) and MAE (He et al. 2022): stem, positions, class token
  and other learned tokens are layer 0, `block_i` is layer i + 1, and the modules after the blocks
  are layer depth + 1.

  Args:
    name: The name of the parameter.
    depth: The number of blocks L.
  """
  first = name.split("/")[0]
  if first in _FIRST:
    return 0
  number = _block_number(first)
  return depth + 1 if number is None else number + 1


def name_figure(name: str) -> str:
  """Returns the name under which a parameter is logged: first the parameter, then its module.

  For example, "block_0/token_mixer/alpha" gives "alpha/block_00". Numbers get two digits, so that
  sorted names keep the order of the blocks, and "token_mixer" is left out.

  Args:
    name: The name of the parameter.
  """
  *path, figure = name.split("/")
  place = "/".join(path).removesuffix(f"/{TOKEN_MIXER}")
  return f"{figure}/{re.sub(r'[0-9]+', lambda number: number[0].zfill(2), place)}"


def read_sizes(arrays: Mapping[str, Any]) -> dict[str, int]:
  """Returns the sizes "depth" (L) and "width" (C) of a network with one sequence of blocks.

  A size that the arrays do not show is 0.

  Args:
    arrays: The parameters by name, with or without the collection "params" in front.
  """
  inner = {name.removeprefix("params/"): array for name, array in arrays.items()}
  shape = np.shape(inner.get(f"{BLOCK}_0/{MLP}/up/{KERNEL}", 0))
  return {"depth": count_blocks(inner), "width": shape[0] if len(shape) == 2 else 0}


def count_blocks(names: Iterable[str]) -> int:
  """Returns the number L of blocks: one more than the largest i of `block_i`; 0 without blocks."""
  numbers = (_block_number(name.split("/")[0]) for name in names)
  return max((number + 1 for number in numbers if number is not None), default=0)


def is_block(path: Sequence[str]) -> bool:
  """Returns whether the path of a module is that of a block, in whatever stage."""
  return bool(path) and re.fullmatch(rf"(.+_)?{BLOCK}_\d+", path[-1]) is not None


def is_mixer(path: Sequence[str]) -> bool:
  """Returns whether the path of a module is that of a block's token mixer."""
  return path[-1:] == (TOKEN_MIXER,)


def _block_number(part: str) -> int | None:
  match = re.fullmatch(rf"{BLOCK}_(\d+)", part)
  return int(match[1]) if match else None
