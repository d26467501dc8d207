"""Benchmarks of training steps: their FLOP/s as a share of a matrix product's, or their times.

python -m tests.benchmarks.steps
python -m tests.benchmarks.steps --rows digits:bigbird --runs 5
python -m tests.benchmarks.steps --rows digits:bigbird --against digits:softmax
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from tests.benchmarks import console
from vitx.benchmark.timing import interleave
from vitx.config.loader import load_config
from vitx.tasks.settle import complete_config
from vitx.training import phases, trial
from vitx.training.compilation import count_steps

# The least share that the FLOP/s of a step have of a float32 product's.
SHARES = {
  "cifar10:vit": 0.45,
  "cifar10:cct_2_3x2": 0.3,
  "cifar10:resnet20": 0.3,
  "simplified_cifar10:simplified_w96_d8": 0.3,
  "digits:bigbird": 0.3,
}
PRODUCT = 2048  # rows and columns of both matrices

Step = Callable[[], None]


def compare(
  pairs: Mapping[str, tuple[Step, Step]], *, runs: int, say: Callable[[str], None], **effort: Any
) -> dict[str, list[float]]:
  """Divides the time of the first step of each pair by that of the second, once in each run.

  Args:
    pairs: The pairs by name; both steps take turns.
    runs: The number of runs of each pair.
    say: A function called with messages on the progress.
    **effort: Arguments of `interleave`.

  Returns:
    The ratio of every run, by name.
  """
  ratios: dict[str, list[float]] = {name: [] for name in pairs}
  for run in range(runs):
    for name, pair in pairs.items():
      say(f"{name}: run {run + 1} of {runs}")
      first, second = interleave(dict(enumerate(pair)), **effort).values()
      ratios[name].append(first.seconds / second.seconds)
  return ratios


def make_dispatch(config: ConfigDict) -> tuple[Step, int, int]:
  """Compiles a dispatch of training on noise, on all devices, as `vitx train` makes it.

  Args:
    config: The config of a row.

  Returns:
    A function that runs the dispatch to its end, the number of its steps, and the FLOPs of all of
    them.
  """
  config = complete_config(config)
  flops = trial.count_training_flops(config)
  steps = config.steps_per_dispatch or count_steps(flops)
  state = trial.begin(config)  # before compilation, as in training
  return trial.compile_dispatch(config, steps).start(state), steps, steps * flops


def multiply() -> Step:
  """Returns a function that multiplies two float32 matrices of `PRODUCT` rows and columns."""
  square = jax.random.normal(jax.random.key(0), (PRODUCT, PRODUCT))
  product = jax.jit(lambda x: x @ x)
  return lambda: jax.block_until_ready(product(square))


def measure(rows: Sequence[str], against: str | None, effort: Mapping[str, Any]) -> None:
  """Prints shares of the FLOP/s of a product or, with another row, times over that row's.

  Args:
    rows: The rows, as `CONFIG:ROW,field=value,...`.
    against: The other row, or `None`.
    effort: The effort of `console.start`.
  """
  configs = {row: load_config(row) for row in (*rows, *([against] if against else ()))}
  phases.use_cores(configs.values())
  dispatches = {row: make_dispatch(config) for row, config in configs.items()}
  if against:
    print(f"time of a step over that of {against}")
    pairs = {row: (dispatches[row][0], dispatches[against][0]) for row in rows}
    factors = {row: dispatches[against][1] / dispatches[row][1] for row in rows}
  else:
    print(f"FLOP/s of a step over those of a product of {PRODUCT} x {PRODUCT}")
    product = multiply()
    pairs = {row: (product, dispatches[row][0]) for row in rows}
    factors = {row: dispatches[row][2] / (2 * PRODUCT**3) for row in rows}
  ratios = compare(pairs, **effort)
  figures = {row: [factors[row] * ratio for ratio in ratios[row]] for row in rows}
  print(console.format_ratios(figures, {} if against else SHARES, most=False), flush=True)


if __name__ == "__main__":
  parser = console.make_parser(__doc__, repeats=5)
  parser.add_argument("--rows", nargs="+", default=list(SHARES), metavar="ROW")
  parser.add_argument("--against", metavar="ROW", help="print times over this row's")
  sys.exit(console.start(measure, parser))
