"""Benchmarks of attention on a GPU beside FlexAttention, NATTEN and cuDNN's causal window.

The first two need the packages torch and natten. All libraries attend along equal edges and take
turns. vitx's columns are those of
`vitx benchmark gpu --parts table`.

python -m tests.benchmarks.libraries
python -m tests.benchmarks.libraries --tokens 4096 --csv libraries.csv
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from tests.benchmarks import console
from vitx.analysis import csv_files
from vitx.benchmark import gpu, tune
from vitx.benchmark.mixers import make_grid
from vitx.benchmark.timing import TimedProgram, compile_step
from vitx.ops import TokenLayout
from vitx.ops.patterns import Neighborhood

FLEX, NATTEN, WINDOW = "FlexAttention", "NATTEN", "cuDNN's window"
# A function of two index arrays of PyTorch or NumPy, queries and keys, that is True for edges.
Mask = Callable[[Any, Any], Any]


def _make_bigbird(n: int, place: Callable) -> Mask:
  first = np.arange(0, n, 64)  # The first token of each block.
  blocks = gpu.EDGES["BigBird, blocks of 64"].allows(TokenLayout((n,)), first[:, None], first)
  table = place(blocks)
  return lambda q, k: table[q // 64, k // 64]


def is_neighbor(q: Any, k: Any, grid: tuple[int, ...], size: int) -> Any:
  """Returns where a key is in the neighborhood of a query, both numbers of tokens of a grid.

  Args:
    q: The queries, an array of PyTorch or NumPy.
    k: The keys.
    grid: The rows and columns of the grid.
    size: The side of a neighborhood, which is moved inward at borders.
  """
  rows, columns = grid

  def sees(i, j, extent):
    start = (i - size // 2).clip(0, extent - size)
    return (j >= start) & (j < start + size)

  return sees(q // columns, k // columns, rows) & sees(q % columns, k % columns, columns)


def _make_neighborhood(n: int, place: Callable) -> Mask:
  return partial(is_neighbor, grid=make_grid(n).grid, size=13)


# Functions that make FlexAttention's mask of each line of `gpu.EDGES`, given the number of tokens
# and a function that moves a NumPy array to a device; `None` if all pairs are edges.
MASKS: dict[str, Callable[[int, Callable], Mask] | None] = {
  "dense": None,
  "causal": lambda n, place: lambda q, k: q >= k,
  "causal window of 257": lambda n, place: lambda q, k: (q >= k) & (q - k <= 256),
  "BigBird, blocks of 64": _make_bigbird,
  "strided, merged, l = 64": lambda n, place: (
    lambda q, k: (q >= k) & ((q - k < 64) | ((q - k) % 64 == 0))
  ),
  "13 x 13 neighborhood": _make_neighborhood,
}


def make_others(
  name: str, shape: tuple[int, int, int, int], dtype: str, gradients: bool
) -> gpu.Makers:
  """Returns functions that compile the attention of other libraries, see `gpu.measure_table`.

  A function raises an error if its library is missing, or if the library lacks the pattern.
  """
  batch, n, heads, width = shape
  grid, time_torch = make_grid(n).grid, partial(_time_torch, dtype=dtype, gradients=gradients)
  return {
    FLEX: lambda: time_torch(_make_flex(name, n), (batch, heads, n, width)),
    NATTEN: lambda: time_torch(_make_natten(name), (batch, *grid, heads, width)),
    WINDOW: lambda: _compile_window(name, shape, dtype, gradients),
  }


def _compile_window(name: str, shape: tuple[int, ...], dtype: str, gradients: bool) -> TimedProgram:
  if name != "causal window of 257":
    raise ValueError("cuDNN has only causal windows")
  arrays = jax.random.normal(jax.random.key(0), (3, *shape), dtype)
  return compile_step(partial(attend_window, "cudnn"), *arrays, gradients=gradients)


def attend_window(implementation: str, *arrays: jax.Array) -> jax.Array:
  """Computes attention of each query to itself and the 256 keys before it by JAX's own function."""
  window: dict[str, Any] = {"is_causal": True, "local_window_size": (256, 0)}
  return jax.nn.dot_product_attention(*arrays, **window, implementation=implementation)


def _make_flex(name: str, n: int) -> Callable:
  """Returns FlexAttention along the edges of a line, compiled at its first call."""
  import torch
  from torch.nn.attention.flex_attention import create_block_mask, flex_attention

  torch.compiler.reset()  # Otherwise PyTorch stops compiling after a few masks.
  mask, make_mask = None, MASKS[name]
  if make_mask is not None:
    allows = make_mask(n, lambda table: torch.as_tensor(table, device="cuda"))
    mask = create_block_mask(lambda b, h, q, k: allows(q, k), None, None, n, n, device="cuda")
  return partial(torch.compile(flex_attention), block_mask=mask)


def _make_natten(name: str) -> Callable:
  pattern = gpu.EDGES[name]
  if not isinstance(pattern, Neighborhood):
    raise ValueError("NATTEN has only neighborhoods")
  import natten

  return partial(natten.na2d, kernel_size=pattern.size)


def _time_torch(
  attend: Callable, shape: tuple[int, ...], *, dtype: str, gradients: bool
) -> TimedProgram:
  """Makes a program that runs attention of PyTorch on the GPU, on random q, k and v of a shape."""
  import torch

  torch.set_float32_matmul_precision("high")  # TF32, which JAX's default precision has too
  options: dict[str, Any] = {"device": "cuda", "dtype": getattr(torch, dtype)}
  q, k, v = (torch.randn(shape, **options, requires_grad=gradients) for _ in range(3))
  d_out = torch.randn(shape, **options)

  def run() -> None:
    out = attend(q, k, v)
    if gradients:
      torch.autograd.grad(out, (q, k, v), d_out)
    torch.cuda.synchronize()

  return TimedProgram(run, None, 0)


def measure(
  tokens: Sequence[int], minutes: float, csv: str | None, effort: Mapping[str, Any]
) -> None:
  """Prints a table for every number of tokens, dtype and kind of pass; writes the lines as CSV.

  Args:
    tokens: The numbers of tokens, N.
    minutes: The minutes after which no further line is measured.
    csv: The path of the CSV file, or `None`.
    effort: The effort of `console.start`; the number of runs is one.
  """
  tune.check_kernels("tests.benchmarks.libraries")
  records: list[gpu.Cell] = []
  print(f"{gpu.describe('torch', 'natten')}\n", flush=True)
  tables = gpu.measure_table(
    tokens,
    effort["say"],
    end=time.monotonic() + 60 * minutes,
    effort={name: effort[name] for name in ("repeats", "seconds")},
    make_others=make_others,
  )
  for title, lines in tables:
    print(f"{gpu.format_table(title, lines, (FLEX, NATTEN, WINDOW))}\n", flush=True)
    records += lines
    if csv:
      csv_files.write_records(csv, records)


if __name__ == "__main__":
  parser = console.make_parser(__doc__, repeats=gpu.REPEATS)
  parser.set_defaults(seconds=gpu.SECONDS)
  parser.add_argument("--tokens", nargs="+", type=int, default=gpu.TOKENS, help="numbers N")
  parser.add_argument("--minutes", type=float, default=28.0, help="no line begins after them")
  parser.add_argument("--csv", metavar="FILE", help="write the lines to this file")
  sys.exit(console.start(measure, parser))
