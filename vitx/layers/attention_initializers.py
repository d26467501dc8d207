"""Initializations that draw the projections of attention together, on top of another one.

Each is `(key, params) -> params`, as in `initializers`. A token mixer is known by its modules
`query` and `key`, and `value` and `out`, with kernels (C, H, D) and (H, D, C).
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from vitx.errors import ConfigError
from vitx.layers.initializers import INITIALISATIONS as BASES
from vitx.layers.initializers import Params
from vitx.registry import build

Kernels = dict[str, jax.Array]
Base = str | Mapping[str, Any]


def zero_query(key: jax.Array, params: Params, *, base: Base = "as_made") -> Params:
  """Query projections zero, so that attention starts uniform (He and Hofmann 2024, section 4.1).

  Args:
    key: the whole of the randomness.
    params: of the network.
    base: the initialization of everything else.
  """

  def draw(key: jax.Array, kernels: Kernels) -> Kernels:
    return {"query": jnp.zeros_like(kernels["query"])}

  return _redrawn(key, _based(key, params, base), ("query",), draw)


def mimetic(
  key: jax.Array,
  params: Params,
  *,
  base: Base = "pytorch",
  query_key: tuple[float, float] = (0.7, 0.7),
  value_out: tuple[float, float] = (0.4, -0.4),
) -> Params:
  """Attention that looks like a trained one's (Trockman and Kolter 2023, section 4).

  W_Q W_Kᵀ of each head is what rank D keeps of a Z + b I, and W_V W_O of all heads together is
  a Z + b I, with Z normal of variance 1 / C, drawn anew each time, and factors by singular values:
  U √Σ and √Σ Vᵀ. Biases of these projections are zero. A mixer without `value` and `out` has the
  first part only.

  Args:
    key: the whole of the randomness.
    params: of the network.
    base: the initialization of everything else.
    query_key: (a, b) of queries and keys.
    value_out: (a, b) of values and output; b is negative in trained networks.
  """

  def pair(key: jax.Array, kernels: Kernels) -> Kernels:
    width, heads, dim = kernels["query"].shape
    keys = jax.random.split(key, heads)
    left, right = jax.vmap(lambda k: _factors(k, width, *query_key))(keys)  # (H, C, C)
    left, right = left[..., :dim], jnp.swapaxes(right, 1, 2)[..., :dim]
    return {"query": jnp.swapaxes(left, 0, 1), "key": jnp.swapaxes(right, 0, 1)}

  def rest(key: jax.Array, kernels: Kernels) -> Kernels:
    width, heads, dim = kernels["value"].shape
    left, right = _factors(key, width, *value_out)
    if heads * dim != width or kernels["out"].shape != (heads, dim, width):
      raise ConfigError(
        "model.initialization='mimetic' needs values as wide as the tokens:"
        f" {heads} heads of {dim} are not {width}; leave token_mixer.head_dim out"
      )
    return {"value": left.reshape(width, heads, dim), "out": right.reshape(heads, dim, width)}

  pair_key, rest_key = jax.random.split(jax.random.fold_in(key, 1))
  params = _redrawn(pair_key, _based(key, params, base), ("query", "key"), pair)
  return _redrawn(rest_key, params, ("value", "out"), rest, needed=False)


def _factors(
  key: jax.Array, width: int, noise: float, diagonal: float
) -> tuple[jax.Array, jax.Array]:
  """U √Σ and √Σ Vᵀ, (C, C) each, of noise Z + diagonal I."""
  z = jax.random.normal(key, (width, width)) / jnp.sqrt(width)
  u, s, vt = jnp.linalg.svd(noise * z + diagonal * jnp.eye(width))
  return u * jnp.sqrt(s), jnp.sqrt(s)[:, None] * vt


def _based(key: jax.Array, params: Params, base: Base) -> Params:
  made = build(BASES, base, "model.initialization.base", hidden=("key", "params"))
  return made(key, params)


def _redrawn(
  key: jax.Array,
  params: Params,
  names: tuple[str, ...],
  draw: Callable[[jax.Array, Kernels], Kernels],
  *,
  needed: bool = True,
) -> Params:
  """The kernels of modules `names`, wherever they stand side by side, drawn anew, biases zero.

  Raises:
    ConfigError: they stand nowhere, and `needed`.
  """
  found = False

  def walk(tree: Params, path: str) -> Params:
    nonlocal found
    if all(isinstance(tree.get(name), dict) and "kernel" in tree[name] for name in names):
      found = True
      # By name, so that values do not depend on what else the network has.
      own = jax.random.fold_in(key, zlib.crc32(path.encode()))
      kernels = draw(own, {name: tree[name]["kernel"] for name in names})
      tree = {**tree, **{name: _module(tree[name], kernels[name]) for name in names}}
    return {
      name: walk(value, f"{path}/{name}") if isinstance(value, dict) else value
      for name, value in tree.items()
    }

  result = walk(params, "")
  if needed and not found:
    raise ConfigError(
      "model.initialization draws the modules query and key of attention, of which this network"
      " has none; use another initialization or token_mixer"
    )
  return result


def _module(old: Params, kernel: jax.Array) -> Params:
  bias = {"bias": jnp.zeros_like(old["bias"])} if "bias" in old else {}
  return {**old, "kernel": kernel.astype(old["kernel"].dtype), **bias}


INITIALISATIONS = {**BASES, "mimetic": mimetic, "zero_query": zero_query}
