"""Sparsifiner's journey at small scale: trains, evaluates and prints the table of its methods.

python results/sparsifiner_small.py --out runs/journey
python results/sparsifiner_small.py --out runs/cifar --data cifar10 --methods keep_0.25,random_0.25

For every seed: one dense network (`DATA_dense` of configs/sparsifiner_small.py), predictors trained
on it once, since they do not depend on the share of keys, and for each method a network fine-tuned
from the dense one, which teaches. What is finished is not repeated, so the command goes on where it
was stopped. The table gives, as mean ± standard deviation over the seeds, top-1 on the test
examples, its difference from the dense network of the same seed, and milliseconds per image of the
whole network; and millions of multiply-adds of attention (its two products and the predictor, no
projections) for an image, of the released code's products with the zeros that were found.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

import vitx
from vitx.checkpoints.workdir import find_run
from vitx.configs.sparsifiner_imagenet import Sizes, released_macs
from vitx.ops.kernels.selection import count_kept

ROOT = Path(__file__).resolve().parents[1]
SHARES = (0.5, 0.25, 0.1, 0.05)
METHODS = (
  *(f"{kind}_{share}" for kind in ("keep", "random") for share in SHARES),
  *("bilevel", "evit_0.7", "evit_0.5"),
)
BATCH, ROUNDS = 64, 20  # of the timing


def main() -> None:
  """Trains what is missing and prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
  parser.add_argument("--data", default="digits", help="of configs/sparsifiner_small.py")
  parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="seeds at a time")
  parser.add_argument("--overrides", default="", help="field=value,... of every run")
  given = parser.parse_args()
  methods = given.methods.split(",")
  begun = time.monotonic()
  with ThreadPoolExecutor(given.jobs) as pool:
    for _ in pool.map(lambda seed: train_seed(given, methods, seed), range(given.seeds)):
      pass
  print(f"trained in {(time.monotonic() - begun) / 60:.1f} minutes, {given.jobs} seeds at a time")
  print(tabulate(given.out, ["dense", *methods], given.seeds))


def train_seed(given: argparse.Namespace, methods: Sequence[str], seed: int) -> None:
  """Trains the dense network of a seed, its predictors, and every method on top of them."""
  common = f"seed={seed}" + (f",{given.overrides}" if given.overrides else "")
  dense, predictors = (given.out / f"{name}_{seed}" for name in ("dense", "predictors"))
  train(dense, f"{given.data}_dense,{common}", given.jobs)
  if any(method.startswith("keep") for method in methods):
    train(predictors, f"{given.data}_predictors,{common},backbone={dense}", given.jobs)
  for method in methods:
    start = f",predictors={predictors}" if method.startswith("keep") else ""
    row = f"{given.data}_{method},{common},backbone={dense}{start}"
    train(given.out / f"{method}_{seed}", row, given.jobs)


def train(workdir: Path, row: str, jobs: int) -> None:
  """Runs `vitx train` unless the run is finished; its output lies beside the workdir."""
  if read_test(workdir) is not None:
    return
  config = f"{ROOT}/configs/sparsifiner_small.py:{row}"
  command = [sys.executable, "-m", "vitx", "train", "--config", config, "--workdir", str(workdir)]
  environment = dict(os.environ)
  if jobs > 1:  # threads of several runs would get in each other's way
    flags = environment.get("XLA_FLAGS", "")
    environment["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false"
  workdir.parent.mkdir(parents=True, exist_ok=True)
  with open(workdir.with_name(f"{workdir.name}.log"), "w") as log:
    subprocess.run(command, check=True, env=environment, stdout=log, stderr=log)
  print(f"{workdir.name}: top-1 {read_test(workdir)['top1']:.2%}", flush=True)


def read_test(workdir: Path) -> Any:
  """Returns a run's figures on the test examples; None if it has not come so far."""
  path = Path(find_run(workdir)) / "metrics.jsonl"
  phases = workdir / "phases.json"
  if (
    phases.exists()
    and find_run(workdir) != f"{workdir}/{json.loads(phases.read_text())['phases'][-1]}"
  ):
    return None
  rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
  return next((row for row in rows if row["kind"] == "test"), None)


def tabulate(out: Path, methods: Sequence[str], seeds: int) -> str:
  """Returns the table in Markdown; a row is a method."""
  tests = {m: [read_test(out / f"{m}_{seed}") for seed in range(seeds)] for m in methods}
  times = {m: [] for m in methods}
  for seed in range(seeds):
    loaded = {m: vitx.load(out / f"{m}_{seed}") for m in methods}
    for method, each in measure(loaded).items():
      times[method].append(each)
  dense = np.array([test["top1"] for test in tests["dense"]]) * 100
  lines = [
    "| method | top-1 % | minus dense | ms / image | M multiply-adds | zeros |",
    "|---|---|---|---|---|---|",
  ]
  for method in methods:
    top1 = np.array([test["top1"] for test in tests[method]]) * 100
    zeros = [
      np.mean([test[name] for test in tests[method]])
      for name in ("coefficient_sparsity", "basis_sparsity")
      if name in tests[method][0]
    ]
    macs = count_macs(method, loaded[method], 1 - np.array(zeros or [1, 1])) / 1e6
    cells = [method, spread(top1), spread(top1 - dense), spread(np.array(times[method]), 3)]
    cells += [f"{macs:.2f}", ", ".join(f"{zero:.0%}" for zero in zeros)]
    lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def count_macs(method: str, loaded: Any, nonzero: np.ndarray) -> float:
  """Returns the multiply-adds of a network's attention, see above.

  Args:
    method: its name.
    loaded: the network.
    nonzero: shares of the coefficients and of the basis that are not zero.
  """
  model, layout = loaded.config.model, loaded.task.token_layout()
  n, mixer = layout.length, model.token_mixer
  sizes = Sizes(model.depth, n, model.width, model.num_heads, float(nonzero.prod()))
  kind = method.split("_")[0]
  if kind == "keep":
    sizes = dataclasses.replace(sizes, slots=mixer.slots)
    return released_macs(sizes, count_kept(mixer.keep, n))
  if kind == "evit":
    places = [n]
    for layer in range(model.depth):
      is_reduced = layer in model.token_reduction.layers
      kept = math.ceil(model.token_reduction.keep * (places[-1] - 1)) + 2
      places.append(kept if is_reduced else places[-1])
    return sum(2 * each**2 * model.width for each in places[:-1])
  keys = {
    "dense": n,
    "random": mixer.get("p", 0) * (n - 2) + 2,  # itself and the class token besides
    "bilevel": mixer.get("top", 0) / mixer.get("regions", 1) ** 2 * (n - 1) + 1,
  }[kind]
  return model.depth * 2 * model.width * ((n - 1) * keys + n)


def measure(loaded: dict[str, Any]) -> dict[str, float]:
  """Returns milliseconds per image of each network: the median of rounds, all in turn."""
  runs = {}
  for method, each in loaded.items():
    spec = each.task.input_spec
    images = np.random.default_rng(0).normal(size=(BATCH, *spec.shape[1:])).astype(np.float32)
    function = jax.jit(functools.partial(each.model.apply, train=False))
    runs[method] = functools.partial(function, jax.device_put(each.variables), images)
    jax.block_until_ready(runs[method]())
  seconds: dict[str, list[float]] = {method: [] for method in runs}
  for _ in range(ROUNDS):
    for method, run in runs.items():
      begun = time.perf_counter()
      jax.block_until_ready(run())
      seconds[method].append(time.perf_counter() - begun)
  return {method: float(np.median(each)) / BATCH * 1e3 for method, each in seconds.items()}


def spread(values: np.ndarray, digits: int = 2) -> str:
  """Returns mean ± standard deviation (n - 1) of one value per seed."""
  deviation = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
  return f"{values.mean():.{digits}f}{deviation}"


if __name__ == "__main__":
  main()
