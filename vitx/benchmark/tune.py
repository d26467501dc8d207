"""Searches for the tiles by which a GPU's attention kernels are fastest, see `vitx.ops.rule`."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import cached_property, partial
from time import monotonic
from typing import Any

import jax
import jax.numpy as jnp

from vitx.benchmark import timing
from vitx.benchmark.choose import KERNELIZED
from vitx.config.errors import ConfigError
from vitx.ops import TokenLayout, attention, rule
from vitx.ops.implementation import choosing_by
from vitx.ops.patterns import Causal, Pattern, Window, bigbird
from vitx.ops.rule import Launch, TileSizes
from vitx.ops.sparse import triton_attention
from vitx.ops.sparse.attend import block_mask

# The pairs of dtype and width of a head, the most usual ones first.
SUBJECTS = tuple((dtype, width) for dtype in ("bfloat16", "float32") for width in (64, 128, 32))
BLOCKS = (64, 32)
MOST_ROWS = 128  # tokens in the rows of a program; more rows do not fit the registers
STAGES = (1, 2, 3, 4, 5)
KERNELS = ("forward", "query_gradient", "key_gradients")
# One kernel is timed along the first pattern, whole calls along both.
PATTERNS: tuple[Pattern, ...] = (Window(256), bigbird(block=64))
CAUSAL: Pattern = Window(256) & Causal()  # Causal() alone is dense attention, without the kernels
ROUNDS, SECONDS = 5, 1.0  # The rounds of one candidate, and the limit on their seconds.
ERROR = 0.02  # the largest difference to XLA's gradients, relative


@dataclasses.dataclass(frozen=True)
class TimedCall:
  """A call of attention whose kernels are timed.

  Attributes:
    dtype: The dtype of q, k and v.
    width: The number of channels of a head, D.
    batch, tokens, heads: The other sizes, B, N and H.
  """

  dtype: str
  width: int
  batch: int = 4
  tokens: int = 4096
  heads: int = 8

  @cached_property
  def arrays(self) -> list[jax.Array]:
    """Returns q, k, v and a cotangent of the output, (B, N, H, D) each."""
    shape = (4, self.batch, self.tokens, self.heads, self.width)
    return list(jax.random.normal(jax.random.key(0), shape, self.dtype))

  @property
  def default(self) -> TileSizes:
    """Returns the tiles that the kernels have on this card if no tiles were measured."""
    capability = triton_attention.find_capability() or triton_attention.OLDEST
    return triton_attention.choose_tiles(capability, jnp.dtype(self.dtype), self.width)

  def time_kernel(self, kernel: str, block: int, launch: Launch) -> float:
    """Returns the seconds of one kernel, infinite if it does not fit the card.

    Args:
      kernel: The name of the kernel, one of `KERNELS`.
      block: The number of tokens in a block.
      launch: The launch settings of the kernel, such as its number of warps.
    """
    launches = {name: launch if name == kernel else _start(block) for name in KERNELS}
    tiles = TileSizes(block, **launches)
    mask = block_mask(PATTERNS[0], TokenLayout((self.tokens,)), block, self.heads)
    arguments: dict[str, Any] = dict(mask=mask, block=block, scale=self.width**-0.5, tiles=tiles)
    *inputs, d_out = self.arrays
    # The values of lse and delta do not change the time, as long as no weight overflows.
    numbers = jnp.ones(d_out.shape[:3], jnp.float32)

    def run(q, k, v, d_out):
      if kernel == "forward":
        return triton_attention.forward((q, k, v, None), None, **arguments)
      arrays = (q, k, v, None, d_out, 10 * numbers, numbers)
      dq, dk, dv = triton_attention.backward(arrays, None, **arguments)
      return dq if kernel == "query_gradient" else (dk, dv)  # the compiler drops the other kernel

    def compile_kernel() -> Callable[[], Any]:
      program = jax.jit(run).lower(*inputs, d_out).compile()
      return lambda: jax.block_until_ready(program(*inputs, d_out))

    return _time(compile_kernel)

  def time_call(self, tiles: TileSizes | None) -> float:
    """Returns the seconds of the forward and backward pass, summed over `PATTERNS`.

    Args:
      tiles: The tiles of the kernels; `None` means that XLA computes the call.
    """
    return sum(self._time_pattern(pattern, tiles) for pattern in PATTERNS)

  def _time_pattern(self, pattern: Pattern, tiles: TileSizes | None) -> float:
    layout = TokenLayout((self.tokens,))
    attend = partial(attention, pattern=pattern, layout=layout, implementation="kernelized")

    def compile_call() -> Callable[[], Any]:
      with choosing_by(self.choose(tiles)):
        return timing.compile_step(attend, *self.arrays[:3]).run

    return _time(compile_call)

  def agrees(self, tiles: TileSizes) -> bool:
    """Returns whether the kernels run and their gradients agree with XLA's.

    The gradients are of another call, with a key mask and a number of tokens that is no multiple of
    the block, since such calls need the most code of the kernels.
    """
    n = 3 * tiles.block + 5
    arrays = jax.random.normal(jax.random.key(1), (3, 1, n, self.heads, self.width), self.dtype)
    seen = jnp.arange(n)[None] % 3 > 0

    def loss(q, k, v):
      options: dict[str, Any] = {"key_mask": seen, "implementation": "kernelized"}
      out = attention(q, k, v, CAUSAL, TokenLayout((n,)), **options)
      return jnp.square(out.astype(jnp.float32)).sum()

    def differentiate(tiles: TileSizes | None) -> jax.Array:
      with choosing_by(self.choose(tiles)):
        gradients = jax.jit(jax.grad(lambda *x: loss(*x), argnums=(0, 1, 2)))(*arrays)
      return jnp.stack(gradients).astype(jnp.float32)

    with jax.default_matmul_precision("default"):
      exact, ours = differentiate(None), _try(partial(differentiate, tiles))
    return bool(jnp.linalg.norm(ours - exact) <= ERROR * jnp.linalg.norm(exact))

  def choose(self, tiles: TileSizes | None) -> rule.Rule:
    """Returns a rule that gives this dtype and width the given tiles; `None` leaves them to XLA."""
    return dataclasses.replace(KERNELIZED, tiles={self.dtype: {self.width: tiles}})


def _try(make: Callable[[], Any]) -> Any:
  """Returns the result of a function, or infinity if it raises an error (it does not fit)."""
  try:
    return make()
  except Exception:  # Triton, its assembler, XLA and the driver raise errors of their own.
    return math.inf


def _time(compile_run: Callable[[], Callable[[], Any]]) -> float:
  """Returns the median seconds of a program, infinite if it cannot be compiled or run."""

  def measure() -> float:
    runs = {"": compile_run()}
    return timing.interleave(runs, repeats=ROUNDS, seconds=SECONDS)[""].seconds

  return _try(measure)


def _start(block: int) -> Launch:
  """Returns the first launch settings of the search: tiles of 64 rows, which fit every card."""
  return Launch(64 // block, 4, 2)


def search_launch(block: int, measure: Callable[[Launch], float]) -> Launch:
  """Searches for the fastest launch settings: first over rows and warps, then over stages.

  Args:
    block: The number of tokens in a block.
    measure: A function from launch settings to seconds, infinite if the kernel does not fit.
  """
  shapes = [
    _start(block)._replace(blocks=blocks, warps=warps)
    for blocks in (1, 2, 4)
    for warps in (4, 8)
    if 32 * warps // 4 <= blocks * block <= MOST_ROWS
  ]
  times = {launch: measure(launch) for launch in shapes}
  best = min(times, key=lambda launch: times[launch])
  for step in (1, -1):
    while (other := best._replace(stages=best.stages + step)).stages in STAGES:
      if other not in times:
        times[other] = measure(other)
      if times[other] >= times[best]:
        break
      best = other
  return best


def search(subject: Any, say: Callable[[str], None]) -> TileSizes | None:
  """Returns the fastest tiles of a `TimedCall`, or `None` if XLA is faster than all kernels."""
  candidates: list[TileSizes | None] = [subject.default, None]
  for block in BLOCKS:
    launches = [search_launch(block, partial(subject.time_kernel, name, block)) for name in KERNELS]
    candidates.append(TileSizes(block, *launches))
  times = {tiles: subject.time_call(tiles) for tiles in candidates}
  for tiles in sorted(times, key=lambda tiles: times[tiles]):
    if tiles is None or (math.isfinite(times[tiles]) and subject.agrees(tiles)):
      milliseconds = {_name(x): round(1e3 * y, 3) for x, y in times.items() if math.isfinite(y)}
      say(f"{subject.dtype}, width {subject.width}: {_name(tiles)} of {milliseconds} ms")
      return tiles
  return None


def _name(tiles: TileSizes | None) -> str:
  if tiles is None:
    return "XLA"
  return " ".join([str(tiles.block), *("/".join(map(str, launch)) for launch in tiles[1:])])


def measure(minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
  """Measures the fastest tiles of this card's kernels, and returns them as an entry of a rule file.

  Args:
    minutes: The limit in minutes, compilation included, after which no further call is measured.
    say: A function called with messages on the progress.
  """
  end, tiles = monotonic() + 60 * minutes, dict[str, dict[int, TileSizes | None]]()
  for subject in itertools.starmap(TimedCall, SUBJECTS):
    if monotonic() >= end:
      say(f"{subject.dtype}, width {subject.width}: not measured within {minutes:g} minutes")
      continue
    say(f"{subject.dtype}, width {subject.width}: measuring tiles")
    tiles.setdefault(subject.dtype, {})[subject.width] = search(subject, say)
  measured = timing.describe_device(*triton_attention.PACKAGES, "jaxlib")
  return {"sizes": rule.tiles_to_json(tiles), "measured": measured}


def check_kernels(where: str) -> None:
  """Raises ConfigError with the reason and the fix if the kernels do not run on this device.

  Args:
    where: The option or command that needs the kernels, for the message.
  """
  if triton_attention.find_capability() is None:
    reason = triton_attention.find_obstacle() or (
      f"{jax.devices()[0].device_kind!r} is no CUDA device. Run the command on a machine with one,"
      ' where jax has CUDA: pip install "jax[cuda13]"'
    )
    raise ConfigError(f"{where} needs the attention kernels for CUDA devices, but {reason}.")
