"""Names of parameters: what stands where in the tree of a network, known here alone.

A name is the path of a parameter, joined by "/", such as "block_0/token_mixer/query/kernel".
Networks of one sequence of blocks have at the top `stem`, `posemb`, `cls`, `extra`, `start`,
`block_0`, ..., `norm` and `head` (a second one is `head_distillation` or `head_patches`); those of
several stages have `stage_0_block_0`, ... in the place
of the blocks. While a network of repeating layers is trained, `cycles` stands for its blocks, see
`vitx.models.stacked`.
"""

import re
from collections.abc import Iterable

STEM = "stem"
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
HEAD_DISTILLATION = "head_distillation"  # of a token of its own, which learns from a teacher
HEAD_PATCHES = "head_patches"  # of every patch

# Inside a block.
TOKEN_MIXER = "token_mixer"
MLP = "mlp"
QUERY, KEY, VALUE, OUT = "query", "key", "value", "out"

# The last component of a name.
KERNEL = "kernel"
BIAS = "bias"
TABLE = "table"

# Parameters that PyTorch code holds as they are, outside a module called `weight` or `bias`, so
# that torchsummary (and the papers that print its count) does not see them: position table, class
# token and others beside it, Linformer's projections over the tokens, factor and offset of CvT's
# own normalization, LayerScale's factors.
BARE = frozenset(
  {TABLE, CLASS_TOKEN, EXTRA_TOKENS, "key_slots", "value_slots", "gain", "shift"}
) | {
  "mixer_scale",
  "mlp_scale",
}

# Parameters of token mixers that have an entry for each token: the axis of the tokens, and whether
# the tokens are summed over it (a map from the tokens) or written along it (a map to them).
_OF_TOKENS = {
  (TOKEN_MIXER, "key_slots"): (0, True),
  (TOKEN_MIXER, "value_slots"): (0, True),
  (TOKEN_MIXER, "down"): (0, True),  # Sparsifiner's
  (TOKEN_MIXER, "basis"): (0, False),
  (TOKEN_MIXER, "up", KERNEL): (0, True),  # MLP mixing's
  (TOKEN_MIXER, "down", KERNEL): (1, False),
  (TOKEN_MIXER, "down", BIAS): (0, False),
}

# What stands before the blocks: layer 0 of layer-wise learning rates.
_FIRST = frozenset({STEM, POSITIONS, CLASS_TOKEN, EXTRA_TOKENS, START})


def is_bare(name: str) -> bool:
  """Returns whether torchsummary's convention leaves the parameter out."""
  return _last(name) in BARE


def is_position_table(name: str) -> bool:
  """Returns whether the parameter holds a vector for each position."""
  return POSITIONS in name.split("/")[-2:]


def token_axis(name: str) -> tuple[int, bool] | None:
  """Returns the axis of a parameter that runs over the tokens, and whether they are summed over it.

  `None` for a parameter that no number of tokens is part of. A position table's is the last but
  one, of which `is_position_table` tells.
  """
  parts = tuple(name.split("/"))
  for end, found in _OF_TOKENS.items():
    if parts[-len(end) :] == end:
      return found
  return None


def is_head(name: str) -> bool:
  """Returns whether the parameter belongs to a last linear map, which depends on the classes."""
  return not {HEAD, HEAD_DISTILLATION, HEAD_PATCHES}.isdisjoint(name.split("/"))


def is_first_kernel(name: str) -> bool:
  """Returns whether the parameter is a kernel of the stem, which may be what reads the pixels."""
  parts = name.split("/")
  return STEM in parts and parts[-1] == KERNEL


def input_axes(owner: str, ndim: int) -> tuple[int, ...]:
  """Returns the axes of a kernel that a product with it sums over.

  Args:
    owner: the name of the module: three axes are (H, D, C) in one called "out", else (C, H, D).
    ndim: of the kernel: (in, out), (C, H, D), (H, D, C), or (height, width, in / groups, out).
  """
  return (0,) if ndim == 3 and owner != OUT else tuple(range(ndim - 1))


def layer_of(name: str, depth: int) -> int:
  """Returns the layer that a parameter belongs to, as layer-wise learning rates count.

  As in BEiT (Bao et al. 2022) and MAE (He et al. 2022): stem, positions, class token, extra tokens
  and start are layer 0, `block_i` is layer i + 1, and what follows the blocks is layer depth + 1.

  Args:
    name: of the parameter.
    depth: L, the number of blocks.
  """
  first = name.split("/")[0]
  if first in _FIRST:
    return 0
  number = _block_number(first)
  return depth + 1 if number is None else number + 1


def figure_of(name: str) -> str:
  """Returns how something of a module is called in a log: what it is, then where.

  Args:
    name: such as "block_0/token_mixer/alpha", which gives "alpha/block_00": numbers in two digits,
      so that sorted names are in the order of the blocks, and a block's mixer is the block.
  """
  *path, what = name.split("/")
  place = "/".join(path).removesuffix(f"/{TOKEN_MIXER}")
  return f"{what}/{re.sub(r'[0-9]+', lambda number: number[0].zfill(2), place)}"


def count_blocks(names: Iterable[str]) -> int:
  """Returns L, the number of blocks in one sequence: the largest i of `block_i`, plus one, or 0."""
  numbers = (_block_number(name.split("/")[0]) for name in names)
  return max((number + 1 for number in numbers if number is not None), default=0)


def _block_number(part: str) -> int | None:
  match = re.fullmatch(rf"{BLOCK}_(\d+)", part)
  return int(match[1]) if match else None


def _last(name: str) -> str:
  return name.split("/")[-1]
