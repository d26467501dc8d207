"""How many parameters a network has: all of them, and as torchsummary counts."""

import math
from typing import NamedTuple

import flax.linen as nn
import jax

from vitx.models.shapes import variable_shapes

# Parameters that PyTorch code holds as they are, outside a module called `weight` or `bias`, so
# that torchsummary (and the papers that print its count) does not see them: position table, class
# token and others beside it, Linformer's projections over the tokens, factor and offset of CvT's
# own normalisation.
BARE = frozenset({"table", "cls", "extra", "key_slots", "value_slots", "gain", "shift"})


class Count(NamedTuple):
  """Parameters of a network.

  Attributes:
    total: every one.
    summary: by torchsummary's convention, which several papers print: those of layers only.
  """

  total: int
  summary: int


def count_parameters(model: nn.Module, shape: tuple[int, ...]) -> Count:
  """Counts by tracing `init` on images of that shape (B, height, width, channels)."""
  paths, _ = jax.tree.flatten_with_path(variable_shapes(model, shape)["params"])
  sizes = [(path[-1].key, math.prod(leaf.shape)) for path, leaf in paths]
  bare = sum(size for name, size in sizes if name in BARE)
  total = sum(size for _, size in sizes)
  return Count(total, total - bare)
