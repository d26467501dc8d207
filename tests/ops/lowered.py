"""Programs lowered for platforms without their devices, as text, and their large arrays."""

import math
import re

import jax
import jax.numpy as jnp

from vitx.ops import attention
from vitx.ops.implementation import lowering_for
from vitx.ops.sparse import triton_attention

TARGETS = {"cuda": "gpu", "tpu": "tpu", "cpu": "cpu"}  # JAX's names of platforms, and names in ops


def record_kernels(monkeypatch, card=90):
  """Makes the GPU's kernels return zeros, and returns a list to which each call is added.

  A call is the kernel, its arrays and types of results, grid, launch and sizes.
  """
  calls = []

  def call(kernel, arrays, types, grid, launch, sizes):
    calls.append((kernel, [*arrays, *types], grid, launch, sizes))
    return [jnp.zeros(result.shape, result.dtype) for result in types]

  monkeypatch.setattr(triton_attention, "call", call)
  monkeypatch.setattr(triton_attention, "find_capability", lambda: card)
  return calls


def lower(function, *arrays, platform):
  """Returns the program of a function that is traced and lowered for "cuda", "tpu" or "cpu"."""
  with lowering_for(TARGETS[platform]):
    traced = jax.jit(function).trace(*arrays)
  return traced.lower(lowering_platforms=(platform,)).as_text()


def program(platform, dtype, n, *, m=None, masked=False, width=64, heads=2, **options):
  """Returns the program of a gradient of kernelized attention as text.

  There are n queries and m keys, or n keys if `m` is `None`.
  """
  m = n if m is None else m
  q = jax.ShapeDtypeStruct((1, n, heads, width), dtype)
  k = jax.ShapeDtypeStruct((1, m, heads, width), dtype)
  mask = jax.ShapeDtypeStruct((1, m), bool) if masked else None

  def loss(q, k, v, mask):
    out = attention(q, k, v, key_mask=mask, implementation="kernelized", **options)
    return jnp.sum(out.astype(jnp.float32) ** 2)

  return lower(jax.grad(loss, argnums=(0, 1, 2)), q, k, k, mask, platform=platform)


def matrices(text, n):
  """Returns the types of the arrays and constants with at least n² elements, of any shape.

  So a matrix is found that is padded, flattened, cut into tiles or one bit wide, and half of
  the matrix of every head. One example of two heads has no other array so large.
  """
  types = set(re.findall(r"tensor<((?:\d+x)+)(\w+)>", text))
  sizes = {axes + dtype: math.prod(map(int, axes[:-1].split("x"))) for axes, dtype in types}
  return {array for array, size in sizes.items() if size >= n * n}
