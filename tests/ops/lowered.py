"""Programs for platforms that are not here, as text, and the large arrays that they hold."""

import math
import re

import jax

from vitx.ops.implementation import lowering_for

TARGETS = {"cuda": "gpu", "tpu": "tpu", "cpu": "cpu"}  # as jax lowers for them, as ops call them


def lower(function, *arrays, platform):
  """Returns the program of a function that is traced and lowered for "cuda", "tpu" or "cpu"."""
  with lowering_for(TARGETS[platform]):
    traced = jax.jit(function).trace(*arrays)
  return traced.lower(lowering_platforms=(platform,)).as_text()


def matrices(text, n):
  """Returns the types of arrays with at least n² elements, constants too, of whatever axes.

  It finds a matrix that is padded, flattened, cut into tiles or one bit wide. Of one example and
  two heads nothing else is so large; half of the matrix of every head is found as well.
  """
  found = set(re.findall(r"tensor<((?:\d+x)+)(\w+)>", text))
  sizes = {axes + dtype: math.prod(map(int, axes[:-1].split("x"))) for axes, dtype in found}
  return {each for each, size in sizes.items() if size >= n * n}
