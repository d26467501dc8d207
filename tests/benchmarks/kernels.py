"""Measures where the time of attention goes on a GPU, kernel by kernel, from a profile.

python -m tests.benchmarks.kernels
python -m tests.benchmarks.kernels --tokens 16384 --dtype float32
"""

import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.profiler import ProfileData

from tests.benchmarks import console
from vitx.analysis import markdown
from vitx.benchmark import gpu, timing, tune
from vitx.benchmark.mixers import make_grid
from vitx.ops.sparse.attend import block_mask

PASSES = 20  # The number of forward and backward passes in a profile.
HEADS = ("kernel", "launches", "ms", "programs", "programs for each multiprocessor")


def read_kernels(profile: ProfileData, passes: int, processors: int | None) -> str:
  """Returns a table of the kernels of one GPU: launches and milliseconds in a pass, and programs.

  The last line is the time in which no kernel ran, between the first and the last one.

  Args:
    profile: The profile.
    passes: The number of passes in the profile.
    processors: The number of the GPU's multiprocessors, or `None` if it is not known.
  """
  planes = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
  streams = [line for plane in planes for line in plane.lines if line.name.startswith("Stream")]
  kernels: dict[str, list[Any]] = defaultdict(list)
  for event in (event for line in streams for event in line.events):
    kernels[event.name].append(event)
  rows = []
  for name, events in sorted(kernels.items(), key=lambda item: -_sum_ms(item[1])):
    programs = _count_programs(events[0])
    cells = [f"{len(events) / passes:.1f}", f"{_sum_ms(events) / passes:.3f}"]
    cells.append("-" if programs is None else f"{programs:,}")
    cells.append("-" if None in (programs, processors) else f"{programs / processors:.1f}")
    rows.append([name, *cells])
  idle = _measure_idle([event for events in kernels.values() for event in events])
  return markdown.table([HEADS, *rows, ["no kernel", "", f"{idle / passes:.3f}", "", ""]])


def _sum_ms(events: list[Any]) -> float:
  return sum(event.duration_ns for event in events) / 1e6


def _count_programs(kernel: Any) -> int | None:
  """Returns the size of a kernel's grid, or `None` if the profile does not state it."""
  details = str(dict(kernel.stats).get("kernel_details", ""))
  grid = re.search(r"grid:(\d+),(\d+),(\d+)", details)
  return math.prod(map(int, grid.groups())) if grid else None


def _measure_idle(events: list[Any]) -> float:
  """Returns the milliseconds between the first start and the last end in which no kernel ran."""
  idle, end = 0.0, math.inf
  for event in sorted(events, key=lambda event: event.start_ns):
    idle += max(0.0, event.start_ns - end)
    end = event.end_ns if end == math.inf else max(end, event.end_ns)
  return idle / 1e6


def profile(run: Callable[[], None]) -> ProfileData:
  """Returns the profile of `PASSES` calls of a function that has run before."""
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(PASSES):
        run()
    (path,) = Path(folder).glob("**/*.xplane.pb")
    return ProfileData.from_file(str(path))


def measure(tokens: int, head_dim: int, dtype: str, effort: Mapping[str, Any]) -> None:
  """Prints a table of kernels for each pattern of `vitx benchmark gpu --parts table`.

  Args:
    tokens: The number of tokens, N.
    head_dim: The width of a head, D.
    dtype: The dtype of q, k and v.
    effort: The effort of `console.start`, of which `say` alone is used.
  """
  tune.check_kernels("tests.benchmarks.kernels")
  device = timing.describe_device("jax", "jaxlib", "jax-triton", "triton")
  versions = ", ".join(f"{name} {version}" for name, version in device["versions"].items())
  print(f"{device['device_kind']}, {device['date']}, {versions}; B = 4, H = 8\n", flush=True)
  processors = getattr(jax.devices()[0], "core_count", None)
  for name, pattern in gpu.EDGES.items():
    effort["say"](name)
    makers = gpu.make_ours(pattern, (4, tokens, 8, head_dim), dtype, gradients=True)
    run = makers["ours"]().run
    run()
    mask = block_mask(pattern, make_grid(tokens), 128, 8)
    share = np.count_nonzero(mask.table) / mask.table.size
    shape = f"N = {tokens:,}, D = {head_dim}, {dtype}, forward and backward"
    print(f"{name}, {shape}; {share:.0%} of the 128 x 128 blocks with edges are partial\n")
    print(f"{read_kernels(profile(run), PASSES, processors)}\n", flush=True)


if __name__ == "__main__":
  parser = console.make_parser(__doc__)
  parser.add_argument("--tokens", type=int, default=4096, help="the number N")
  parser.add_argument("--head_dim", type=int, default=64, help="the width of a head, D")
  parser.add_argument("--dtype", choices=gpu.DTYPES, default="bfloat16")
  sys.exit(console.start(measure, parser))
