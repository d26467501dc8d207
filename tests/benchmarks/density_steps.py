"""Training steps and sampled tokens of density models, dense and along factorized patterns.

A step is forward pass, backward pass and Adam's update for one sequence, with recomputed blocks, as
in the paper (Child et al. 2019). The models are those of the paper with fewer layers, so that a CPU
can run them.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from vitx.benchmark.timing import check_memory, interleave
from vitx.models import model_from_config

VOCABULARY = 256
PATTERNS: dict[str, dict[str, Any]] = {
  "dense": {"name": "softmax"},
  "fixed": {"name": "fixed", "arrangement": "merged", "distinct": 4},
  "strided": dict(name="strided", arrangement="layers", form="code", local_layers=3),
}


@dataclasses.dataclass(frozen=True)
class Setup:
  """A model of the paper, with the times of an iteration in Table 2.

  Attributes:
    grid: The grid of the tokens.
    fields: The fields of the model.
    mixer: The fields of every token mixer.
    stride, summary: The numbers l and c of the patterns.
    published: The printed times by pattern; the paper names no unit.
  """

  grid: tuple[int, ...]
  fields: Mapping[str, Any]
  mixer: Mapping[str, Any]
  stride: int
  summary: int
  published: Mapping[str, float]

  @property
  def tokens(self) -> int:
    return math.prod(self.grid)


SETUPS = {
  "CIFAR-10": Setup(
    (32, 32, 3),
    {"width": 256, "num_heads": 2, "mlp_dim": 512},
    {"head_dim": 64, "value_dim": 128},
    96,
    24,
    {"dense": 0.54, "fixed": 0.47, "strided": 0.38},
  ),
  "Enwik8": Setup(
    (96, 128),
    {"width": 512, "num_heads": 8, "mlp_dim": 2048},
    {},
    128,
    32,
    {"dense": 1.31, "fixed": 0.55, "strided": 0.35},
  ),
}


def make_model(setup: Setup, pattern: str, depth: int) -> nn.Module:
  """Returns the model of one pattern with `depth` layers."""
  mixer = {**PATTERNS[pattern], **setup.mixer}
  if pattern != "dense":
    mixer["stride"] = setup.stride
  if pattern == "fixed":
    mixer["summary"] = setup.summary
  fields = {"name": "sparse_transformer", "vocabulary": VOCABULARY, "grid": setup.grid}
  fields |= {"depth": depth, "remat": True, "token_mixer": mixer, **setup.fields}
  return model_from_config(fields)


def measure_steps(
  setups: Mapping[str, Setup], depth: int, *, runs: int, say: Callable[[str], None], **effort: Any
) -> None:
  """Prints how many times faster a training step of each pattern is than the dense model's.

  The table also has the ratio of the times in Table 2 of the paper. Steps of one setup take turns.

  Args:
    setups: The setups by name.
    depth: The number of layers L, a multiple of four; the strided model repeats after four layers.
    runs: The number of runs of each setup.
    say: A function called with messages on the progress.
    **effort: Arguments of `interleave`.
  """
  print(f"Training steps, batch 1, {depth} layers, forward + backward + Adam, blocks recomputed")
  print(f"{'':<12}{'N':>8}  {'pattern':<10}{'times faster':>14}{'Table 2':>9}{'MB':>10}")
  for name, setup in setups.items():
    steps, megabytes = {}, {}
    for pattern in PATTERNS:
      say(f"{name}, N={setup.tokens}: compiling {pattern}")
      model = make_model(setup, pattern, depth)
      steps[pattern], megabytes[pattern] = _compile_step(model, setup.tokens)
    seconds: dict[str, list[float]] = {pattern: [] for pattern in PATTERNS}
    for run in range(runs):
      say(f"{name}, N={setup.tokens}: run {run + 1} of {runs}")
      for pattern, duration in interleave(steps, **effort).items():
        seconds[pattern].append(duration.seconds)
    for pattern in PATTERNS:
      ratio = statistics.median(seconds["dense"]) / statistics.median(seconds[pattern])
      published = setup.published["dense"] / setup.published[pattern]
      line = f"{name:<12}{setup.tokens:>8}  {pattern:<10}{ratio:>14.2f}{published:>9.2f}"
      print(f"{line}{megabytes[pattern]:>10.0f}", flush=True)


def _compile_step(model: nn.Module, tokens: int) -> tuple[Callable[[], None], float]:
  """Compiles a training step; returns a function that runs it, and its temporary megabytes."""
  optimizer = optax.adam(1e-4)
  batch = jax.random.randint(jax.random.key(1), (1, tokens), 0, VOCABULARY)

  def loss(params, batch):
    logits = model.apply({"params": params}, batch, train=False)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch))

  def step(params, state, batch):
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value

  params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
  state = optimizer.init(params)
  compiled = jax.jit(step).lower(params, state, batch).compile()
  size = compiled.memory_analysis().temp_size_in_bytes
  check_memory(size)
  return lambda: jax.block_until_ready(compiled(params, state, batch)), size / 1e6


def measure_sampling(
  setup: Setup, depth: int, *, runs: int, say: Callable[[str], None], **effort: Any
) -> None:
  """Prints how many times faster the last token of a sequence is sampled with the cache.

  Without the cache, the network computes all tokens again.

  Args:
    setup: The model.
    depth: The number of layers, L.
    runs: The number of runs of each pattern.
    say: A function called with messages on the progress.
    **effort: Arguments of `interleave`.
  """
  print(f"A sampled token at the end, batch 1, {depth} layers: from the cache, against all anew")
  print(f"{'pattern':<12}{'N':>8}{'times faster':>14}{'sd':>8}{'cache MB':>10}")
  for pattern in PATTERNS:
    say(f"sampling, N={setup.tokens}: {pattern}")
    model: Any = make_model(setup, pattern, depth)
    batch = jax.random.randint(jax.random.key(1), (1, setup.tokens), 0, VOCABULARY)
    params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
    cache = model.init_cache(1)
    size = sum(x.nbytes for x in jax.tree.leaves(cache)) / 1e6
    steps = {
      "cached": _compile_cached(model, params, cache, setup.tokens - 1),
      "anew": _compile_anew(model, params, batch),
    }
    times = [interleave(steps, **effort) for _ in range(runs)]
    ratios = [taken["anew"].seconds / taken["cached"].seconds for taken in times]
    spread = f"{statistics.stdev(ratios):.1f}" if runs > 1 else "-"
    line = f"{pattern:<12}{setup.tokens:>8}{statistics.median(ratios):>14.0f}{spread:>8}"
    print(f"{line}{size:>10.1f}", flush=True)


def _compile_anew(model: Any, params: Any, batch: jax.Array) -> Callable[[], None]:
  apply = jax.jit(lambda params, batch: model.apply({"params": params}, batch)[:, -1])
  return lambda: jax.block_until_ready(apply(params, batch))


def _compile_cached(model: Any, params: Any, cache: Any, place: int) -> Callable[[], None]:
  """Returns a function that computes the logits of one place, and updates the cache in place."""

  def step(params, cache, previous, at):
    variables = {"params": params, "cache": cache}
    logits, changed = model.apply(variables, previous, at=at, mutable=["cache"])
    return logits, changed["cache"]

  compiled = jax.jit(step, donate_argnums=1)
  previous, at = jnp.zeros((1, 1), jnp.int32), jnp.array([place], jnp.int32)
  held = [cache]

  def run() -> None:
    logits, held[0] = compiled(params, held[0], previous, at)
    jax.block_until_ready((logits, held[0]))

  return run
