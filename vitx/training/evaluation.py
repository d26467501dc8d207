"""Evaluates parameters over a split: every example exactly once, on any number of devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vitx.config.errors import ConfigError
from vitx.data.batches import evaluation_batches
from vitx.data.dataset import Examples
from vitx.tasks.base import Figures, Task
from vitx.training import parallel
from vitx.training.step import TrainState, evaluation_step

# Takes this process's examples of a batch: their arrays, and the rows of the task's evaluation.
TakeRows = Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], None]


def make_evaluate(task: Task, run: parallel.Runner = parallel.at_once) -> Callable:
  """Returns the evaluation step on every device: `(params, model_state, constants, batch)`.

  Args:
    task: that is evaluated.
    run: calls the compiler, see `parallel.compile_for`.
  """
  return parallel.compile_once(evaluation_step(task, parallel.AXIS), run)


def batch_size_for(config: Any) -> int:
  """Returns the configured evaluation batch, rounded up to what the devices share evenly."""
  size = config.evaluation.batch_size or config.batch_size
  return -(-size // jax.device_count()) * jax.device_count()


def count_batches(config: Any, examples: int) -> int:
  """Returns how many batches so many examples make."""
  return -(-examples // batch_size_for(config))


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
  one = {"": params}
  return evaluate_each(task, evaluate_step, one, model_state, constants, batches, take_rows)[""]


def evaluate_each(
  task: Task,
  evaluate_step: Callable,
  params: Mapping[str, Any],
  model_state: Any,
  constants: Any,
  batches: Iterable[dict[str, np.ndarray]],
  take_rows: TakeRows | None = None,
) -> dict[str, Figures]:
  """Returns the figures of several sets of parameters, by name; the batches are read once.

  Args:
    params: by name, replicated; `take_rows` gets the rows of the first. The others as `evaluate`
      has them.

  Raises:
    ValueError: there were no examples.
  """
  totals: dict[str, dict[str, Any]] = {name: {} for name in params}
  first = next(iter(params))
  for batch in batches:
    share = parallel.split({name: batch[name] for name in (*task.element_spec, "mask")})
    for name, tree in params.items():
      result = evaluate_step(tree, model_state, constants, share)
      totals[name] = add_sums(totals[name], parallel.unreplicate(result["sums"]))
      if take_rows is not None and name == first:
        mask, rows = batch["mask"], parallel.join(result["rows"])
        take_rows(
          {name: value[mask] for name, value in batch.items()},
          {name: value[mask] for name, value in rows.items()},
        )
  return {name: task.summarize(total) for name, total in totals.items()}


def check_weights(weights: tuple[str, ...], ema_decay: float) -> None:
  """Raises ConfigError unless there are such weights, each said once.

  Args:
    weights: `config.evaluation.weights`: which are evaluated; the first chooses the best.
    ema_decay: `config.ema_decay`.
  """
  field = f"evaluation.weights={tuple(weights)!r}"
  if not weights or len(set(weights)) < len(weights):
    raise ConfigError(
      f"{field} must name ema, raw or both, each once; the first chooses the best checkpoint"
    )
  if len(weights) > 1 and not ema_decay:
    raise ConfigError(
      f"{field} compares a moving average with the weights themselves, but ema_decay={ema_decay}"
      " keeps none; set ema_decay, such as 0.9999, or leave evaluation.weights out"
    )


def choose_params(state: TrainState, weights: Iterable[str]) -> dict[str, Any]:
  """Returns the parameters of a state by name: ema, raw. Without an average, ema is raw."""
  trees = {"ema": state.averaged, "raw": state.params}
  return {name: trees[name] for name in weights}


def join_figures(by_name: Mapping[str, Figures]) -> Figures:
  """Returns the first figures as they are, and the others with `NAME_` before each of theirs."""
  (_, joined), *others = by_name.items()
  for name, figures in others:
    joined = joined | {f"{name}_{figure}": value for figure, value in figures.items()}
  return joined


def describe_figures(task: Task, figures: Figures, weights: Iterable[str]) -> str:
  """Returns the task's words for figures of `join_figures`; the first weights need no name."""
  _, *others = weights
  words = [task.describe(figures)]
  for name in others:
    own = {k.removeprefix(f"{name}_"): v for k, v in figures.items() if k.startswith(f"{name}_")}
    words.append(f"{name}: {task.describe(own)}")
  return "; ".join(words)


def add_sums(total: Mapping[str, Any], sums: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a running total with one batch's sums, in float64; what it lacks counts as zero."""
  return {
    name: total.get(name, 0.0) + np.asarray(value, np.float64) for name, value in sums.items()
  }
