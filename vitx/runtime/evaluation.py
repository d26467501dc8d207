"""Evaluates parameters over a split: every example exactly once, on any number of devices."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vitx.config.fields import RunSettings
from vitx.data.batches import evaluation_batches
from vitx.data.dataset import Examples
from vitx.models import lora
from vitx.runtime import parallel
from vitx.runtime.progress import count_bar
from vitx.tasks.base import Batch, Task, bind
from vitx.tasks.figures import Figures, describe

# A function of the arrays of this process's examples in a batch, and of each example's results.
TakeRows = Callable[[dict[str, np.ndarray], dict[str, np.ndarray]], None]


def evaluation_shapes(task: Task, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of an evaluation batch of `rows` examples."""
  mask = jax.ShapeDtypeStruct((rows,), np.bool_)
  return stack_shapes(task.element_spec, rows) | {"mask": mask}


def stack_shapes(
  spec: Mapping[str, jax.ShapeDtypeStruct], rows: int
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the shapes of the arrays of `rows` examples."""
  return {name: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype) for name, x in spec.items()}


def evaluation_step(task: Task, axis: str | None = None) -> Callable:
  """Returns the function that evaluates one batch for a task; it runs on every device.

  The function takes `(params, model_state, constants, batch)` and returns the results of
  `Task.evaluate`, with sums over all devices. The dict `gathered` has the arrays of all devices in
  the order of the batch, and its `mask`; it is empty if the task gathers nothing.

  Args:
    task: The task, which gives the sums and rows of one device's share.
    axis: The name of the device axis over which sums are taken; None on one device.
  """

  def evaluate(
    params: Any, model_state: Any, constants: Any, batch: Batch
  ) -> dict[str, dict[str, jax.Array]]:
    params = lora.merge(params, constants)
    result = bind(task, constants).evaluate(params, model_state, constants, batch)
    gathered = result.get("gathered", {})
    if gathered:
      gathered = {**gathered, "mask": batch["mask"]}
    if axis:
      gathered = jax.lax.all_gather(gathered, axis, tiled=True)
      result = result | {"sums": jax.lax.psum(result["sums"], axis)}
    return result | {"gathered": gathered}

  return evaluate


def make_evaluate(task: Task, what: str = "") -> Callable:
  """Returns the evaluation step, which evaluates one batch on all devices.

  The step takes `(params, model_state, constants, batch)` and is compiled when it is first called.

  Args:
    task: The task that is evaluated.
    what: The text that the console shows during a long compilation, see `parallel.compile_once`.
  """
  return parallel.compile_once(evaluation_step(task, parallel.AXIS), what)


def batch_size_for(settings: RunSettings, size: int | None = None) -> int:
  """Returns `size`, or else the settings' batch size, rounded up to a multiple of the devices."""
  size = size or settings.evaluation.batch_size or settings.batch_size
  return -(-size // jax.device_count()) * jax.device_count()


def split_batches(
  settings: RunSettings, task: Task, examples: Examples, size: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
  """Returns an iterator over this process's batches of a split.

  The batches are padded to equal sizes; their array `mask` is False where an example is padding.

  Args:
    settings: The settings of the run.
    task: The task, which prepares the examples.
    examples: The examples of the split.
    size: The size of a batch; None for the size in the settings.
  """
  return evaluation_batches(
    examples,
    transform=task.transform(train=False),
    batch_size=batch_size_for(settings, size),
    threads=settings.data.threads,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )


def show_batches(
  settings: RunSettings, task: Task, examples: Examples, what: str
) -> Iterator[dict[str, np.ndarray]]:
  """Yields the batches of `split_batches`, and shows a progress bar with the label `what`."""
  with count_bar(what, -(-len(examples) // batch_size_for(settings)), "batch") as bar:
    for batch in split_batches(settings, task, examples):
      yield batch
      bar.update()


def evaluate(
  task: Task,
  evaluate_step: Callable,
  params: Mapping[str, Any],
  model_state: Any,
  constants: Any,
  batches: Iterable[dict[str, np.ndarray]],
  take_rows: TakeRows | None = None,
) -> dict[str, Figures]:
  """Evaluates one or several sets of parameters over a split, and reads each batch only once.

  Args:
    task: The task, which names the arrays of a batch and computes the figures from sums.
    evaluate_step: The step that `make_evaluate` returned.
    params: The sets of replicated parameters, by name, such as "ema" and "raw".
    model_state: The model's other collections, replicated.
    constants: The task's constants, such as the weights of a teacher, replicated.
    batches: The batches that `split_batches` returned.
    take_rows: A function of the batch and of the "rows" of `Task.evaluate` under the first set of
      parameters. Both have this process's examples without padding; the batch's array `example` has
      their indices in the split.

  Returns:
    The figures of each set of parameters, by the set's name.
  """
  totals: dict[str, dict[str, Any]] = {name: {} for name in params}
  parts: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in params}
  first = next(iter(params))
  for batch in batches:
    share = parallel.split({name: batch[name] for name in (*task.element_spec, "mask")})
    for name, tree in params.items():
      result = evaluate_step(tree, model_state, constants, share)
      totals[name] = add_sums(totals[name], parallel.unreplicate(result["sums"]))
      parts[name].append(parallel.unreplicate(result["gathered"]))
      if take_rows is not None and name == first:
        mask, rows = batch["mask"], parallel.join(result["rows"])
        take_rows(
          {name: value[mask] for name, value in batch.items()},
          {name: value[mask] for name, value in rows.items()},
        )
  return {name: task.summarize({**totals[name], **join_gathered(parts[name])}) for name in params}


def join_gathered(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Joins the arrays that a task gathered in each batch, and leaves out the rows of padding."""
  names = [name for name in parts[0] if name != "mask"] if parts else []
  return {name: np.concatenate([part[name][part["mask"]] for part in parts]) for name in names}


def join_figures(by_name: Mapping[str, Figures]) -> Figures:
  """Joins the figures of sets of parameters, after the first with a prefix as in "raw_top1"."""
  (_, joined), *others = by_name.items()
  for name, figures in others:
    joined = joined | {f"{name}_{figure}": value for figure, value in figures.items()}
  return joined


def describe_figures(task: Task, figures: Figures, weights: Iterable[str]) -> str:
  """Describes figures of `join_figures` for the console; `weights` names the sets of parameters."""
  _, *others = weights
  words = [describe(task.figures, figures)]
  for name in others:
    part = {k.removeprefix(f"{name}_"): v for k, v in figures.items() if k.startswith(f"{name}_")}
    words.append(f"{name}: {describe(task.figures, part)}")
  return "; ".join(words)


def add_sums(total: Mapping[str, Any], sums: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the sums over a split so far plus the sums of one batch, in float64."""
  return {
    name: total.get(name, 0.0) + np.asarray(value, np.float64) for name, value in sums.items()
  }
