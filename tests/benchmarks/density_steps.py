"""Whole training steps and sampled tokens of density models, dense and along the patterns.

A step is forward, backward and an Adam update of one sequence, blocks recomputed as the article
does. The models are the article's but for their depth: a few layers, so that a CPU ends.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from vitx.benchmark.timing import TooLargeError, check_memory, interleave
from vitx.config.errors import ConfigError
from vitx.models import model_from_config

VOCABULARY = 256
PATTERNS: dict[str, dict[str, Any]] = {
  "dense": {"name": "softmax"},
  "fixed": {"name": "fixed", "arrangement": "merged", "distinct": 4},
  "strided": {
    **{"name": "strided", "arrangement": "layers", "form": "code"},
    **{"local_layers": 3},
  },
}


@dataclasses.dataclass(frozen=True)
class Setup:
  """A model of the article and the times of an iteration that its Table 2 gives for it.

  Attributes:
    grid: of its places.
    fields: of the model.
    mixer: fields of every token mixer.
    stride, summary: l and c of the patterns.
    published: by pattern, as printed; the article names no unit.
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


@dataclasses.dataclass(frozen=True)
class Measured:
  """One model.

  Attributes:
    setup, pattern: names.
    tokens: N.
    seconds: of the step, the median of each run.
    temporary_bytes: of the step, as compiled.
    published: how many times faster than the dense model the article prints.
    note: why it was not run.
  """

  setup: str
  pattern: str
  tokens: int
  seconds: tuple[float, ...] = ()
  temporary_bytes: int | None = None
  published: float | None = None
  note: str = ""


def make_model(setup: Setup, pattern: str, depth: int) -> nn.Module:
  """Returns the model of one pattern with `depth` layers."""
  mixer = {**PATTERNS[pattern], **setup.mixer}
  if pattern != "dense":
    mixer["stride"] = setup.stride
  if pattern == "fixed":
    mixer["summary"] = setup.summary
  return model_from_config(
    {
      "name": "sparse_transformer",
      "vocabulary": VOCABULARY,
      "grid": setup.grid,
      "depth": depth,
      "remat": True,
      "token_mixer": mixer,
      **setup.fields,
    }
  )


def measure_steps(
  setups: Mapping[str, Setup] = SETUPS,
  *,
  depth: int = 4,
  runs: int = 1,
  repeats: int = 1,
  seconds: float = 120.0,
  say: Callable[[str], None] = lambda message: None,
) -> list[Measured]:
  """Measures a training step of every setup and pattern; those of one setup in turns.

  Args:
    setups: by name.
    depth: L, a multiple of the four layers after which the strided model repeats.
    runs: of each setup.
    repeats: rounds in a run.
    seconds: that one step may take in a run; beyond, it gets fewer rounds.
    say: is told of progress.
  """
  rows = []
  for name, setup in setups.items():
    compiled = {}
    for pattern in PATTERNS:
      say(f"{name}, N={setup.tokens}: compiling {pattern}")
      compiled[pattern] = _compile_step(make_model(setup, pattern, depth), setup.tokens)
    steps = {pattern: run for pattern, (run, _, _) in compiled.items() if run}
    times = []
    for run in range(runs):
      say(f"{name}, N={setup.tokens}: run {run + 1} of {runs}")
      times.append(interleave(steps, repeats=repeats, seconds=seconds))
    for pattern, (_, size, note) in compiled.items():
      taken = tuple(found[pattern].seconds for found in times if pattern in found)
      published = setup.published["dense"] / setup.published[pattern]
      rows.append(Measured(name, pattern, setup.tokens, taken, size, published, note))
  return rows


def _compile_step(
  model: nn.Module, tokens: int
) -> tuple[Callable[[], None] | None, int | None, str]:
  """Returns what runs a step, None if it does not fit; its temporary bytes; and why not."""
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
  analysis = compiled.memory_analysis()
  size = None if analysis is None else analysis.temp_size_in_bytes
  try:
    check_memory(size or 0)
  except TooLargeError as error:
    return None, size, str(error)
  return lambda: jax.block_until_ready(compiled(params, state, batch)), size, ""


def format_steps(rows: Sequence[Measured], depth: int) -> str:
  """Formats the steps, each beside the setup's dense model and the article's Table 2."""
  lines = [
    f"Training steps, batch 1, {depth} layers, forward + backward + Adam, blocks recomputed",
    f"{'':<12}{'N':>8}  {'pattern':<10}{'times faster':>14}{'Table 2':>9}{'MB':>10}",
  ]
  for row in rows:
    dense = next(r for r in rows if (r.setup, r.pattern) == (row.setup, "dense"))
    ratio = "-"
    if row.seconds and dense.seconds:
      ratio = f"{statistics.median(dense.seconds) / statistics.median(row.seconds):.2f}"
    size = f"{row.temporary_bytes / 1e6:.0f}" if row.temporary_bytes else "-"
    line = f"{row.setup:<12}{row.tokens:>8}  {row.pattern:<10}{ratio:>14}{row.published:>9.2f}"
    lines.append(f"{line}{size:>10}  {row.note}".rstrip())
  return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Sampled:
  """How a cached token compares with computing the whole sequence again.

  Attributes:
    pattern: of the model.
    tokens: N.
    ratio: times faster, of each run.
    cache_bytes: of one sequence.
    note: why it was not measured.
  """

  pattern: str
  tokens: int
  ratio: tuple[float, ...] = ()
  cache_bytes: int = 0
  note: str = ""


def measure_sampling(
  setup: Setup = SETUPS["CIFAR-10"],
  *,
  depth: int = 4,
  runs: int = 3,
  repeats: int = 3,
  seconds: float = 20.0,
  say: Callable[[str], None] = lambda message: None,
) -> list[Sampled]:
  """Measures a token at the end of a sequence, from the cache and without.

  Args:
    setup: the model.
    depth: L.
    runs, repeats, seconds: as in `measure_steps`.
    say: is told of progress.
  """
  rows = []
  for pattern in PATTERNS:
    say(f"sampling, N={setup.tokens}: {pattern}")
    model: Any = make_model(setup, pattern, depth)
    batch = jax.random.randint(jax.random.key(1), (1, setup.tokens), 0, VOCABULARY)
    params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
    try:
      cache = model.init_cache(1)
    except ConfigError as error:
      rows.append(Sampled(pattern, setup.tokens, note=str(error)))
      continue
    steps = {
      "cached": _compile_cached(model, params, cache, setup.tokens - 1),
      "anew": _compile_anew(model, params, batch),
    }
    times = [interleave(steps, repeats=repeats, seconds=seconds) for _ in range(runs)]
    ratio = tuple(found["anew"].seconds / found["cached"].seconds for found in times)
    size = sum(x.nbytes for x in jax.tree.leaves(cache))
    rows.append(Sampled(pattern, setup.tokens, ratio, size))
  return rows


def _compile_anew(model: Any, params: Any, batch: jax.Array) -> Callable[[], None]:
  apply = jax.jit(lambda params, batch: model.apply({"params": params}, batch)[:, -1])
  return lambda: jax.block_until_ready(apply(params, batch))


def _compile_cached(model: Any, params: Any, cache: Any, place: int) -> Callable[[], None]:
  """Returns what computes the logits of one place; it updates the cache in its own memory."""

  def step(params, cache, previous, at):
    given = {"params": params, "cache": cache}
    logits, changed = model.apply(given, previous, at=at, mutable=["cache"])
    return logits, changed["cache"]

  compiled = jax.jit(step, donate_argnums=1)
  previous, at = jnp.zeros((1, 1), jnp.int32), jnp.array([place], jnp.int32)
  held = [cache]

  def run() -> None:
    logits, held[0] = compiled(params, held[0], previous, at)
    jax.block_until_ready((logits, held[0]))

  return run


def format_sampling(rows: Sequence[Sampled], depth: int) -> str:
  """Formats how many times faster a cached token is."""
  lines = [
    f"A sampled token at the end, batch 1, {depth} layers: from the cache, against all anew",
    f"{'pattern':<12}{'N':>8}{'times faster':>14}{'sd':>8}{'cache MB':>10}",
  ]
  for row in rows:
    middle = f"{statistics.median(row.ratio):.0f}" if row.ratio else "-"
    spread = f"{statistics.stdev(row.ratio):.1f}" if len(row.ratio) > 1 else "-"
    size = f"{row.cache_bytes / 1e6:.1f}"
    line = f"{row.pattern:<12}{row.tokens:>8}{middle:>14}{spread:>8}{size:>10}  {row.note}"
    lines.append(line.rstrip())
  return "\n".join(lines)
