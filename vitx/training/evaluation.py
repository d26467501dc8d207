"""Evaluates parameters over a split: every example exactly once, on any number of devices."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from vitx.data.batches import evaluation_batches
from vitx.data.sources import Examples
from vitx.tasks.classification import Task
from vitx.training import metrics, parallel
from vitx.training.train_step import evaluation_step


def make_evaluate(task: Task) -> Callable:
  """The evaluation step on every device: `(params, model_state, batch) -> sums and rows`."""
  return parallel.compiled_once(evaluation_step(task, parallel.AXIS))


def batch_size_for(config: Any) -> int:
  """The configured evaluation batch, rounded up to what the devices share evenly."""
  size = config.evaluation.batch_size or config.batch_size
  return -(-size // jax.device_count()) * jax.device_count()


def split_batches(config: Any, examples: Examples) -> Iterator[dict[str, np.ndarray]]:
  """This process's padded and masked batches over a split."""
  return evaluation_batches(
    examples,
    batch_size=batch_size_for(config),
    stored_size=config.data.stored_size,
    fit=config.data.fit,
    threads=config.data.threads,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )


def evaluate(
  evaluate_step: Callable,
  params: Any,
  model_state: Any,
  batches: Iterable[dict[str, np.ndarray]],
  rows: Callable[[np.ndarray, np.ndarray], None] | None = None,
) -> dict[str, Any]:
  """Figures over all batches (`metrics.summarize`).

  Args:
    evaluate_step: of `make_evaluate`.
    params: replicated.
    model_state: replicated.
    batches: of `split_batches`.
    rows: called per batch with this process's examples: their numbers (n,), probabilities (n, K).

  Raises:
    ValueError: there were no examples.
  """
  total: dict[str, Any] = {"count": 0.0}
  for batch in batches:
    fed = {name: batch[name] for name in ("image", "label", "mask")}
    result = evaluate_step(params, model_state, parallel.split(fed))
    total = metrics.add(total, parallel.unreplicate(result["sums"]))
    if rows is not None:
      probabilities = parallel.join(result["rows"]["probabilities"])
      rows(batch["example"][batch["mask"]], probabilities[batch["mask"]])
  return metrics.summarize(total)
