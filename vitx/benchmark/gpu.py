"""Correctness and speed of the attention kernels on a GPU: `vitx benchmark gpu`."""

import dataclasses
import itertools
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.analysis import cost, markdown
from vitx.benchmark import timing
from vitx.benchmark.mixers import make_grid
from vitx.config.errors import UserError
from vitx.config.loader import load_config
from vitx.ops import TokenLayout, attention, dense_mask
from vitx.ops.implementation import choosing_by, current_rule
from vitx.ops.patterns import (
  PATTERNS,
  Axial,
  Causal,
  Full,
  GivenBlocks,
  Global,
  Neighborhood,
  Pattern,
  RandomBlocks,
  Strided,
  Window,
  bigbird,
)
from vitx.ops.rule import Rule
from vitx.ops.sparse import triton_attention
from vitx.ops.sparse.attend import block_mask
from vitx.training import trial

PARTS = ("check", "tiles", "steps", "table")
TOKENS = (4096, 1024, 16384)  # The numbers of tokens in the table, the most important first.
DTYPES = ("bfloat16", "float32")
REPEATS, SECONDS = 15, 5.0  # The most samples of a program, and the limit on their seconds.
Say = Callable[[str], None]

# The layout of the checks: a prefix token and a grid, together 301 tokens, which no tile divides.
LAYOUT = TokenLayout((15, 20), prefix=1)
# In half precision cuDNN computes these; the order of its sums, and so the last bits, may change.
DENSE = ("full", "causal")
CHECKED = (
  *(*DENSE, "attention_free", "window_causal", "window_and_class"),
  *("dilated_window_per_head", "longformer", "bigbird_etc", "bbvit_random_global"),
  *("strided_merged_code", "strided_per_head", "fixed_distinct_summaries", "axial_per_head"),
  *("neighborhood", "shifted_window_plain", "erdos_renyi_symmetric", "watts_strogatz"),
)
CHECK_SIZES = (2, 4, 64)  # B, H and D; in the examples of patterns four heads differ
# The allowed error is TOLERANCE times the values, plus FACTOR times the error of the masked path.
TOLERANCE, FACTOR = 1e-5, 3
CUSTOM_CALL = "triton_kernel_call"  # the name of a kernel in a lowered program

STEPS = (
  *("vix_cifar10:vit", "vix_cifar10:vit,token_mixer=neighborhood"),
  "vix_cifar10:vit,model.dtype=bfloat16",
  "vix_cifar10:vit,token_mixer=neighborhood,model.dtype=bfloat16",
  *("sparse_transformer_cifar10:dense", "sparse_transformer_cifar10:strided"),
)


class Check(NamedTuple):
  """The comparison of one kernelized call of attention with a masked one, in outputs and gradients.

  Attributes:
    name: The name of the call.
    dtype: The dtype of q, k and v.
    share: The largest error divided by the allowed error.
    repeats: Whether a second run gives equal bits.
    has_kernel: Whether the kernelized program contains the GPU kernels of attention.
  """

  name: str
  dtype: str
  share: float
  repeats: bool
  has_kernel: bool

  @property
  def passed(self) -> bool:
    """Returns whether no error exceeds the allowed one.

    A second run must also give equal bits, and the program must contain the kernels if the device
    can run them. These two demands do not apply to the calls in `DENSE`.
    """
    ran = self.has_kernel >= (triton_attention.find_capability() is not None)
    return self.share <= 1 and (self.name in DENSE or (self.repeats and ran))


def list_calls() -> dict[str, Callable]:
  """Returns the calls of `attention` that are checked, by name.

  Each call is a function (implementation, q, k, v) -> output.
  """

  def along(pattern: Pattern, **given: Any) -> Callable:
    return lambda implementation, q, k, v: attention(
      q, k, v, pattern, LAYOUT, implementation=implementation, **given
    )

  def drawn(implementation, q, k, v):
    blocks = RandomBlocks(2, 16, heads=CHECK_SIZES[1]).indices(LAYOUT)
    is_empty = np.arange(blocks.shape[1])[:, None] % 5 == 2
    blocks = np.where(is_empty, -1, blocks)
    return along(GivenBlocks(jnp.asarray(blocks), 16))(implementation, q, k, v)

  def narrow(implementation, q, k, v):
    wide, slim = 5 * q.shape[-1] // 8, 3 * v.shape[-1] // 8
    out = along(PATTERNS["neighborhood"])(
      implementation, q[..., :wide], k[..., :wide], v[..., :slim]
    )
    return jnp.pad(out, [(0, 0)] * 3 + [(0, v.shape[-1] - slim)])

  seen = np.random.default_rng(0).random((CHECK_SIZES[0], LAYOUT.length)) < 0.7
  masked = along(PATTERNS["window_and_class"], key_mask=jnp.asarray(seen))
  calls = {name: along(PATTERNS[name]) for name in CHECKED}
  return calls | {
    "axial, causal": along((Axial(0) | Global(prefix=True)) & Causal()),
    "window_and_class with a key mask": masked,
    "neighborhood with other widths of heads": narrow,
    "blocks drawn at run time": drawn,
  }


def check(
  say: Say, calls: Mapping[str, Callable] | None = None, dtypes: Sequence[str] = DTYPES
) -> str:
  """Checks calls of `attention` by `check_call` in several dtypes, and returns a table.

  Args:
    say: A function called with messages on the progress.
    calls: The calls by name; `None` means those of `list_calls`.
    dtypes: The dtypes of q, k and v.

  Raises:
    UserError: A check has not passed. The message has the table.
  """
  rows, failed = [("call", "dtype", "error / allowed", "bits repeat", "kernels", "")], []
  for (name, call), dtype in itertools.product((calls or list_calls()).items(), dtypes):
    x = check_call(name, call, dtype)
    failed += [] if x.passed else [f"{name} in {dtype}"]
    say(f"{name}, {dtype}: {'passed' if x.passed else 'FAILED'}")
    flags = str(x.repeats), str(x.has_kernel), "" if x.passed else "X"
    rows.append((name, dtype, f"{x.share:.2g}", *flags))
  table = markdown.table(rows)
  if failed:
    raise UserError(
      f"{table}\n{len(failed)} checks of attention failed: {', '.join(failed)}. Report them;"
      " until then use implementation='masked', or remove the package jax-triton."
    )
  return table


def check_call(name: str, call: Callable, dtype: str) -> Check:
  """Compares the kernelized path of one call of attention with the masked path.

  The masked path in float32, with exact matrix products, gives the exact results. The root mean
  square error of the output and of each gradient may be at most `FACTOR` times the error of the
  masked path in `dtype` with default matrix products, plus `TOLERANCE` times the larger of 1 and
  the root mean square of the exact result.

  Args:
    name: The name of the call.
    call: A function (implementation, q, k, v) -> output.
    dtype: The dtype of q, k and v.
  """
  batch, heads, width = CHECK_SIZES
  shape = (4, batch, LAYOUT.length, heads, width)
  arrays = jax.random.normal(jax.random.key(0), shape).astype(dtype)
  with jax.default_matmul_precision("highest"):
    exact = _differentiate(partial(call, "masked"))(*arrays.astype(jnp.float32))
  with jax.default_matmul_precision("default"), choosing_by(_without_xla(current_rule())):
    theirs = _differentiate(partial(call, "masked"))(*arrays)
    lowered = _differentiate(partial(call, "kernelized")).lower(*arrays)
    program = lowered.compile()
    ours, again = program(*arrays), program(*arrays)
  shares = []
  for a, b, e in zip(*(jax.device_get(x) for x in (ours, theirs, exact)), strict=True):
    allowed = FACTOR * _norm(b - e) + TOLERANCE * max(1.0, _norm(e))
    shares.append(_norm(a - e) / allowed)
  pairs = zip(jax.device_get(ours), jax.device_get(again), strict=True)
  repeats = all(np.array_equal(x, y) for x, y in pairs)
  has_kernel = CUSTOM_CALL in lowered.as_text()
  return Check(name, dtype, float(np.max(shares)), repeats, has_kernel)  # NaN stays NaN.


def _without_xla(today: Rule) -> Rule:
  """Returns a copy of a rule without the entries that leave attention to XLA."""
  measured = {
    dtype: {width: tiles for width, tiles in own.items() if tiles is not None}
    for dtype, own in today.tiles.items()
  }
  return dataclasses.replace(today, tiles=measured)


def _differentiate(attend: Callable) -> Any:
  """Returns a jitted function (q, k, v, cotangent) -> [out, dq, dk, dv] with float32 results."""

  def run(q, k, v, d_out):
    out, pull = jax.vjp(attend, q, k, v)
    return [x.astype(jnp.float32) for x in (out, *pull(d_out))]

  return jax.jit(run)


def _norm(x: np.ndarray) -> float:
  """Returns the root mean square of an array's values."""
  return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


EDGES: dict[str, Pattern] = {
  "dense": Full(),
  "causal": Causal(),
  "causal window of 257": Window(256) & Causal(),
  "BigBird, blocks of 64": bigbird(block=64),
  "strided, merged, l = 64": Strided(64, form="code"),
  "13 x 13 neighborhood": Neighborhood(13),
}
WAYS = ("ours", "ours by XLA", "cuDNN, dense")
Cell = dict[str, Any]  # The values of one line of a table by column; unknown ones are left out.
Makers = dict[str, Callable[[], timing.TimedProgram]]  # Functions that compile programs, by name.


def measure_table(
  tokens: Sequence[int],
  say: Say,
  *,
  edges: Mapping[str, Pattern] = EDGES,
  dtypes: Sequence[str] = DTYPES,
  sizes: tuple[int, int, int] = (4, 8, 64),
  end: float = math.inf,
  effort: Mapping[str, Any],
  make_others: Callable[..., Makers] = lambda name, shape, dtype, gradients: {},
) -> Iterator[tuple[str, list[Cell]]]:
  """Yields the title and the lines of a table for every N, dtype and kind of pass.

  The order is that of `tokens` and `dtypes`. For each N and dtype, the table of the forward and
  backward pass together comes first, and the table of the forward pass alone comes second.

  Args:
    tokens: The numbers of tokens, N.
    say: A function called with messages on the progress.
    edges: The pattern of each line, by name.
    dtypes: The dtypes of q, k and v.
    sizes: The numbers B, H and D.
    end: The value of `time.monotonic` after which no further line is measured.
    effort: The arguments `repeats` and `seconds` of `timing.interleave`.
    make_others: A function of a line's name, shape, dtype and `gradients` that returns functions
      which compile programs of other libraries, by name.
  """
  batch, heads, width = sizes
  for n, dtype, gradients in itertools.product(tokens, dtypes, (True, False)):
    passes = "forward and backward" if gradients else "forward"
    lines: list[Cell] = []
    for name, pattern in edges.items():
      if time.monotonic() > end:
        say(f"N={n} {dtype} {passes}, {name}: no time left")
        continue
      say(f"N={n} {dtype} {passes}: {name}")
      head = {"tokens": n, "dtype": dtype, "passes": passes, "edges": name}
      case: dict[str, Any] = dict(shape=(batch, n, heads, width), dtype=dtype, gradients=gradients)
      makers = make_own(pattern, **case) | make_others(name, **case)
      mask = block_mask(pattern, make_grid(n), 128, heads)
      blocks = {"blocks": mask.keys.size / (mask.heads * mask.rows**2)}
      lines.append(head | blocks | time_programs(makers, say, effort))
    if lines:
      yield f"{dtype}, N = {n:,}, {passes}, ms", lines


def make_own(
  pattern: Pattern, shape: tuple[int, int, int, int], dtype: str, gradients: bool
) -> Makers:
  """Returns functions that compile attention on random q, k and v, for each of `WAYS`.

  Args:
    pattern: The pattern; cuDNN's dense attention has all pairs, or all causal pairs if no query of
      the pattern attends a later key.
    shape: The shape (B, N, H, D) of q, k and v.
    dtype: The dtype of q, k and v.
    gradients: Whether the backward pass is measured too.
  """
  today = current_rule()
  by_xla = dataclasses.replace(today, tiles={dtype: {triton_attention.MAX_WIDTH: None}})
  layout = make_grid(shape[1])
  is_causal = not np.triu(dense_mask(pattern, make_grid(1024), shape[2]), 1).any()
  ours = partial(attention, pattern=pattern, layout=layout, implementation="kernelized")
  dense = partial(jax.nn.dot_product_attention, is_causal=is_causal, implementation="cudnn")

  def compile_own(attend: Callable, rule: Rule) -> timing.TimedProgram:
    with choosing_by(rule):
      arrays = jax.random.normal(jax.random.key(0), (3, *shape), dtype)
      return timing.compile_step(attend, *arrays, gradients=gradients)

  calls = zip(WAYS, ((ours, today), (ours, by_xla), (dense, today)), strict=True)
  return {way: partial(compile_own, *call) for way, call in calls}


def time_programs(makers: Makers, say: Say, effort: Mapping[str, Any]) -> Cell:
  """Times programs in turns.

  Returns:
    The time of each program, such as "ours ms", and its temporary memory if known, such as "ours
    MB". A program that cannot be compiled or run has no entry; `say` gets the reason.
  """
  programs = {}
  for way, make in makers.items():
    try:
      programs[way] = make()
      programs[way].run()
    except Exception as error:  # Each library raises errors of its own.
      programs.pop(way, None)
      say(f"  {way}: {_shorten(error)}")
  times = timing.interleave({way: each.run for way, each in programs.items()}, **effort)
  cells: Cell = {}
  for way, program in programs.items():
    cells[f"{way} ms"] = 1e3 * times[way].seconds
    if program.temporary_bytes is not None:
      cells[f"{way} MB"] = program.temporary_bytes / 1e6
  return cells


def _shorten(error: Exception) -> str:
  return str(error).partition("\n")[0][:150]


def format_table(title: str, lines: Sequence[Cell], others: Sequence[str] = ()) -> str:
  """Returns the lines of `measure_table` as Markdown; "-" stands for an unknown value.

  Args:
    title: The title of the table.
    lines: The lines.
    others: The names of other libraries.
  """
  columns = ["ours ms", "ours MB", "ours by XLA ms", "ours by XLA MB"]
  columns += [f"{way} ms" for way in (WAYS[-1], *others)]
  heads = ["MB" if key.endswith("MB") else key.removesuffix(" ms") for key in columns]
  rows = [[title, "edges in 128 x 128 blocks", *heads]]
  for line in lines:
    cells = [_format(line.get(key), 0 if key.endswith("MB") else 3) for key in columns]
    rows.append([line["edges"], f"{line['blocks']:.1%}", *cells])
  return markdown.table(rows)


def _format(value: float | None, digits: int) -> str:
  return "-" if value is None else f"{value:,.{digits}f}"


def measure_steps(
  say: Say,
  texts: Sequence[str] = STEPS,
  *,
  end: float = math.inf,
  effort: Mapping[str, Any],
) -> str:
  """Times the training steps of some configs and returns a table of times and memory.

  A training step is the one that `vitx train` runs. Its batch is noise.

  Args:
    say: A function called with messages on the progress.
    texts: The configs as `FILE:ROW,field=value`, such as "vix_cifar10:vit".
    end: The value of `time.monotonic` after which no further config is timed.
    effort: The arguments `repeats` and `seconds` of `timing.interleave`.
  """
  cells: list[tuple[str, ...]] = [("training step of", "batch", "ms", "MB of the program")]
  for text in texts:
    if time.monotonic() > end:
      say(f"{text}: no time left")
      continue
    say(f"{text}: a training step")
    config = trial.complete_config(load_config(text))
    seconds, size = None, None
    try:
      dispatch = trial.compile_dispatch(config, 1)
      size = cost.compiled_bytes(dispatch.program.compiled)
      timing.check_memory(size or 0)
      runs = {"": dispatch.start(trial.begin(config))}
      seconds = timing.interleave(runs, **effort)[""].seconds
    except (timing.TooLargeError, jax.errors.JaxRuntimeError) as error:
      say(f"{text}: {_shorten(error)}")
    figures = (seconds and 1e3 * seconds, 2), (size and size / 1e6, 0)
    cells.append((text, str(config.batch_size), *(_format(*figure) for figure in figures)))
  return markdown.table(cells)


def describe(*others: str) -> str:
  """Returns a paragraph on the device, the versions and the timing.

  Args:
    *others: Further packages whose versions are stated.
  """
  device = timing.describe_device("jax", "jaxlib", "jax-triton", "triton", *others)
  versions = {"Python": platform.python_version()} | device["versions"]
  capability = getattr(jax.devices()[0], "compute_capability", "unknown")
  return (
    f"Measured on {device['date']} on one {device['device_kind']}"
    f" (compute capability {capability}, driver {_find_driver()}), with"
    f" {', '.join(f'{name} {version}' for name, version in versions.items())}. The rule is that of"
    f" {markdown.shorten_paths(current_rule().source)}. Times are medians of {REPEATS} samples of"
    f" at least {1e3 * timing.MIN_SAMPLE:.0f} ms, in turns; float32 has TF32 products. MB are"
    " temporaries as compiled. B = 4, H = 8 and D = 64."
  )


def _find_driver() -> str:
  """Returns the version of NVIDIA's driver from the file that states it, or "unknown"."""
  path = Path("/proc/driver/nvidia/version")
  words = path.read_text().partition("\n")[0].split() if path.exists() else []
  return next((word for word in words if word[0].isdigit()), "unknown")
