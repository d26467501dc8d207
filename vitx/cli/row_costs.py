"""What a row of a config costs: counted, compiled and measured, for `vitx.cli.costs`."""

import functools
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import jax
from ml_collections import ConfigDict

from vitx.analysis import cost, torchsummary
from vitx.analysis.counting import count as count_parameters
from vitx.analysis.counting import count_variables
from vitx.analysis.shapes import variable_shapes
from vitx.benchmark import timing
from vitx.benchmark.rates import find_rates
from vitx.config.loader import load_config
from vitx.tasks import build_task
from vitx.training import trial
from vitx.training.trial import complete_config

BATCH = 64  # examples of the training step whose memory is told
INFERENCE = (1, 32, 128)  # examples, of which the memory of inference is told
COUNTED = (
  "parameters",
  "gflops_products",
  "gflops",
  "train_parameters_mb",
  "train_optimizer_mb",
  "train_activations_mb",
  "train_mb",
  *(f"inference_{batch}_mb" for batch in INFERENCE),
)
SIZE = "size_mb"
SUMMARIZED = ("parameters_torchsummary", SIZE)  # of rows that have a published size
TIMED = ("train_peak_mb", "train_batch", "train_per_s", "inference_batch", "inference_per_s")

# What a picture calls a column, where its name would not do.
LABELS = {
  "gflops_products": "GFLOP of products, one example",
  "gflops": "GFLOP, one example",
  "train_parameters_mb": "memory of the parameters (MB)",
  "train_optimizer_mb": "memory of the optimizer (MB)",
  "train_activations_mb": f"memory of activations, {BATCH} examples (MB)",
  "train_mb": f"memory of training, {BATCH} examples (MB)",
  **{f"inference_{n}_mb": f"memory of inference, {n} examples (MB)" for n in INFERENCE},
  "parameters_torchsummary": "parameters that torchsummary sees",
  "size_mb": "torchsummary's total size (MB)",
  "train_peak_mb": f"peak of memory of training, {BATCH} examples (MB)",
  "train_batch": "best batch of training",
  "train_per_s": "trained examples a second",
  "inference_batch": "best batch of inference",
  "inference_per_s": "inferred examples a second",
  "top1": "top-1 (%)",
  "top5": "top-5 (%)",
  "gpu_gb": "memory of a GPU (GB)",
  "parameters_m": "parameters (millions)",
}

Row = dict[str, Any]  # values by column; of what is not known there is none


def count(config: ConfigDict) -> Row:
  """Returns what a completed config costs, by counting and compiling."""
  task = build_task(config)
  variables = variable_shapes(task.model, task.input_spec)
  flops = functools.partial(cost.flops, task.model.apply, variables, task.input_spec)
  row: Row = {
    "parameters": count_variables(variables).total,
    "gflops_products": flops() / 1e9,
    "gflops": flops(elementwise=True) / 1e9,
  }
  used = trial.split_training_bytes(_at(config, BATCH))
  if used is not None:
    parts = ("parameters", "optimizer", "activations")
    row |= {f"train_{part}_mb": getattr(used, part) / 1e6 for part in parts}
    row["train_mb"] = used.total / 1e6
  for batch in INFERENCE:
    needed = trial.measure_inference_bytes(config, batch)
    if needed is not None:
      row[f"inference_{batch}_mb"] = needed / 1e6
  return row


def count_size(config: ConfigDict) -> Row:
  """Returns what torchsummary says of a completed config's PyTorch twin, where it has one."""
  model, parameters = config.model, count_parameters(config).summary
  size = torchsummary.estimate_size(model, config.data.image_size, parameters)
  values = (parameters, size)
  return {} if size is None else dict(zip(SUMMARIZED, values, strict=True))


def _at(config: ConfigDict, batch: int) -> ConfigDict:
  """Returns the config with so many examples in a step, all at once."""
  config = config.copy_and_resolve_references()
  config.batch_size, config.grad_accum_steps = batch, 1
  return config


def measure_peaks(texts: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Row]:
  """Returns the measured peak of training by row; nothing where the device does not tell."""
  found: dict[str, Row] = {}
  spawn = multiprocessing.get_context("spawn")
  for name, text in texts.items():
    say(f"{name}: peak of memory")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
      try:
        peak = pool.submit(measure_peak, text).result()
      except timing.TooLargeError as error:
        say(f"{name}: a step of {BATCH} {error}")
        continue
    if peak is None:
      return {}
    found[name] = {"train_peak_mb": peak / 1e6}
  return found


def measure_peak(text: str) -> int | None:
  """Returns the most bytes that the device held during two training steps of this process.

  None where the device does not tell, before anything is compiled.

  Args:
    text: of a config.

  Raises:
    TooLargeError: a step does not fit.
  """
  device = jax.local_devices()[0]
  if "peak_bytes_in_use" not in (device.memory_stats() or {}):
    return None
  config = complete_config(load_config(text))
  step = _make_training(config, functools.partial(trial.begin, config), BATCH)
  step()
  step()
  return device.memory_stats()["peak_bytes_in_use"]


def measure_rates(configs: Mapping[str, ConfigDict], **effort: Any) -> dict[str, Row]:
  """Returns examples a second at the best batch, by row, of training and of inference.

  Args:
    configs: completed.
    **effort: of `find_rates`.
  """
  rows: dict[str, Row] = {name: {} for name in configs}
  for kind, start, make in (
    ("train", trial.begin, _make_training),
    ("inference", trial.begin_inference, _make_inference),
  ):
    makers = {
      name: functools.partial(make, config, _once(functools.partial(start, config)))
      for name, config in configs.items()
    }
    for name, rate in find_rates(makers, **effort).items():
      rows[name] |= {f"{kind}_batch": rate.batch, f"{kind}_per_s": rate.per_second}
  return rows


def _once(start: Callable[[], Any]) -> Callable[[], Any]:
  """Returns what computes a start once and keeps it on the host, where no step can take it away."""
  return functools.cache(lambda: jax.device_get(start()))


def _make_training(config: ConfigDict, start: Callable[[], Any], batch: int) -> Callable[[], None]:
  """Returns a step of so many examples. Raises TooLargeError where it does not fit."""
  return _fitting(*trial.prepare_training(_at(config, batch), start))


def _make_inference(config: ConfigDict, start: Callable[[], Any], batch: int) -> Callable[[], None]:
  """Returns a forward pass of so many examples. Raises TooLargeError where it does not fit."""
  return _fitting(*trial.prepare_inference(config, start, batch))


def _fitting(program: Callable[[], None], needed: int | None) -> Callable[[], None]:
  if needed is not None:
    timing.check_memory(needed)
  return program
