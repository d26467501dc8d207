"""Adapters of low rank (LoRA, Hu et al. 2022) beside the frozen kernels of a trained network.

A kernel W with an adapter becomes W + s A B, where s = alpha / rank, before the network is applied;
so no module knows of adapters. The training state has the trained parameters alone: for each
adapted kernel `lora_a` (A, with the kernel's input axes and then the rank) and `lora_b` (B, the
rank and then the kernel's output axes), the heads, and what `init_from_except` names. The other
parameters, the base, are the constant "base" of the training programs, and are not saved.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from vitx.config.errors import ConfigError, listing
from vitx.config.fields import LORA, LoraSettings
from vitx.models import names

BASE = "base"  # the base's name among the constants of a program


def adapt(
  variables: Mapping[str, Any], lora: LoraSettings | None, excepted: Iterable[str], key: jax.Array
) -> dict[str, Any]:
  """Returns a network's variables with the trained parameters alone, among them new adapters.

  A is drawn uniformly from +-1 / sqrt(number of inputs) and B is 0, as in Hugging Face's `peft`.

  Args:
    variables: The variables of the network.
    lora: The settings of the adapters; None returns the variables unchanged.
    excepted: The patterns of `init_from_except`. Parameters that match them may be random, so they
      are trained whole, as heads are.
    key: The key from which A is drawn.

  Raises:
    ConfigError: A pattern of `lora.names` matches no kernel of the base.
  """
  if lora is None:
    return dict(variables)
  leaves = flatten_dict(variables["params"], sep="/")
  trained = {
    name: x
    for name, x in leaves.items()
    if names.is_head(name) or any(re.fullmatch(pattern, f"params/{name}") for pattern in excepted)
  }
  suffix = f"/{names.KERNEL}"
  kernels = {x.removesuffix(suffix) for x in leaves if x.endswith(suffix) and x not in trained}
  for number, module in enumerate(sorted(_find_modules(lora.names, kernels))):
    shape = leaves[f"{module}{suffix}"].shape
    inputs = len(names.input_axes(module.rpartition("/")[2], len(shape)))
    bound = 1 / math.sqrt(math.prod(shape[:inputs]))
    draw = jax.random.fold_in(jax.random.fold_in(key, 2), number)  # `initialize` folds in 1
    a = jax.random.uniform(draw, (*shape[:inputs], lora.rank), minval=-bound, maxval=bound)
    trained[f"{module}/{names.LORA_A}"] = a
    trained[f"{module}/{names.LORA_B}"] = jnp.zeros((lora.rank, *shape[inputs:]))
  return {**variables, "params": unflatten_dict(trained, sep="/")}


def _find_modules(patterns: Iterable[str], modules: Collection[str]) -> set[str]:
  """Returns the names of the modules whose name, or its end, matches a pattern."""
  chosen: set[str] = set()
  for pattern in patterns:
    matched = {x for x in modules if re.fullmatch(f"(.*/)?(?:{pattern})", x)}
    if not matched:
      ends = sorted({module.rpartition("/")[2] for module in modules})
      raise ConfigError(
        f"{LORA}.names={pattern!r} names no kernel of this network. Its modules with kernels are"
        f" {listing(ends) or 'heads alone'}."
      )
    chosen |= matched
  return chosen


def make_constants(lora: LoraSettings, params: Any) -> dict[str, Any]:
  """Returns the base as constants of a program: its parameters, and the factor s on A B."""
  return {BASE: {"params": params, "scale": np.float32(lora.alpha / lora.rank)}}


def complete(trained: Any, constants: Any) -> Any:
  """Returns all parameters of a network without its adapters, given those that are trained.

  Without a base among the constants these are the trained ones.
  """
  if BASE not in constants:
    return trained
  leaves = flatten_dict(constants[BASE]["params"]) | flatten_dict(trained)
  ends = (names.LORA_A, names.LORA_B)
  return unflatten_dict({path: x for path, x in leaves.items() if path[-1] not in ends})


def _multiply(a: jax.Array, b: jax.Array) -> jax.Array:
  """Returns the product of A (..., rank) and B (rank, ...) in float32."""
  return jnp.tensordot(a, b, 1, precision="highest")


def merge(trained: Any, constants: Any, multiply: Callable[[Any, Any], Any] = _multiply) -> Any:
  """Returns all parameters with which a network is applied, given those that are trained.

  Args:
    trained: The trained parameters.
    constants: The constants of a program. If `make_constants` gave none of them, the trained
      parameters are returned.
    multiply: The function that multiplies A and B.
  """
  if BASE not in constants:
    return trained
  leaves, adapters = flatten_dict(complete(trained, constants)), flatten_dict(trained)
  for path, a in adapters.items():
    if path[-1] == names.LORA_A:
      product = multiply(a, adapters[(*path[:-1], names.LORA_B)])
      leaves[(*path[:-1], names.KERNEL)] += constants[BASE]["scale"] * product
  return unflatten_dict(leaves)
