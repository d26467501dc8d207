"""Block-sparse attention on CUDA devices, by the kernels in `triton_kernels`.

The kernels need the package jax-triton (the extra `triton` of vitx) and a device of compute
capability 8.0 or newer, because on older devices Triton does not use tensor cores. If `find_tiles`
returns `None`, XLA computes the attention (`executor`). The outputs of XLA and of the kernels agree
within rounding.
"""

import dataclasses
import functools
import importlib.metadata
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from vitx.ops.implementation import current_rule, target
from vitx.ops.rule import Launch, TileSizes
from vitx.ops.sparse.block_mask import BlockMask
from vitx.ops.sparse.triton_lists import list_rows

DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
# The families of `rule.FAMILIES` whose ops use these kernels.
FAMILIES = ("pattern_blocks", "pattern_runs", "chosen_blocks", "bilevel")
MAX_WIDTH = 128  # channels of a head
MAX_ELEMENTS = 2**31  # elements of one example, since the kernels count them in 32 bits
MAX_LISTS = 65535  # programs that CUDA starts along the second axis of a grid
# The settings of JAX's default precision with which products of float32 round their inputs to 19
# bits. With other settings XLA computes the attention, because Triton would compute exact products
# without tensor cores.
ROUNDED = (None, "default", "fastest", "bfloat16", "tensorfloat32")
OLDEST = 80  # the compute capability times 10 of the A100
INSTALL = 'on Python 3.12 or newer, pip install -e ".[triton]"'
PACKAGES = ("jax", "jax-triton", "triton")
# A key says whether products of warp groups exist (compute capability 9.0 and 10.x), whether the
# dtype is half precision, and whether a head has more than 64 channels. Each size is the largest of
# a few that the compiler fits without spilled registers (`test_triton_compiled.py`). docs/gpu.md
# has the speed of two of them on an H100; `vitx benchmark choose` searches for faster ones.
TILE_SIZES = {
  (True, True, False): TileSizes(64, Launch(2, 4, 3), Launch(2, 8, 2), Launch(2, 8, 2)),
  (True, True, True): TileSizes(64, Launch(2, 8, 3), Launch(2, 8, 2), Launch(1, 8, 2)),
  (True, False, False): TileSizes(32, Launch(2, 4, 2), Launch(2, 4, 2), Launch(2, 4, 2)),
  (True, False, True): TileSizes(32, Launch(2, 4, 2), Launch(2, 4, 2), Launch(1, 4, 2)),
  (False, True, False): TileSizes(32, Launch(4, 4, 3), Launch(4, 8, 3), Launch(4, 8, 3)),
  (False, True, True): TileSizes(32, Launch(4, 8, 3), Launch(2, 4, 2), Launch(2, 8, 2)),
  (False, False, False): TileSizes(32, Launch(2, 4, 2), Launch(1, 4, 2), Launch(1, 4, 2)),
  (False, False, True): TileSizes(32, Launch(1, 4, 2), Launch(1, 4, 2), Launch(1, 4, 2)),
}


@dataclasses.dataclass(frozen=True)
class KernelSizes:
  """The numbers with which a kernel is compiled.

  Attributes:
    N, H, D, E: The sizes of q (B, N, H, D) and v (B, N, H, E).
    G: The number of heads with lists of their own.
    R: The number of groups of rows of one head.
    scale: The factor of the logits.
    rows, block: The number of tokens in a group of rows and in a block.
    words: The number of 32-bit words that hold one row of a block's mask.
    pad_d, pad_e, pad_rows, pad_block: D, E, `rows` and `block`, rounded up to a power of two, and
      at least 16, as products need.
    ragged: Whether a group of rows or a block may have places without a token.
    key_mask: The number of axes of the mask of keys without the batch: 1 for (B, N), 2 for
      (B, N, H), 0 for no mask.
    masks: Whether any block has a mask.
    precision: The precision of products, a name of Triton's.
    count: The number of programs that share a list, if the grid has one axis; otherwise 0.
  """

  N: int
  H: int
  D: int
  E: int
  G: int
  R: int
  scale: float
  rows: int
  block: int
  words: int
  pad_d: int
  pad_e: int
  pad_rows: int
  pad_block: int
  ragged: bool
  key_mask: int
  masks: bool
  precision: str
  count: int


def choose_tiles(capability: int, dtype: Any, width: int) -> TileSizes:
  """Returns default tiles that fit the registers and the shared memory of a GPU.

  Args:
    capability: The compute capability of the GPU times 10, such as 90 for an H100.
    dtype: The dtype of q, k and v.
    width: The number of channels of a head, of keys or values, whichever is larger.
  """
  wide = width > 64
  groups = capability == 90 or (capability // 10 == 10 and not wide)  # wide heads spill on 10.x
  return TILE_SIZES[groups, dtype != jnp.float32, wide]


@functools.cache
def find_capability() -> int | None:
  """Returns the compute capability times 10 of the first device if the kernels can run on it.

  The result is `None` if XLA must compute the attention."""
  return None if find_obstacle() else _read_capability()


@functools.cache
def find_obstacle() -> str | None:
  """Returns the reason why the kernels cannot run on the first device, and the remedy.

  The result is `None` if they can run, and also if the device is not a CUDA device, since there is
  nothing to remedy.
  """
  capability = _read_capability()
  if capability is None:
    return None
  if capability < OLDEST:
    return f"the compute capability is {capability / 10}, and the kernels need {OLDEST / 10}"
  try:
    import jax_triton  # noqa: F401  # it takes a second, and only CUDA devices need it

    _lower_a_call(capability)
  except Exception as error:  # whatever versions that do not fit may raise
    if isinstance(error, ModuleNotFoundError) and error.name == "jax_triton":
      return f"jax-triton is missing; {INSTALL}"
    versions = ", ".join(f"{name} {find_version(name) or '(missing)'}" for name in PACKAGES)
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]  # joins the lines
    return f"{versions} do not fit each other ({reason}); {INSTALL}"
  return None


def find_version(package: str) -> str | None:
  """Returns the version of a package, or `None` if it is not installed."""
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _read_capability() -> int | None:
  """Returns the compute capability times 10 of the first device; `None` without a CUDA device."""
  device = jax.devices()[0]
  version = getattr(device, "compute_capability", "") if device.platform == "gpu" else ""
  return round(10 * float(version)) if version.replace(".", "").isdigit() else None


def _lower_a_call(capability: int) -> None:
  """Lowers attention of 16 tokens, which fails if the versions of the packages do not fit."""
  x = jax.ShapeDtypeStruct((1, 16, 1, 16), jnp.float32)
  blocks = jax.ShapeDtypeStruct((1, 1, 1), jnp.int32), jax.ShapeDtypeStruct((1, 1, 1), bool)
  tiles = choose_tiles(capability, x.dtype, 16)
  attend = functools.partial(forward, mask=None, block=16, scale=1.0, tiles=tiles)
  jax.jit(attend).trace((x, x, x, None), blocks).lower(lowering_platforms=("cuda",))


def find_tiles(q: jax.Array, k: jax.Array, v: jax.Array) -> TileSizes | None:
  """Returns the tiles for q, k (B, N, H, D) and v (B, N, H, E), or `None` if XLA must be used."""
  capability = find_capability() if target() == "gpu" else None
  width = max(q.shape[-1], v.shape[-1])
  same_dtype = q.dtype == k.dtype == v.dtype and q.dtype in DTYPES
  large = q.shape[1] * q.shape[2] * width >= MAX_ELEMENTS
  precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
  exact = q.dtype == jnp.float32 and precision not in ROUNDED
  if capability is None or not same_dtype or width > MAX_WIDTH or large or exact or 0 in q.shape:
    return None
  return current_rule().pick_tiles(str(q.dtype), width, choose_tiles(capability, q.dtype, width))


def on_cuda(kernel: Callable, otherwise: Callable, *arrays: Any) -> Any:
  """Calls `kernel` in a program that is lowered for CUDA, and `otherwise` in any other."""
  return jax.lax.platform_dependent(*arrays, cuda=kernel, default=otherwise)


def forward(
  arrays: tuple[Any, ...],
  drawn: tuple[jax.Array, jax.Array] | None,
  *,
  mask: BlockMask | None,
  block: int,
  scale: float,
  tiles: TileSizes,
) -> tuple[jax.Array, jax.Array]:
  """Computes attention along lists of blocks.

  Args:
    arrays: The tuple of q, k, v, (B, N, H, D) each, and a boolean mask (B, N) or (B, N, H), True =
      may be attended, `None` for all.
    drawn: The key blocks that each query block reads, int (G, R, K), and bool (G, R, K), False
      where an index only fills the array; `None` if `mask` has the edges.
    mask: The static edges; `None` if `drawn` has them.
    block: The number b of tokens in a block.
    scale: The factor of the logits.
    tiles: The tiles from `find_tiles`.

  Returns:
    The output (B, N, H, E) in the dtype of `v`, and lse (B, N, H) float32, the logarithm of each
    query's sum of exponentials.
  """

  def attend(arrays, drawn):
    (batch, n, heads, _), v = arrays[0].shape, arrays[2]
    log = jax.ShapeDtypeStruct((batch, heads, n), jnp.float32)
    types = (jax.ShapeDtypeStruct(v.shape, v.dtype), log)
    out, lse = _launch("forward", arrays, (), types, (mask, drawn, block), scale, tiles)
    return out, jnp.swapaxes(lse, 1, 2)

  return _add_vmap_rule(attend)(arrays, drawn)


def backward(
  arrays: tuple[Any, ...],
  drawn: tuple[jax.Array, jax.Array] | None,
  *,
  mask: BlockMask | None,
  block: int,
  scale: float,
  tiles: TileSizes,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns the gradients of q, k and v, (B, N, H, D) each.

  Args:
    arrays: The tuple of q, k, v and the mask of keys as in `forward`, the output's cotangent
      (B, N, H, E), and lse and delta, (B, N, H), from `tiling.backward_statistics`.
    drawn, mask, block, scale, tiles: The arguments of `forward`.
  """

  def attend(arrays, drawn):
    inputs, (d_out, lse, delta) = arrays[:4], arrays[4:]
    q, k, v, _ = inputs
    cotangents = (d_out.astype(v.dtype), jnp.swapaxes(lse, 1, 2), jnp.swapaxes(delta, 1, 2))
    like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)]
    arguments = (mask, drawn, block), scale, tiles
    (dq,) = _launch("query_gradient", inputs, cotangents, like[:1], *arguments)
    return dq, *_launch("key_gradients", inputs, cotangents, like[1:], *arguments)

  return _add_vmap_rule(attend)(arrays, drawn)


def _launch(kernel: str, inputs, cotangents, types, edges, scale, tiles) -> list[jax.Array]:
  """Runs the kernel of a given name and returns arrays of the given types."""
  q, k, v, key_mask = inputs
  (batch, N, H, D), E, (mask, drawn, block) = q.shape, v.shape[-1], edges
  launch, transposed = getattr(tiles, kernel), kernel == "key_gradients"
  lists, G, R, rows = list_rows(mask, drawn, block, launch.blocks * tiles.block, transposed)
  grid = (batch * H // G, G * R)
  count = 0 if grid[1] <= MAX_LISTS else grid[0]
  pad_d, pad_e, pad_rows, pad_block = (
    max(16, 1 << (size - 1).bit_length()) for size in (D, E, rows, block)
  )
  ragged = (pad_rows, pad_block) != (rows, block) or N % rows > 0 or N % block > 0
  sizes = KernelSizes(
    *(N, H, D, E, G, R, float(scale), rows, block, -(-block // 32)),
    *(pad_d, pad_e, pad_rows, pad_block, ragged),
    key_mask=0 if key_mask is None else key_mask.ndim - 1,
    masks=lists.tables.size > 0,
    precision="tf32" if q.dtype == jnp.float32 else "ieee",
    count=count,
  )
  seen = jnp.zeros(1, jnp.int8) if key_mask is None else key_mask.astype(jnp.int8)
  filled = [x if x.size else jnp.zeros(1, jnp.int32) for x in lists]
  arrays = [jnp.asarray(x) for x in (q, k, v, seen, *cotangents, *filled)]
  results = call(kernel, arrays, types, (grid[0] * grid[1], 1) if count else grid, launch, sizes)
  # Inside shard_map a result varies along the axes of the mesh along which any input does.
  axes = frozenset().union(*(jax.typeof(x).manual_axis_type.varying for x in arrays))
  return [jax.lax.pcast(x, tuple(axes), to="varying") for x in results] if axes else results


def call(
  kernel: str,
  arrays: list[jax.Array],
  types: Sequence[jax.ShapeDtypeStruct],
  grid: tuple[int, int],
  launch: Launch,
  sizes: KernelSizes,
) -> list[jax.Array]:
  """Calls a kernel of `triton_kernels` by name and returns its results of the given types."""
  import jax_triton

  from vitx.ops.sparse import triton_kernels

  return jax_triton.triton_call(
    *arrays,
    kernel=getattr(triton_kernels, kernel),
    out_type=list(types),
    grid=grid,
    name=kernel,
    num_warps=launch.warps,
    num_stages=launch.stages,
    compute_capability=_read_capability(),
    backend_options={"enable_fp_fusion": True},
    sizes=sizes,
  )


def _add_vmap_rule(attend: Callable) -> Callable:
  """Returns `attend` with a rule for `vmap`, since a kernel has none.

  The rule joins the axis of `vmap` with the batch axis. If the lists are batched too, it joins the
  axis of `vmap` with the axis of heads.

  Args:
    attend: A function of a tuple of arrays (B, N, H, ...), or (B, N), and of lists (G, R, K) or
      `None`. It returns a tuple of arrays (B, N, H, ...).
  """
  call = custom_vmap(attend)

  @call.def_vmap
  def batched(size: int, axes: Any, arrays: Any, drawn: Any) -> Any:
    def spread(x: jax.Array, is_batched: bool) -> jax.Array:
      return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

    has_lists = any(jax.tree.leaves(axes[1]))
    arrays = jax.tree.map(spread, arrays, axes[0])
    if not has_lists:
      out = call(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arrays), drawn)
      out = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), out)
      return out, jax.tree.map(lambda _: True, out)
    heads = arrays[0].shape[3]
    drawn = jax.tree.map(spread, drawn, axes[1])
    if size * max(math.prod(x.shape[2:]) for x in arrays[:3]) >= MAX_ELEMENTS:  # joined heads
      out = jax.lax.map(lambda arguments: call(*arguments), (arrays, drawn))
      return out, jax.tree.map(lambda _: True, out)
    drawn = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, heads, *x.shape[2:])), drawn)

    def fold(x: jax.Array) -> jax.Array:  # (V, B, N, H, ...) -> (B, N, V·H, ...)
      x = x if x.ndim > 3 else jnp.broadcast_to(x[..., None], (*x.shape, heads))
      x = jnp.moveaxis(x, 0, 2)
      return x.reshape(*x.shape[:2], -1, *x.shape[4:])

    out = call(
      jax.tree.map(fold, arrays), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), drawn)
    )
    out = jax.tree.map(lambda x: x.reshape(*x.shape[:2], size, heads, *x.shape[3:]), out)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0), out), jax.tree.map(lambda _: True, out)

  return call
