"""Sampling from an autoregressive model, token by token with cached keys and values."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vitx.config.checks import Positive, PositiveInt, Share, check_fields
from vitx.config.errors import ConfigError

CHUNKS = 50  # The number of calls per sequence; progress is reported between them.


@dataclasses.dataclass(frozen=True)
class Sampling:
  """The settings by which the next token is drawn from a model's logits.

  Attributes:
    temperature: The divisor of the logits; 1 draws from the model itself.
    top_k: A number k: only the k most probable tokens, and tokens tied with the k-th, may be drawn;
      `None` means all tokens.
    top_p: A probability p: only the most probable tokens may be drawn, as few as reach a total
      probability of p; `None` means all tokens.
  """

  temperature: Positive = 1.0
  top_k: PositiveInt | None = None
  top_p: Share | None = None

  def __post_init__(self):
    """Raises ConfigError if a value is out of range, or if both `top_k` and `top_p` are set."""
    check_fields(type(self), dataclasses.asdict(self), "")
    if self.top_k is not None and self.top_p is not None:
      raise ConfigError(f"top_k={self.top_k} and top_p={self.top_p} are both set; set one.")

  def scale(self, logits: jax.Array) -> jax.Array:
    """Divides logits (..., V) by the temperature; tokens that are excluded get -inf."""
    logits = logits / self.temperature
    if self.top_k is not None:
      lowest = jax.lax.top_k(logits, min(self.top_k, logits.shape[-1]))[0][..., -1:]
    elif self.top_p is not None:
      ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
      share = jax.nn.softmax(ordered, axis=-1)
      before = jnp.cumsum(share, axis=-1) - share  # It is 0 for the first token, which is kept.
      lowest = jnp.min(jnp.where(before < self.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
    else:
      return logits
    return jnp.where(logits < lowest, -jnp.inf, logits)


def next_logits(
  model: nn.Module, variables: Mapping[str, Any], cache: Any, previous: jax.Array, at: jax.Array
) -> tuple[jax.Array, Any]:
  """Computes the logits of the token at one place, given the tokens before it.

  Args:
    model: The model, called as `model.apply(variables, previous, at=at, mutable=["cache"])`.
    variables: The model's variable collections without the cache.
    cache: The cache of all earlier places; `model.init_cache(B)` is an empty one.
    previous: The token at the place before, integers (B, 1); ignored for place 0. Earlier tokens
      are in the cache.
    at: The place, int32 (1,).

  Returns:
    The logits, float32 (B, V), and the new cache.
  """
  collections = {**variables, "cache": cache}
  logits, changed = model.apply(collections, previous, at=at, mutable=["cache"])
  return logits[:, 0].astype(jnp.float32), changed["cache"]


def sample_tokens(
  model: nn.Module,
  variables: Mapping[str, Any],
  prompts: np.ndarray,
  length: int,
  sampling: Sampling,
  *,
  seed: int = 0,
  first: int = 0,
  progress: Callable[[int], Any] = lambda places: None,
) -> np.ndarray:
  """Completes sequences whose first tokens are given, token by token.

  The random draw of a token depends only on the seed, its place and the number of its example. So a
  sample does not depend on the size of the batch, except by the rounding of the logits.

  Args:
    model: A model with `init_cache`, see `next_logits`.
    variables: The model's variable collections.
    prompts: The beginnings: the first P < N tokens of each sequence, integers (B, P).
    length: The number of tokens of a whole sequence, N.
    sampling: The rule by which tokens are drawn.
    seed: The random seed.
    first: The number of the first example; the examples are numbered from it.
    progress: A function called with the number of places just finished.

  Returns:
    The tokens, int32 (B, N), prompts included.
  """
  batch, prompt_length = prompts.shape
  tokens = np.zeros((batch, length), np.int32)
  tokens[:, :prompt_length] = prompts
  state = (model.init_cache(batch), jnp.asarray(tokens))  # type: ignore[attr-defined]
  numbers = jnp.arange(first, first + batch, dtype=jnp.int32)
  size = math.ceil(length / CHUNKS)
  for start in range(0, length, size):
    stop = min(start + size, length)
    bounds = np.array([start, stop, prompt_length], np.int32)
    state = _advance(model, sampling, variables, state, bounds, numbers, np.uint32(seed))
    jax.block_until_ready(state[1])
    progress(stop - start)
  return np.asarray(state[1])


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3)
def _advance(
  model: nn.Module,
  sampling: Sampling,
  variables: Mapping[str, Any],
  state: tuple[Any, jax.Array],
  bounds: jax.Array,
  numbers: jax.Array,
  seed: jax.Array,
) -> tuple[Any, jax.Array]:
  """Samples the tokens at places bounds[0] ... bounds[1] - 1, except those before bounds[2]."""
  start, stop, prompt_length = bounds
  key = jax.random.key(seed)

  def step(at: jax.Array, state: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
    cache, tokens = state
    previous = jax.lax.dynamic_slice_in_dim(tokens, jnp.maximum(at - 1, 0), 1, axis=1)
    logits, cache = next_logits(model, variables, cache, previous, at[None])
    here = jax.random.fold_in(key, at)
    keys = jax.vmap(lambda number: jax.random.fold_in(here, number))(numbers)
    drawn = jax.vmap(jax.random.categorical)(keys, sampling.scale(logits)).astype(jnp.int32)
    known = jax.lax.dynamic_slice_in_dim(tokens, at, 1, axis=1)
    new = jnp.where(at < prompt_length, known, drawn[:, None])
    return cache, jax.lax.dynamic_update_slice_in_dim(tokens, new, at, axis=1)

  return jax.lax.fori_loop(start, stop, step, state)
