"""Whole training steps: beside PyTorch's, and as a share of what a plain product reaches."""

import multiprocessing
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax

from vitx.benchmark.timing import interleave
from vitx.config.errors import ConfigError

Steps = Mapping[str, Callable[[], None]]

# Time of our step over the peer's, at most.
GOALS = {"vit/fused": 1.0, "vip": 0.8, "vil": 0.8, "vin": 0.8, "fnet": 0.8}
# FLOP/s of a step over those of a product of two matrices, at least.
SHARES = {
  "cifar10:vit": 0.45,
  "cifar10:cct_2_3x2": 0.3,
  "cifar10:resnet20": 0.3,
  "simplified_cifar10:simplified_w96_d8": 0.3,
  "digits:bigbird": 0.3,
}
PRODUCT = 2048  # rows and columns of both matrices
STATUS = Path("/proc/self/status")


def row_of(peer: str) -> str:
  """Returns the row of ours that stands beside a peer: "vit" beside "vit/fused"."""
  return peer.partition("/")[0]


def compare(
  ours: Steps, peers: Steps, *, runs: int, say: Callable[[str], None], **effort: Any
) -> dict[str, list[float]]:
  """Returns the time of our step over the peer's, by peer, one for each run.

  Args:
    ours: a training step of each row.
    peers: a training step of each peer.
    runs: of each pair, whose two steps take turns.
    say: is told of progress.
    **effort: of `interleave`.
  """
  found: dict[str, list[float]] = {name: [] for name in peers}
  for run in range(runs):
    for name, peer in peers.items():
      say(f"{name}: run {run + 1} of {runs}")
      times = interleave({"ours": ours[row_of(name)], "peer": peer}, **effort)
      found[name].append(times["ours"].seconds / times["peer"].seconds)
  return found


def share_of_product(
  steps: Steps, flops: Mapping[str, int], *, runs: int, say: Callable[[str], None], **effort: Any
) -> dict[str, list[float]]:
  """Returns the FLOP/s of each step over those of a float32 product, one for each run.

  Args:
    steps: training steps.
    flops: of each.
    runs: of each step and the product, which take turns.
    say: is told of progress.
    **effort: of `interleave`.
  """
  square = jax.random.normal(jax.random.key(0), (PRODUCT, PRODUCT))
  multiply = jax.jit(lambda x: x @ x)

  def product() -> None:
    jax.block_until_ready(multiply(square))

  found: dict[str, list[float]] = {name: [] for name in steps}
  for run in range(runs):
    for name, step in steps.items():
      say(f"{name}: run {run + 1} of {runs}")
      times = interleave({"step": step, "product": product}, **effort)
      rate = flops[name] / times["step"].seconds
      found[name].append(rate / (2 * PRODUCT**3 / times["product"].seconds))
  return found


def peak_bytes(
  prepare: Callable[[], Any], make: Callable[[str], Callable[[], None]], name: str, steps: int = 3
) -> int:
  """Returns the peak resident memory of some steps, in a process of its own, above its imports'.

  Args:
    prepare: imports what the step needs; importable itself, like `make`.
    make: returns a step, given its name.
    name: of the step.
    steps: to run.
  """
  spawn = multiprocessing.get_context("spawn")
  with ProcessPoolExecutor(1, mp_context=spawn) as pool:
    return pool.submit(_measure_peak, prepare, make, name, steps).result()


def _measure_peak(
  prepare: Callable[[], Any], make: Callable[[str], Callable[[], None]], name: str, steps: int
) -> int:
  prepare()
  before = _read_peak()
  step = make(name)
  for _ in range(steps):
    step()
  return _read_peak() - before


def _read_peak() -> int:
  """Returns the peak resident bytes of this process; `getrusage` counts its parent's too."""
  if not STATUS.exists():
    raise ConfigError(f"the peak of memory is read from {STATUS}, which Linux alone has")
  lines = STATUS.read_text().splitlines()
  return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def format_ratios(found: Mapping[str, list[float]], goals: Mapping[str, float], most: bool) -> str:
  """Returns lines for reading: every run's ratio, the median, and whether the goal is reached.

  Args:
    found: ratios of each run.
    goals: by name, where there is one.
    most: whether the goal is the most that a ratio may be; False: the least.
  """
  lines = []
  for name, ratios in found.items():
    values = "  ".join(f"{ratio:.2f}" for ratio in ratios)
    line = f"{name:<40} {values}  median {statistics.median(ratios):.2f}"
    if name in goals:
      goal = goals[name]
      met = sum(ratio <= goal if most else ratio >= goal for ratio in ratios)
      line += f"  {'<=' if most else '>='} {goal}: {met} of {len(ratios)}"
    lines.append(line)
  return "\n".join(lines)
