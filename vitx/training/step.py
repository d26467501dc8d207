"""The training and evaluation steps: pure functions of one device's share of a batch.

They are written once for all tasks and for any number of devices: collective operations use the
name of the device axis.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from vitx.config.fields import RunSettings
from vitx.models import frozen, logged, lora
from vitx.models.stacked import stack
from vitx.ops import replicas
from vitx.tasks.base import Batch, Task, bind
from vitx.training.parameters import map_named, parameter_names

GROWTH_INTERVAL = 2000  # steps without an overflow after which a loss scale is doubled
LARGEST = 2.0**24


class LossScale(struct.PyTreeNode):
  """Dynamic loss scaling for float16 (Micikevicius et al. 2018, section 3.2).

  The factor on the loss is halved when a gradient overflows, but never below 1, and doubled after
  2,000 steps without an overflow.

  Attributes:
    value: The factor, a float32 scalar.
    good_steps: The number of steps since the factor last changed, an int32 scalar.
  """

  value: jax.Array
  good_steps: jax.Array

  @classmethod
  def create(cls) -> "LossScale":
    """Returns a scale of 2^16 (Child et al. 2019, section 6)."""
    return cls(value=jnp.float32(2.0**16), good_steps=jnp.int32(0))

  def adjust(self, finite: jax.Array) -> "LossScale":
    """Returns the scale after a step, given whether all its gradients were finite."""
    grow = finite & (self.good_steps + 1 >= GROWTH_INTERVAL)
    value = jnp.where(grow, jnp.minimum(self.value * 2, LARGEST), self.value)
    value = jnp.where(finite, value, jnp.maximum(self.value / 2, 1.0))
    return LossScale(value, jnp.where(finite & ~grow, self.good_steps + 1, 0))


class TrainState(struct.PyTreeNode):
  """The training state: everything that a step changes.

  Attributes:
    step: The number of updates done, an int32 scalar.
    params: The learned parameters, float32.
    model_state: The model's other collections (batch statistics, fixed features).
    opt_state: The optimizer's state.
    ema: The moving average of `params`, or None.
    loss_scale: The loss scale for float16, else None.
    plateau: The factor on the learning rate, a float32 scalar; the plateau schedule sets it after
      an evaluation.
    squares: The sum of the squared learning rates so far, a float32 scalar, with the optimizer
      schedule_free; otherwise None.
  """

  step: jax.Array
  params: Any
  model_state: Any
  opt_state: Any
  ema: Any
  loss_scale: LossScale | None
  plateau: jax.Array
  squares: jax.Array | None = None


class Rates(struct.PyTreeNode):
  """The numbers of a run that are arguments of its program, so that other runs can share it.

  Attributes:
    seed: The seed of all random draws of training, a uint32 scalar; keys are folded from (seed,
      step, index in the global batch).
    learning_rate: The peak of the learning rate, a float32 scalar.
  """

  seed: Any
  learning_rate: Any

  @classmethod
  def create(cls, seed: int = 0, learning_rate: float = 1.0) -> "Rates":
    """Returns the arrays of a seed below 2**32 and a learning rate, on the host."""
    return cls(np.uint32(seed), np.float32(learning_rate))


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
  """A training step, with all settings that decide its program.

  Attributes:
    task: The task, which gives the loss.
    optimizer: The optimizer, whose updates are not yet multiplied by the learning rate.
    schedule: The share of the peak learning rate as a function of the step.
    grad_accum_steps: The number of micro-batches per step.
    ema_decay: The decay of the moving average of the parameters; 0 keeps no average.
    ema_warmup: Whether the average forgets faster at first: after n updates its decay is at most
      (1 + n) / (10 + n).
    interpolation: The share of the average in the point at which gradients are taken, the `b1` of
      the optimizer schedule_free; 0 for other optimizers.
    half: Whether the model computes in float16, so that the loss is scaled (`LossScale`).
    cycle: The number of layers after which the kinds of layers repeat, if the state stacks the
      parameters of layers of one kind in one array (see `vitx.models.stacked`); 0 without stacking.
    frozen: The names of the parameters that the optimizer does not change. Their moving averages do
      not change either, nor does the state of a module whose parameters are all frozen (see
      `vitx.models.frozen`).
    logged: The last parts of the names of parameters whose means are logged, see
      `vitx.models.logged`.
    axis: The name of the device axis; None on one device.
    initialize: The function `init_variables` of the task, jitted, so that it is traced only once.
      With adapters it returns the trained parameters alone.
  """

  task: Task
  optimizer: optax.GradientTransformation
  schedule: Callable[[jax.Array], jax.Array]
  grad_accum_steps: int = RunSettings.grad_accum_steps
  ema_decay: float = RunSettings.ema_decay
  ema_warmup: bool = RunSettings.ema_warmup
  interpolation: float = 0.0
  half: bool = False
  cycle: int = 0
  frozen: frozenset[str] = frozenset()
  logged: tuple[str, ...] = ()
  axis: str | None = None
  initialize: Any = None

  def init(self, key: jax.Array) -> TrainState:
    """Returns the state before the first step."""
    return self.begin(self.initialize(key))

  def begin(self, variables: Mapping[str, Any]) -> TrainState:
    """Returns the state before the first step, given a model's variables with unstacked layers."""
    params = stack(variables["params"], self.cycle)
    return TrainState(
      step=jnp.int32(0),
      params=params,
      model_state={name: tree for name, tree in variables.items() if name != "params"},
      opt_state=self.optimizer.init(params),
      # A copy: state is donated to the step, and a buffer may be donated only once.
      ema=jax.tree.map(jnp.copy, params) if self.ema_decay or self.interpolation else None,
      loss_scale=LossScale.create() if self.half else None,
      plateau=jnp.float32(1),
      squares=jnp.float32(0) if self.interpolation else None,
    )

  def train(
    self, state: TrainState, rates: Rates, constants: Any, batch: Batch, stop: jax.Array
  ) -> tuple[TrainState, dict[str, jax.Array], jax.Array]:
    """Makes one update.

    Args:
      state: The training state, replicated over the axis.
      rates: The seed and the learning rate, replicated over the axis.
      constants: The arrays that the task needs and that are neither trained nor saved, such as the
        weights of a teacher; replicated over the axis.
      batch: This device's share of the batch: the arrays of `Task.train_spec`, and `index`, the
        examples' positions in the global batch; (B, ...) each.
      stop: An int32 scalar, 1 if this process was asked to end.

    Returns:
      The new state; the metrics; and whether any process was asked to end, an int32 scalar. The
      metrics are those of the task, `loss`, `gradient_norm` (of the gradient that the optimizer
      gets, before clipping), `learning_rate` and, in float16, `loss_scale` (the factor of this
      step). All results are equal on every device.
    """
    # Only Threefry draws the same numbers under `vmap` as one by one, so that results do not
    # depend on the number of devices.
    key = jax.random.fold_in(jax.random.key(rates.seed, impl="threefry2x32"), state.step)
    scale = state.loss_scale.value if state.loss_scale else jnp.float32(1)
    # The parameters of the base of adapters are frozen, and not in the state.
    names = {*parameter_names(state.params), *self.frozen}
    # Batch statistics are taken over the whole batch.
    with replicas.over(self.axis), frozen.freeze(names, self.frozen):
      loss, grads, model_state, metrics = self._gradient(state, constants, batch, key, scale)
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / scale, grads)
    loss, grads, model_state, metrics = self._mean((loss, grads, model_state, metrics))
    model_state = frozen.keep_state(state.model_state, model_state, names, self.frozen)

    rate = rates.learning_rate * self.schedule(state.step) * state.plateau
    direction, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
    new = state.replace(model_state=model_state, opt_state=opt_state)
    if self.interpolation:
      new = self._interpolate(new, direction, rate)
    else:
      params = jax.tree.map(lambda p, u: p - rate * u, state.params, direction)
      new = new.replace(params=params, ema=self._average(state, params))
    if state.loss_scale:
      finite = all_finite(grads)
      # An overflow skips the update and changes only the scale.
      new = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, state)
      new = new.replace(loss_scale=state.loss_scale.adjust(finite))
      metrics |= {"loss_scale": scale}
    metrics |= {
      "loss": loss,
      "gradient_norm": optax.tree.norm(grads),
      "learning_rate": jnp.asarray(rate, jnp.float32),
    }
    stop = jax.lax.pmax(stop, self.axis) if self.axis else stop
    return new.replace(step=state.step + 1), metrics, stop

  @functools.cached_property
  def traced(self) -> Callable:
    """Returns `train` as a function that is traced only once for equal shapes and axes."""
    return jax.jit(self.train, inline=True)

  def train_several(
    self,
    state: TrainState,
    rates: Rates,
    constants: Any,
    batches: Batch,
    count: jax.Array,
    stop: jax.Array,
  ) -> tuple[TrainState, dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """Makes several updates, one after another, in one program.

    The number of updates is an argument and not part of the program, so that a run gives the same
    bits however its steps are divided among calls of the program.

    Args:
      state: The training state, replicated over the axis.
      rates: The seed and the learning rate, replicated over the axis.
      constants: The task's constants, replicated over the axis, see `train`.
      batches: The batches of K steps, stacked: (K, B, ...), see `train`.
      count: The number of updates, at most K, an int32 scalar; the first batches are used.
      stop: An int32 scalar, 1 if this process was asked to end.

    Returns:
      The new state; the metrics of each step, (K,), of which the first `count` are valid; the
      figures that `measure` returns for the new state; and whether any process was asked to end.
    """
    first = jax.tree.map(lambda x: x[0], batches)
    _, shapes, _ = jax.eval_shape(self.traced, state, rates, constants, first, stop)
    (steps,) = {x.shape[0] for x in jax.tree.leaves(batches)}
    blank = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), shapes)

    def body(i, carry):
      state, every, _ = carry
      batch = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), batches)
      state, metrics, stops = self.traced(state, rates, constants, batch, stop)
      return state, jax.tree.map(lambda all, one: all.at[i].set(one), every, metrics), stops

    state, metrics, stop = jax.lax.fori_loop(0, count, body, (state, blank, stop))
    # The figures are measured outside the loop, because they might change the bits of its results.
    return state, metrics, self.measure(state), stop

  def measure(self, state: TrainState) -> dict[str, jax.Array]:
    """Returns the logged figures of a state: `parameter_norm`, and means of logged parameters."""
    norm = optax.tree.norm(optax.tree.cast(state.params, jnp.float32))
    return {"parameter_norm": norm, **logged.means(state.params, self.logged)}

  def _gradient(
    self, state: TrainState, constants: Any, batch: Batch, key: jax.Array, scale: jax.Array
  ):
    """Computes the gradient on this device's share of a batch, one micro-batch after another."""
    task = bind(self.task, constants)

    def scaled(params, model_state, micro):
      whole = lora.merge(params, constants)
      loss, (new_state, metrics) = task.loss(whole, model_state, constants, micro, key, state.step)
      return loss * scale, (loss, new_state, metrics)

    differentiate = jax.grad(scaled, has_aux=True)
    if self.grad_accum_steps == 1:
      grads, (loss, model_state, metrics) = differentiate(state.params, state.model_state, batch)
      return loss, grads, model_state, metrics

    def body(carry, micro):
      model_state, total = carry
      grads, (loss, model_state, metrics) = differentiate(state.params, model_state, micro)
      total = jax.tree.map(jnp.add, total, (loss, grads))
      return (model_state, total), metrics

    micros = jax.tree.map(lambda x: x.reshape(self.grad_accum_steps, -1, *x.shape[1:]), batch)
    zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, state.params))
    (model_state, total), metrics = jax.lax.scan(body, (state.model_state, zero), micros)
    loss, grads = jax.tree.map(lambda x: x / self.grad_accum_steps, total)
    return loss, grads, model_state, jax.tree.map(lambda m: m.mean(0), metrics)

  def _mean(self, tree: Any) -> Any:
    if not self.axis:
      return tree
    # Integers (counters, indices) are the same on every device and have no mean.
    return jax.tree.map(
      lambda x: jax.lax.pmean(x, self.axis) if jnp.issubdtype(x.dtype, jnp.inexact) else x, tree
    )

  def _average(self, state: TrainState, params: Any) -> Any:
    if state.ema is None:
      return None
    decay = jnp.float32(self.ema_decay)
    if self.ema_warmup:  # so that the random initialization is soon forgotten
      count = state.step.astype(jnp.float32)
      decay = jnp.minimum(decay, (1 + count) / (10 + count))
    moved = jax.tree.map(lambda e, p: decay * e + (1 - decay) * p, state.ema, params)
    return self._keep_frozen(state.ema, moved)

  def _interpolate(self, state: TrainState, direction: Any, rate: jax.Array) -> TrainState:
    """Makes a schedule-free update (Defazio et al. 2024) of the parameters and their average.

    The parameters are y = b x + (1 - b) z, between the average x and the point z, which descends.
    """
    assert state.squares is not None
    b, squares = self.interpolation, state.squares + rate**2
    share = jnp.where(squares > 0, rate**2 / squares, 0.0)  # of z in the average
    z = jax.tree.map(
      lambda y, x, u: (y - b * x) / (1 - b) - rate * u, state.params, state.ema, direction
    )
    x = jax.tree.map(lambda x, z: (1 - share) * x + share * z, state.ema, z)
    y = jax.tree.map(lambda x, z: b * x + (1 - b) * z, x, z)
    params, ema = self._keep_frozen(state.params, y), self._keep_frozen(state.ema, x)
    return state.replace(params=params, ema=ema, squares=squares)

  def _keep_frozen(self, before: Any, after: Any) -> Any:
    """Returns parameters after an update, except frozen ones, which rounding would move."""
    stays = map_named(lambda name, _: name in self.frozen, after)
    return jax.tree.map(lambda stay, a, b: a if stay else b, stays, before, after)


def all_finite(tree: Any) -> jax.Array:
  """Returns whether every entry of every leaf is finite, as a boolean scalar."""
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
