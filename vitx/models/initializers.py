"""Initializations of a whole network: functions `(key, params) -> params`.

The modules of a network first draw their own parameters; an initialization then draws some of them
again, as a publication describes. It finds parameters by name: each `kernel`, and the `bias` of the
same module. So one initialization serves every mixer and block, also your own. A module's other
parameters (norms, tables, slots) stay unchanged. The projections of attention are the modules
`query`, `key` and `value`, with kernels (C, H, D), and `out`, with a kernel (H, D, C).
"""

import math
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from vitx.config.checks import Finite, Positive
from vitx.config.errors import ConfigError
from vitx.config.registry import build
from vitx.models.names import BIAS, HEAD, KERNEL, KEY, OUT, QUERY, VALUE, count_blocks, input_axes

Params = dict[str, Any]
Kernels = dict[str, jax.Array]
Base = str | Mapping[str, Any]


def as_made(key: jax.Array, params: Params) -> Params:
  """Returns the parameters unchanged, as the network's modules drew them."""
  return params


def pytorch(key: jax.Array, params: Params) -> Params:
  """Draws linear maps and convolutions as PyTorch does: uniform within ±1 / sqrt(fan in).

  For kernels, this is PyTorch's `kaiming_uniform_(a=sqrt(5))`. Biases have the bound of their
  kernel.
  """

  def bound(owner: str, kernel: jax.Array) -> float:
    return fan_in(owner, kernel.shape) ** -0.5

  draw = partial(jax.random.uniform, key, minval=-1, maxval=1)
  return _redraw_kernels(params, bound, draw, biases=True)


def truncated_normal(
  key: jax.Array,
  params: Params,
  *,
  stddev: Positive = 0.02,
  convolutions: Literal["he", "pytorch"] = "he",
) -> Params:
  """Draws linear maps from a truncated normal distribution, and sets their biases to zero.

  Values beyond ±2 (not ±2 standard deviations) are cut off, as in PyTorch. Convolutions have an
  initialization of their own.

  Args:
    key: The key of all draws.
    params: The parameters of the network.
    stddev: The standard deviation of linear maps.
    convolutions: The initialization of convolutions. "he" draws kernels as PyTorch's
      `kaiming_normal_` does, with variance 2 / fan in, and sets biases to zero; "pytorch" draws
      kernels and biases as the initialization `pytorch` does (as in DeiT and timm).
  """
  # JAX makes this draw from float32 uniform numbers, which give no values beyond five deviations.
  cut = min(2 / stddev, 5.0)

  def deviation(owner: str, kernel: jax.Array) -> float:
    return math.sqrt(2 / fan_in(owner, kernel.shape)) if kernel.ndim == 4 else stddev

  drawn = _redraw_kernels(params, deviation, partial(jax.random.truncated_normal, key, -cut, cut))
  if convolutions == "he":
    return drawn
  return _take_convolutions(pytorch(jax.random.fold_in(key, 1), params), drawn)


def xavier_normal(key: jax.Array, params: Params) -> Params:
  """Draws normal kernels with variance 2 / (fan in + fan out), and sets biases to zero.

  (Glorot and Bengio 2010, equation 16, as PyTorch's `xavier_normal_`.) Queries, keys and values
  count as one map with three times as many outputs, as in most PyTorch code. A convolution counts
  as a linear map of its patches.
  """

  def deviation(owner: str, kernel: jax.Array) -> float:
    inputs = fan_in(owner, kernel.shape)
    outputs = kernel.size // inputs * (3 if owner in (QUERY, KEY, VALUE) else 1)
    return math.sqrt(2 / (inputs + outputs))

  return _redraw_kernels(params, deviation, partial(jax.random.normal, key))


def sparse_transformer(key: jax.Array, params: Params) -> Params:
  """Draws normal kernels with variance 0.125 / fan in, and sets biases to zero.

  (Child et al. 2019, section 5.3.) The last map of each residual branch (attention's `out`, the
  MLP's `down`) is multiplied by 1 / sqrt(2 L). The head is zero. The paper writes
  0.125 / sqrt(fan in); its released code, like this function, has the standard deviation
  sqrt(0.125 / fan in).
  """
  depth = count_blocks(params)

  def deviation(owner: str, kernel: jax.Array) -> float:
    if owner == HEAD:
      return 0.0
    last = (2 * depth) ** -0.5 if owner in (OUT, "down") else 1.0
    return last * math.sqrt(0.125 / fan_in(owner, kernel.shape))

  return _redraw_kernels(params, deviation, partial(jax.random.normal, key))


def zero_query(key: jax.Array, params: Params, *, base: Base = "as_made") -> Params:
  """Sets query projections to zero, so that attention starts uniform.

  (He and Hofmann 2024, section 4.1.)

  Args:
    key: The key of all draws.
    params: The parameters of the network.
    base: The initialization of all other parameters.
  """

  def draw(key: jax.Array, kernels: Kernels) -> Kernels:
    return {QUERY: jnp.zeros_like(kernels[QUERY])}

  return _redraw_modules(key, _apply_base(key, params, base), (QUERY,), draw)


def mimetic(
  key: jax.Array,
  params: Params,
  *,
  base: Base = "pytorch",
  query_key: tuple[Finite, Finite] = (0.7, 0.7),
  value_out: tuple[Finite, Finite] = (0.4, -0.4),
) -> Params:
  """Draws attention projections that resemble trained ones (Trockman and Kolter 2023, section 4).

  Let M = a Z + b I with two numbers a and b, the identity I, and a matrix Z of normal entries with
  variance 1 / C, which is drawn anew for each product. The product W_V W_O over all heads is M, or
  the best approximation of rank H D. The product W_Q W_Kᵀ of each head is that of rank D. A
  singular value decomposition U Σ Vᵀ gives the two factors U √Σ and √Σ Vᵀ. Biases of these
  projections become zero. In a mixer without `value` and `out`, only `query` and `key` are drawn.

  Args:
    key: The key of all draws.
    params: The parameters of the network.
    base: The initialization of all other parameters.
    query_key: The numbers (a, b) for W_Q W_Kᵀ.
    value_out: The numbers (a, b) for W_V W_O; b is negative in trained networks.
  """

  def pair(key: jax.Array, kernels: Kernels) -> Kernels:
    width, heads, dim = kernels[QUERY].shape
    keys = jax.random.split(key, heads)
    left, right = jax.vmap(lambda k: _factors(k, width, dim, *query_key))(keys)
    return {QUERY: left.transpose(1, 0, 2), KEY: right.transpose(2, 0, 1)}

  def rest(key: jax.Array, kernels: Kernels) -> Kernels:
    width, heads, dim = kernels[VALUE].shape
    left, right = _factors(key, width, heads * dim, *value_out)
    return {VALUE: left.reshape(width, heads, dim), OUT: right.reshape(heads, dim, width)}

  pair_key, rest_key = jax.random.split(jax.random.fold_in(key, 1))
  params = _redraw_modules(pair_key, _apply_base(key, params, base), (QUERY, KEY), pair)
  return _redraw_modules(rest_key, params, (VALUE, OUT), rest, needed=False)


def fan_in(owner: str, shape: tuple[int, ...]) -> int:
  """Returns the number of inputs that each output of a kernel sums.

  Args:
    owner: The name of the module that has the kernel, such as "query" or "out".
    shape: The shape of the kernel.
  """
  return math.prod(shape[axis] for axis in input_axes(owner, len(shape)))


def _redraw_kernels(
  params: Params, scale: Callable, draw: Callable, *, biases: bool = False
) -> Params:
  """Draws every `kernel` again, and the `bias` in the same module.

  A kernel becomes random numbers times `scale(owner, kernel)`. One draw gives the numbers of all
  parameters, since each draw takes long to compile. For each shape, a loop cuts the parameters of
  this shape out of the draw; without the loop, the compiler would repeat the whole draw for each
  parameter. Biases have the factor of their kernel, or become zero.
  """
  leaves = flatten_dict(params)
  # The numbers depend on this order, which is that of JAX's trees.
  drawn = [n for n in sorted(leaves) if n[-1] in (KERNEL, BIAS) and (*n[:-1], KERNEL) in leaves]
  noise = draw((sum(leaves[name].size for name in drawn),))
  groups: dict[tuple[int, ...], list[tuple[tuple[str, ...], int, float]]] = {}
  start = 0
  for name in drawn:
    leaf, owner = leaves[name], name[-2] if len(name) > 1 else ""
    moves = biases or name[-1] == KERNEL
    factor = scale(owner, leaves[*name[:-1], KERNEL]) if moves else 0.0
    groups.setdefault(leaf.shape, []).append((name, start, factor))
    start += leaf.size
  for shape, group in groups.items():
    names, starts, factors = zip(*group, strict=True)
    cut = partial(_cut, noise, shape)
    cuts = jax.lax.map(cut, (jnp.asarray(starts), jnp.asarray(factors, jnp.float32)))
    leaves.update(zip(names, cuts, strict=True))
  return unflatten_dict(leaves)


def _take_convolutions(source: Params, params: Params) -> Params:
  """Returns `params` with the parameters of convolutions (kernels of four axes) from `source`."""
  leaves, others = flatten_dict(params), flatten_dict(source)
  for name in leaves:
    kernel = leaves.get((*name[:-1], KERNEL))
    if kernel is not None and kernel.ndim == 4:
      leaves[name] = others[name]
  return unflatten_dict(leaves)


def _cut(noise: jax.Array, shape: tuple[int, ...], place: tuple[jax.Array, jax.Array]) -> jax.Array:
  start, factor = place
  return factor * jax.lax.dynamic_slice(noise, (start,), (math.prod(shape),)).reshape(shape)


def _redraw_modules(
  key: jax.Array,
  params: Params,
  names: tuple[str, ...],
  draw: Callable[[jax.Array, Kernels], Kernels],
  *,
  needed: bool = True,
) -> Params:
  """Draws the kernels of modules with given names again, and sets their biases to zero.

  Only modules whose parent contains all of the names are drawn again.
  """
  leaves = flatten_dict(params)
  owners = [path[:-2] for path in leaves if path[-2:] == (names[0], KERNEL)]
  owners = [o for o in owners if all((*o, name, KERNEL) in leaves for name in names)]
  for owner in owners:
    # The key depends on the path, so that values do not depend on the rest of the network.
    path = "".join(f"/{part}" for part in owner)
    folded = jax.random.fold_in(key, zlib.crc32(path.encode()))
    kernels = {name: leaves[*owner, name, KERNEL] for name in names}
    for name, kernel in draw(folded, kernels).items():
      leaves[*owner, name, KERNEL] = kernel.astype(leaves[*owner, name, KERNEL].dtype)
      if (*owner, name, BIAS) in leaves:
        leaves[*owner, name, BIAS] = jnp.zeros_like(leaves[*owner, name, BIAS])
  if needed and not owners:
    raise ConfigError("model.initialization draws query and key, which this network has not.")
  return unflatten_dict(leaves)


def _factors(
  key: jax.Array, width: int, rank: int, noise: float, diagonal: float
) -> tuple[jax.Array, jax.Array]:
  """Returns factors U √Σ (C, rank) and √Σ Vᵀ (rank, C) of the matrix `noise` Z + `diagonal` I.

  Of a rank below C, the product is the best approximation; beyond C, the factors have zeros.
  """
  z = jax.random.normal(key, (width, width)) / jnp.sqrt(width)
  u, s, vt = jnp.linalg.svd(noise * z + diagonal * jnp.eye(width))
  more = max(rank - width, 0)
  left = jnp.pad(u * jnp.sqrt(s), ((0, 0), (0, more)))[:, :rank]
  return left, jnp.pad(jnp.sqrt(s)[:, None] * vt, ((0, more), (0, 0)))[:rank]


def _apply_base(key: jax.Array, params: Params, base: Base) -> Params:
  initialization = build(BASES, base, "model.initialization.base", hidden=("key", "params"))
  return initialization(key, params)


# The initializations that may be the `base` of another one.
BASES = {
  "as_made": as_made,
  "pytorch": pytorch,
  "truncated_normal": truncated_normal,
  "xavier_normal": xavier_normal,
}
INITIALIZATIONS = {
  **BASES,
  "mimetic": mimetic,
  "sparse_transformer": sparse_transformer,
  "zero_query": zero_query,
}
