"""Arithmetic coding of tokens with an autoregressive model's own probabilities.

Coder and decoder run the same one-token program on batches of one shape and compute probabilities
from its logits on the host. So both compute identical bits on devices of one kind with identical
software versions. Several windows are coded side by side; each is a lane.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from vitx.config.errors import MissingExtraError
from vitx.inference.decoding import next_logits


class WindowGroup(NamedTuple):
  """A group of windows that are coded together, each as a lane.

  Attributes:
    starts: The index of the first token of each window.
    first, stop: The range of places to code in each window: first ... stop - 1. Tokens at earlier
      places are known from other groups.
  """

  starts: np.ndarray
  first: int
  stop: int


def group_windows(count: int, size: int, lanes: int) -> list[WindowGroup]:
  """Cuts a sequence into windows as evaluation does without a minimum context.

  Windows do not overlap. Remaining tokens are coded as the end of one more window, which ends with
  the sequence. A sequence shorter than a window is coded as the beginning of one window.

  Args:
    count: The number of tokens of the sequence.
    size: The number of tokens of a window, N.
    lanes: The number of windows in a group.
  """
  starts = np.arange(count // size) * size
  groups = [WindowGroup(starts[i : i + lanes], 0, size) for i in range(0, starts.size, lanes)]
  rest = count % size
  if rest and starts.size:
    groups.append(WindowGroup(np.array([count - size]), size - rest, size))
  elif rest:
    groups.append(WindowGroup(np.array([0]), 0, rest))
  return groups


@dataclasses.dataclass(frozen=True)
class WindowCoder:
  """Codes tokens with a model's probabilities, several windows side by side.

  Attributes:
    model: A model with `init_cache`, see `next_logits`.
    variables: The model's variable collections.
    size: The number of tokens of the model's window, N.
    lanes: The number of windows coded at a time, which is the model's batch size.
    progress: A function called with the number of tokens just finished.
  """

  model: nn.Module
  variables: Mapping[str, Any]
  size: int
  lanes: int
  progress: Callable[[int], Any] = lambda tokens: None

  def encode(self, tokens: np.ndarray) -> tuple[bytes, float]:
    """Codes the integers `tokens`, (n,), all in the model's vocabulary.

    Returns:
      The code, and the negative log-likelihood of the tokens in bits. The code is longer than this
      by less than a hundred bits plus the effect of rounding the probabilities to 24 bits.

    Raises:
      MissingExtraError: `constriction` is not installed.
    """
    coder, categorical = _make_coder("RangeEncoder")
    tokens, bits = tokens.astype(np.int32), 0.0

    def choose(places: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
      nonlocal bits
      own = tokens[places]
      coder.encode(own, categorical, probabilities)
      share = np.take_along_axis(probabilities, own[:, None], axis=1)
      bits -= float(np.log2(np.maximum(share, 2.0**-24)).sum())
      return own

    self._visit(tokens, choose)
    return coder.get_compressed().astype("<u4").tobytes(), bits

  def decode(self, code: bytes, count: int) -> np.ndarray:
    """Returns the tokens of a code, int32 (count,).

    A code that was made with other probabilities decodes to wrong tokens without an error. Store a
    digest of the tokens with the code.

    Raises:
      MissingExtraError: `constriction` is not installed.
    """
    words = np.frombuffer(code, "<u4").astype(np.uint32)
    coder, categorical = _make_coder("RangeDecoder", words)
    tokens = np.zeros(count, np.int32)
    self._visit(tokens, lambda _, probabilities: coder.decode(categorical, probabilities))
    return tokens

  def _visit(
    self, tokens: np.ndarray, choose: Callable[[np.ndarray, np.ndarray], np.ndarray]
  ) -> None:
    """Sets all tokens to `choose(places, probabilities)`, place by place, in the code's order."""
    for group in group_windows(tokens.size, self.size, self.lanes):
      for place, probabilities in self._probabilities(tokens, group):
        own = group.starts + place
        tokens[own] = choose(own, probabilities)
        self.progress(own.size)

  def _probabilities(
    self, tokens: np.ndarray, group: WindowGroup
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each coded place and its probabilities (windows, V), then reads the place's tokens."""
    cache = self.model.init_cache(self.lanes)  # type: ignore[attr-defined]
    previous = np.zeros((self.lanes, 1), np.int32)
    used = group.starts.size
    for place in range(group.stop):
      if place:
        previous[:used, 0] = tokens[group.starts + place - 1]
      at = np.array([place], np.int32)
      logits, cache = _step(self.model, self.variables, cache, previous.copy(), at)
      if place >= group.first:
        yield place, _softmax(np.asarray(logits)[:used])


def _softmax(logits: np.ndarray) -> np.ndarray:
  """Returns float32 probabilities (n, V), which are rounded from a softmax in float64."""
  weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
  return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


_step = partial(jax.jit, static_argnums=0, donate_argnums=2)(next_logits)


def _make_coder(name: str, *given: np.ndarray) -> tuple[Any, Any]:
  """Returns a coder from `constriction` and the family of distributions that it codes with."""
  try:
    from constriction import stream
  except ImportError as error:
    raise MissingExtraError("arithmetic coding", "compress") from error
  return getattr(stream.queue, name)(*given), stream.model.Categorical(perfect=False)
