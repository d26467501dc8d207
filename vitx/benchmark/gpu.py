"""Times the attention kernels on a GPU, beside XLA and cuDNN, for `vitx benchmark gpu`."""

import dataclasses
import itertools
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vitx.analysis import cost, markdown
from vitx.benchmark import timing
from vitx.benchmark.gpu_check import DTYPES, Say
from vitx.benchmark.mixers import make_grid
from vitx.config.loader import load_config
from vitx.ops import attention, dense_mask
from vitx.ops.implementation import choosing_by, current_rule
from vitx.ops.patterns import Causal, Full, Neighborhood, Pattern, Strided, Window, bigbird
from vitx.ops.rule import Rule
from vitx.ops.sparse import triton_attention
from vitx.ops.sparse.attend import block_mask
from vitx.tasks.settle import complete_config
from vitx.training import trial

PARTS = ("check", "tiles", "steps", "table")
TOKENS = (4096, 1024, 16384)  # The numbers of tokens in the table, the most important first.
REPEATS, SECONDS = 15, 5.0  # The most samples of a program, and the limit on their seconds.
STEPS = (
  *("vix_cifar10:vit", "vix_cifar10:vit,token_mixer=neighborhood"),
  "vix_cifar10:vit,model.dtype=bfloat16",
  "vix_cifar10:vit,token_mixer=neighborhood,model.dtype=bfloat16",
  *("sparse_transformer_cifar10:dense", "sparse_transformer_cifar10:strided"),
  "vix_cifar10:vit,data.image_size=64,batch_size=8",
  "vix_cifar10:vit,data.image_size=64,batch_size=8,token_mixer=neighborhood",
  "sparse_transformer_imagenet64:strided,token_mixer=softmax,batch_size=1",
  "sparse_transformer_imagenet64:strided,batch_size=1",
)
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
      head = {"tokens": n, "head_dim": width, "dtype": dtype, "passes": passes, "edges": name}
      case: dict[str, Any] = dict(shape=(batch, n, heads, width), dtype=dtype, gradients=gradients)
      makers = make_ours(pattern, **case) | make_others(name, **case)
      mask = block_mask(pattern, make_grid(n), 128, heads)
      blocks = {"blocks": mask.keys.size / (mask.heads * mask.rows**2)}
      lines.append(head | blocks | time_programs(makers, say, effort))
    if lines:
      _add_efficiency(lines)
      yield f"{dtype}, N = {n:,}, D = {width}, {passes}, ms", lines


def _add_efficiency(lines: Sequence[Cell]) -> None:
  """Adds the rate of vitx on visited blocks, as a share of cuDNN's rate on all of them."""
  whole = next((line.get(f"{WAYS[-1]} ms") for line in lines if line["blocks"] == 1), None)
  for line in lines:
    if whole and "ours ms" in line:
      line["efficiency"] = line["blocks"] * whole / line["ours ms"]


def make_ours(
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
  installed = current_rule()
  by_xla = dataclasses.replace(installed, tiles={dtype: {triton_attention.MAX_WIDTH: None}})
  layout = make_grid(shape[1])
  is_causal = not np.triu(dense_mask(pattern, make_grid(1024), shape[2]), 1).any()
  ours = partial(attention, pattern=pattern, layout=layout, implementation="kernelized")
  dense = partial(jax.nn.dot_product_attention, is_causal=is_causal, implementation="cudnn")

  def compile_way(attend: Callable, rule: Rule) -> timing.TimedProgram:
    with choosing_by(rule):
      arrays = jax.random.normal(jax.random.key(0), (3, *shape), dtype)
      return timing.compile_step(attend, *arrays, gradients=gradients)

  calls = zip(WAYS, ((ours, installed), (ours, by_xla), (dense, installed)), strict=True)
  return {way: partial(compile_way, *call) for way, call in calls}


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
  times = timing.interleave({way: program.run for way, program in programs.items()}, **effort)
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
  columns = ["ours ms", "efficiency", "ours MB", "ours by XLA ms", "ours by XLA MB"]
  columns += [f"{way} ms" for way in (WAYS[-1], *others)]
  heads = ["MB" if key.endswith("MB") else key.removesuffix(" ms") for key in columns]
  rows = [[title, "edges in 128 x 128 blocks", *heads]]
  for line in lines:
    digits = [0 if key.endswith("MB") else 2 if key == "efficiency" else 3 for key in columns]
    cells = [_format(line.get(key), count) for key, count in zip(columns, digits, strict=True)]
    rows.append([line["edges"], f"{line['blocks']:.1%}", *cells])
  return markdown.table(rows)


def _format(value: float | None, digits: int) -> str:
  return "-" if value is None else f"{value:,.{digits}f}"


def measure_steps(
  say: Say, texts: Sequence[str] = STEPS, *, end: float = math.inf, effort: Mapping[str, Any]
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
    settings = complete_config(load_config(text))
    seconds, size = None, None
    try:
      dispatch = trial.compile_dispatch(settings, 1)
      size = cost.compiled_bytes(dispatch.program.compiled)
      timing.check_memory(size or 0)
      runs = {"": dispatch.start(trial.begin(settings))}
      seconds = timing.interleave(runs, **effort)[""].seconds
    except (timing.TooLargeError, jax.errors.JaxRuntimeError) as error:
      say(f"{text}: {_shorten(error)}")
    figures = (seconds and 1e3 * seconds, 2), (size and size / 1e6, 0)
    cells.append((text, str(settings.batch_size), *(_format(*figure) for figure in figures)))
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
    " temporaries as compiled. B = 4 and H = 8. The efficiency is the rate on the blocks with"
    " edges over that of cuDNN on all blocks."
  )


def _find_driver() -> str:
  """Returns the version of NVIDIA's driver from the file that states it, or "unknown"."""
  path = Path("/proc/driver/nvidia/version")
  words = path.read_text().partition("\n")[0].split() if path.exists() else []
  return next((word for word in words if word[0].isdigit()), "unknown")
