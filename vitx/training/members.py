"""One program that trains several runs: members, which differ in what no shape depends on.

Each member has its own parameters, batches, seed, learning rate and weight decay. The devices share
the members out: each trains its own on whole batches, so that none waits for another. On a GPU or
TPU a device trains its members side by side (`jax.vmap`), for a small network does not fill it. On
a CPU it trains them one after another: there products with one matrix for each member took twice
the time.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vitx.training import parallel
from vitx.training.train_step import Step


@dataclasses.dataclass(frozen=True)
class Member:
  """What a run is in such a program.

  Attributes:
    seed: of all that its training draws.
    variant: the number of its step among those of the program.
    found: what its task found in its training examples, see `Task.found_in_data`.
  """

  seed: int
  variant: int
  found: Any


@dataclasses.dataclass(frozen=True)
class Program:
  """Training steps of members as compiled for every device of this process.

  What it computes of a member does not depend on which others there are.

  Attributes:
    compiled: of `train_members`.
    places: for members on a device.
    steps: the most that one dispatch makes.
  """

  compiled: jax.stages.Compiled
  places: int
  steps: int

  def __call__(
    self,
    states: Any,
    constants: Any,
    members: Sequence[Member],
    batches: Sequence[Sequence[Mapping[str, np.ndarray]]],
    stop: bool,
  ) -> tuple[Any, dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """Makes a step of every member for each of its batches.

    Args:
      states: of `parallel.deal`, (devices, P, ...).
      constants: of the task, replicated.
      members: as they were dealt.
      batches: of each member as many, for consecutive steps.
      stop: whether this process was asked to end.

    Returns:
      The new states; metrics of each member and step, (devices, P, K); what `Step.measure` says of
      each member, (devices, P); `stop` on every device.
    """
    fed = [_stack_steps(each, self.steps) for each in batches]
    arguments = arrange(members, fed, self.places, len(batches[0]), stop)
    return self.compiled(states, constants, *arguments)


def train_members(variants: Sequence[Step]) -> Callable:
  """Returns a device's part of a program.

  Args:
    variants: the steps that members may have; they differ in optimizer and schedule alone.
  """
  train = _train_side_by_side if jax.default_backend() != "cpu" else _train_in_turn

  def train_one(
    state: Any, batches: Any, seed: jax.Array, variant: jax.Array, found: Any, *shared: Any
  ) -> tuple[Any, tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
    constants, count = shared
    step = dataclasses.replace(
      variants[0],
      axis=None,
      task=variants[0].task.with_found(found),
      seed=seed,
      optimizer=_choose_optimizer([each.optimizer for each in variants], variant),
      schedule=lambda at: jnp.stack([each.schedule(at) for each in variants])[variant],
    )
    state, metrics, measured, _ = step.train_several(state, constants, batches, count, jnp.int32(0))
    return state, (metrics, measured)

  def run(
    states: Any,
    constants: Any,
    batches: Any,
    seeds: jax.Array,
    numbers: jax.Array,
    found: Any,
    here: jax.Array,
    count: jax.Array,
    stop: jax.Array,
  ) -> tuple[Any, dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    own = (states, batches, seeds, numbers, found)
    states, (metrics, measured) = train(train_one, own, here, (constants, count))
    return states, metrics, measured, stop

  return run


def arrange(
  members: Sequence[Member], fed: Sequence[Any], places: int, count: int, stop: bool
) -> tuple[Any, ...]:
  """Returns what `train_members` takes after states and constants, on the devices.

  Args:
    members: at least one.
    fed: batches of each member, (K, B, ...).
    places: for members on a device.
    count: how many of the K steps are made.
    stop: whether this process was asked to end.
  """
  return (
    parallel.deal(fed, places),
    parallel.deal([np.uint32(member.seed) for member in members], places),
    parallel.deal([np.int32(member.variant) for member in members], places),
    parallel.deal([member.found for member in members], places),
    parallel.members_here(len(members)),
    parallel.number(count),
    parallel.number(stop),
  )


def compile_members(
  variants: Sequence[Step],
  states: Any,
  constants: Any,
  batch: Mapping[str, np.ndarray],
  steps: int,
  *,
  options: Any = None,
  run: parallel.Run = parallel.at_once,
) -> Program:
  """Compiles training steps of members for every device.

  Args:
    variants: as of `train_members`.
    states: of `parallel.deal`.
    constants: of the task, replicated.
    batch: one, of which shapes and dtypes count.
    steps: the most that one dispatch makes.
    options: for the compiler.
    run: calls the compiler, see `parallel.compile_for`.
  """
  (places,) = {x.shape[1] for x in jax.tree.leaves(states)}
  blank = arrange(
    [Member(0, 0, variants[0].task.found_in_data())],
    [_stack_steps([batch], steps)],
    places,
    1,
    False,
  )
  compiled = parallel.compile_for(
    (states, constants, *blank), train_members(variants), donate=(0,), options=options, run=run
  )
  return Program(compiled, places, steps)


def _train_side_by_side(one: Callable, own: Any, here: jax.Array, shared: Any) -> Any:
  """Trains what stands in every place, members or copies of one, all at once."""
  return jax.vmap(one, in_axes=(0,) * len(own) + (None,) * len(shared))(*own, *shared)


def _train_in_turn(one: Callable, own: Any, here: jax.Array, shared: Any) -> Any:
  """Trains the first `here` members, one after another."""

  def pick(tree: Any, i: Any) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), tree)

  states, *others = own
  one = jax.jit(one, inline=True)  # traced once, for its shapes and for the loop's body
  _, shapes = jax.eval_shape(one, *pick(own, 0), *shared)
  (places,) = {x.shape[0] for x in jax.tree.leaves(states)}
  blank = jax.tree.map(lambda x: jnp.zeros((places, *x.shape), x.dtype), shapes)

  def body(i: jax.Array, carry: Any) -> Any:
    new = one(pick(carry[0], i), *pick(others, i), *shared)
    return jax.tree.map(lambda all, x: all.at[i].set(x), carry, new)

  return jax.lax.fori_loop(0, here, body, (states, blank))


def _choose_optimizer(
  optimizers: Sequence[optax.GradientTransformation], number: jax.Array
) -> optax.GradientTransformation:
  """Returns the optimizer of a number that is known when the program runs."""
  first = optimizers[0]
  if len(optimizers) == 1:
    return first
  updates = [each.update for each in optimizers]

  def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    return jax.lax.switch(number, updates, grads, state, params)

  return optax.GradientTransformation(first.init, update)


def _stack_steps(batches: Sequence[Mapping[str, np.ndarray]], steps: int) -> dict[str, np.ndarray]:
  """Returns batches of consecutive steps as (K, B, ...), zeros beyond those given."""
  out = {name: np.zeros((steps, *x.shape), x.dtype) for name, x in batches[0].items()}
  for place, batch in enumerate(batches):
    for name, x in batch.items():
      out[name][place] = x
  return out
