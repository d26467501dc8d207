"""Initializations of a whole network: functions `(key, params) -> params`.

A network is first made as its modules say; these then draw anew what a source drew otherwise. So
one initialization serves every mixer and block, a user's own included, and one that couples several
parameters is no harder than one that does not. Parameters are known by name: `kernel` with the
`bias` beside it; what else a module owns (norms, tables, slots) stays as it was made.
"""

import math
from collections.abc import Callable
from typing import Any

import jax

Params = dict[str, Any]


def as_made(key: jax.Array, params: Params) -> Params:
  """Leaves the parameters as the modules made them."""
  return params


def pytorch(key: jax.Array, params: Params) -> Params:
  """PyTorch's default of linear maps and convolutions: uniform within 1 / sqrt(fan in).

  Kernels by `kaiming_uniform_(a=sqrt(5))`, which comes to that bound, and biases alike.
  """

  def bound(owner: str, kernel: jax.Array, leaf: jax.Array) -> float:
    return fan_in(owner, kernel.shape) ** -0.5

  return _redrawn(params, bound, lambda size: jax.random.uniform(key, size, minval=-1, maxval=1))


def truncated_normal(key: jax.Array, params: Params, *, stddev: float = 0.02) -> Params:
  """Linear maps normal, cut at ±2 as PyTorch cuts, their biases zero; convolutions by He.

  Kernels of convolutions by `kaiming_normal_`, with variance 2 / fan in; their biases are zero too.

  Args:
    key: the whole of the randomness.
    params: of the network.
    stddev: of linear maps.
  """
  # Beyond five deviations the float32 uniform that is behind it has no numbers left.
  cut = min(2 / stddev, 5.0)

  def deviation(owner: str, kernel: jax.Array, leaf: jax.Array) -> float:
    if leaf is not kernel:
      return 0.0
    return math.sqrt(2 / fan_in(owner, kernel.shape)) if kernel.ndim == 4 else stddev

  return _redrawn(params, deviation, lambda size: jax.random.truncated_normal(key, -cut, cut, size))


def fan_in(owner: str, shape: tuple[int, ...]) -> int:
  """Inputs of one output of a kernel.

  Args:
    owner: the name of the module: three axes are (H, D, C) in one called "out", else (C, H, D).
    shape: (in, out), (C, H, D), (H, D, C), or (height, width, in / groups, out).
  """
  if len(shape) == 3 and owner != "out":
    return shape[0]
  return math.prod(shape[:-1])


def _redrawn(params: Params, scale: Callable, draw: Callable) -> Params:
  """Every `kernel`, and the `bias` beside it, as `scale(owner, kernel, leaf)` times random numbers.

  One draw serves all, since each draw takes the compiler long.
  """
  paths, tree = jax.tree.flatten_with_path(params)
  names = [tuple(entry.key for entry in path) for path, _ in paths]
  leaves = dict(zip(names, (leaf for _, leaf in paths), strict=True))
  drawn = [n for n in names if n[-1] in ("kernel", "bias") and (*n[:-1], "kernel") in leaves]
  noise = draw((sum(leaves[name].size for name in drawn),))
  start = 0
  for name in drawn:
    kernel, leaf = leaves[*name[:-1], "kernel"], leaves[name]
    factor = scale(name[-2] if len(name) > 1 else "", kernel, leaf)
    leaves[name] = factor * noise[start : start + leaf.size].reshape(leaf.shape)
    start += leaf.size
  return jax.tree.unflatten(tree, [leaves[name] for name in names])


INITIALISATIONS = {"as_made": as_made, "pytorch": pytorch, "truncated_normal": truncated_normal}
