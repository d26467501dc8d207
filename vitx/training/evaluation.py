"""Evaluates parameters over a split: every example exactly once, on any number of devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vitx.data.batches import evaluation_batches
from vitx.data.dataset import Examples
from vitx.tasks.base import Figures, Task
from vitx.training import parallel
from vitx.training.train_step import evaluation_step

# Takes this process's examples of a batch: their arrays, and the rows of the task's evaluation.
TakeRows = Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], None]


def make_evaluate(task: Task) -> Callable:
  """Returns the evaluation step on every device: `(params, model_state, constants, batch)`."""
  return parallel.compile_once(evaluation_step(task, parallel.AXIS))


def batch_size_for(config: Any) -> int:
  """Returns the configured evaluation batch, rounded up to what the devices share evenly."""
  size = config.evaluation.batch_size or config.batch_size
  return -(-size // jax.device_count()) * jax.device_count()


def split_batches(config: Any, task: Task, examples: Examples) -> Iterator[dict[str, np.ndarray]]:
  """Returns this process's padded and masked batches over a split."""
  return evaluation_batches(
    examples,
    transform=task.transform(train=False),
    batch_size=batch_size_for(config),
    threads=config.data.threads,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )


def evaluate(
  task: Task,
  evaluate_step: Callable,
  params: Any,
  model_state: Any,
  constants: Any,
  batches: Iterable[dict[str, np.ndarray]],
  take_rows: TakeRows | None = None,
) -> Figures:
  """Returns the task's figures over all batches.

  Args:
    task: gives the names of a batch's arrays, and the figures.
    evaluate_step: of `make_evaluate`.
    params: replicated.
    model_state: replicated.
    constants: of the task, replicated.
    batches: of `split_batches`.
    take_rows: called per batch with this process's examples: the batch's arrays, `example` (their
      numbers in the split) among them, and the rows of the task's evaluation.

  Raises:
    ValueError: there were no examples.
  """
  total: dict[str, Any] = {}
  names = (*task.element_spec, "mask")
  for batch in batches:
    result = evaluate_step(
      params, model_state, constants, parallel.split({name: batch[name] for name in names})
    )
    total = add_sums(total, parallel.unreplicate(result["sums"]))
    if take_rows is not None:
      mask, rows = batch["mask"], parallel.join(result["rows"])
      take_rows(
        {name: value[mask] for name, value in batch.items()},
        {name: value[mask] for name, value in rows.items()},
      )
  return task.summarize(total)


def add_sums(total: Mapping[str, Any], sums: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a running total with one batch's sums, in float64; what it lacks counts as zero."""
  return {
    name: total.get(name, 0.0) + np.asarray(value, np.float64) for name, value in sums.items()
  }
