"""Logs the mean entropy of each layer's attention probabilities during training.

The entropy needs the attention matrix, which the fast implementations never compute. So whenever
training metrics are logged, the network also runs on a few fixed *validation* examples with the
implementation that computes the matrix.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from vitx.analysis.matrices import attention_entropies, expose_matrices
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.config.settings import change
from vitx.data.dataset import Examples, spread
from vitx.models import lora
from vitx.models.stacked import unstack
from vitx.runtime import evaluation, parallel
from vitx.tasks import build_task
from vitx.tasks.base import Batch, Figures, bind
from vitx.tasks.settle import Settled

Measure = Callable[[Any, Any], Figures]


def check(settings: RunSettings, *arguments: Any) -> None:
  """Checks that a network has attention probabilities, by shapes of the arguments of its step."""
  sums = jax.eval_shape(_make_step(settings, None), *arguments)
  if sums.keys() == {"count"}:
    raise ConfigError(
      f"evaluation.attention_entropy={settings.evaluation.attention_entropy}: the layers of this"
      " network have no softmax over tokens. Set it to 0, or use a token mixer that has one."
    )


def make_step(settings: RunSettings, what: str = "") -> Callable:
  """Returns a function that sums attention entropies over the examples of a batch on all devices.

  The function takes `(params, model_state, constants, batch)`. It returns a dict with the sum of
  each layer's entropies, by name, and with the number of examples as `count`. If the config asks
  for no entropy, the dict is empty.
  """
  if not settings.evaluation.attention_entropy:
    return lambda *_: {}
  return parallel.compile_once(_make_step(settings, parallel.AXIS), what)


def make_measure(
  settled: Settled, step: Callable, constants: Any, examples: Callable[[str], Examples], state: Any
) -> Measure:
  """Returns a function that measures the attention entropy of each layer during training.

  The returned function takes the replicated `(params, model_state)` and returns the entropies by
  name. `make_measure` compiles it before the first training step, because a signal during a later
  compilation would lose the steps since the last checkpoint. If the config asks for no entropy,
  nothing is read or compiled, and the returned function returns {}.

  Args:
    settled: The experiment, of which the settings and the task are read.
    step: The function that `make_step` returned.
    constants: The task's constants, replicated.
    examples: A function that returns the examples of a role, such as "validation".
    state: A replicated training state, of which only the shapes matter.
  """
  count = settled.settings.evaluation.attention_entropy
  if not count:
    return lambda params, model_state: {}
  task, some = settled.task, spread(examples("validation"), count)
  (batch,) = evaluation.split_batches(settled.settings, task, some, len(some))
  rows = parallel.split({name: batch[name] for name in (*task.element_spec, "mask")})

  def measure(params: Any, model_state: Any) -> Figures:
    jax.block_until_ready(params)  # too many programs in flight can deadlock, see `in_flight`
    sums = parallel.unreplicate(step(params, model_state, constants, rows))
    total = float(sums.pop("count"))
    return {name: float(value) / total for name, value in sums.items()}

  measure(state.params, state.model_state)
  return measure


def _make_step(settings: RunSettings, axis: str | None) -> Callable[[Any, Any, Any, Batch], Any]:
  """Returns a function that sums each layer's entropy over a batch, and counts the examples."""
  task = build_task(change(settings, {"model": expose_matrices(settings.model)}))

  def attention_entropy(
    params: Any, model_state: Any, constants: Any, batch: Batch
  ) -> dict[str, jax.Array]:
    params = unstack(lora.merge(params, constants))
    variables, inputs = {"params": params, **model_state}, bind(task, constants)
    entropies = attention_entropies(task.model, variables, inputs.model_inputs(batch))
    sums = {name: jnp.sum(jnp.where(batch["mask"], x, 0.0)) for name, x in entropies.items()}
    sums["count"] = jnp.sum(batch["mask"], dtype=jnp.float32)
    return jax.lax.psum(sums, axis) if axis else sums

  return attention_entropy
