"""Arithmetic coding of tokens with an autoregressive model's own probabilities.

Coder and decoder run the same one-token program on batches of one shape, and turn its logits into
probabilities in the same way on the host, so that both see the same bits: on the same kind of
device, with the same versions. Windows of the model are coded side by side in lanes.
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
  """Windows that are coded side by side.

  Attributes:
    starts: the first token of each window.
    first, stop: the places of the windows that are coded: first ... stop - 1. The tokens of the
      places before are known from other groups.
  """

  starts: np.ndarray
  first: int
  stop: int


def group_windows(count: int, size: int, lanes: int) -> list[WindowGroup]:
  """Cuts a sequence into windows as evaluation does without a minimum context.

  Windows follow each other; what remains is the end of a last window, which ends with the sequence.
  A sequence shorter than a window is the beginning of one.

  Args:
    count: tokens of the sequence.
    size: N, of a window.
    lanes: windows at a time.
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
    model: with `init_cache`, see `next_logits`.
    variables: its collections.
    size: N, tokens of the model's window.
    lanes: windows at a time: the model's batch.
    progress: called with a number of tokens that are done.
  """

  model: nn.Module
  variables: Mapping[str, Any]
  size: int
  lanes: int
  progress: Callable[[int], Any] = lambda tokens: None

  def encode(self, tokens: np.ndarray) -> tuple[bytes, float]:
    """Codes integers (n,), all in the model's vocabulary.

    Returns:
      The code, and the bits that the model's probabilities give the tokens, which the code exceeds
      by less than a hundred bits and a 24-bit rounding of the probabilities.

    Raises:
      MissingExtraError: `constriction` is not installed.
    """
    coder, categorical = _coder("RangeEncoder")()
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

    A code that was made with other probabilities gives other tokens: whoever stores one stores a
    digest too.

    Raises:
      MissingExtraError: `constriction` is not installed.
    """
    words = np.frombuffer(code, "<u4").astype(np.uint32)
    coder, categorical = _coder("RangeDecoder")(words)
    tokens = np.zeros(count, np.int32)
    self._visit(tokens, lambda _, probabilities: coder.decode(categorical, probabilities))
    return tokens

  def _visit(
    self, tokens: np.ndarray, choose: Callable[[np.ndarray, np.ndarray], np.ndarray]
  ) -> None:
    """Sets every token in the order of the code to what `choose(places, probabilities)` says."""
    for group in group_windows(tokens.size, self.size, self.lanes):
      for place, probabilities in self._probabilities(tokens, group):
        own = group.starts + place
        tokens[own] = choose(own, probabilities)
        self.progress(own.size)

  def _probabilities(
    self, tokens: np.ndarray, group: WindowGroup
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each coded place with its probabilities (windows, V), then reads its tokens."""
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
  """Returns float32 probabilities (n, V) that sum to one in float64 before they are rounded."""
  weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
  return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


_step = partial(jax.jit, static_argnums=0, donate_argnums=2)(next_logits)


def _coder(name: str) -> Callable[..., tuple[Any, Any]]:
  """Returns what makes a coder of `constriction`, and its family of distributions."""
  try:
    import constriction
  except ImportError as error:
    raise MissingExtraError("arithmetic coding", "compress") from error
  stream = constriction.stream
  return lambda *given: (
    getattr(stream.queue, name)(*given),
    stream.model.Categorical(perfect=False),
  )
