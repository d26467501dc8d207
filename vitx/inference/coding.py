"""Lossless compression of tokens: arithmetic coding with an autoregressive model's probabilities.

A window is a sequence of N tokens, as many as the model reads. Several windows are coded at a time.
A lane is the entry of the model's batch that codes one window.

The decoder must compute exactly the probabilities that the encoder used. So the encoder and the
decoder run one compiled program, which reads a token of each window and returns logits, and compute
the probabilities from the logits on the host. The last bits of the probabilities agree on devices
of one kind with equal software versions.
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
  """Windows of a token sequence that are coded at once, each in one entry of the model's batch.

  Attributes:
    starts: The index in the sequence at which each window begins, int (windows,).
    first, stop: The places within each window that this group codes, `range(first, stop)`. Tokens
      at places before `first` are part of an earlier group and only serve as context.
  """

  starts: np.ndarray
  first: int
  stop: int


def group_windows(count: int, size: int, lanes: int) -> list[WindowGroup]:
  """Cuts a sequence into adjacent windows, and puts the windows into groups.

  If tokens remain after the last whole window, one more window ends at the end of the sequence; in
  that window only the remaining tokens are coded. A sequence shorter than a window is the beginning
  of one window. An evaluation with `task.min_context=0` reads these windows too.

  Args:
    count: The number of tokens of the sequence.
    size: The number of tokens of a window, N.
    lanes: The largest number of windows in a group.
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
    """Compresses tokens to bytes.

    Args:
      tokens: The tokens, integers (n,) in the model's vocabulary.

    Returns:
      The code, and the negative log-likelihood of the tokens in bits. The length of the code
      exceeds this number of bits by less than a hundred, plus the effect of rounding the
      probabilities to 24 bits.

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
    """Returns the tokens that `encode` compressed, int32 (count,).

    A code that was made with other weights, or on a device that rounds in another way, decodes to
    wrong tokens without an error. Store a digest of the tokens with the code to notice this.

    Args:
      code: The bytes that `encode` returned.
      count: The number of tokens that were encoded.

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
    """Visits all tokens in the order of the code, and sets each to the value that `choose` returns.

    Args:
      tokens: The tokens, (n,), which are changed in place.
      choose: A function of the indices of the next tokens, (windows,), and the probabilities of
        their values, (windows, V). It returns the tokens, (windows,): the encoder returns the known
        ones, the decoder those that it decodes.
    """
    for group in group_windows(tokens.size, self.size, self.lanes):
      for place, probabilities in self._probabilities(tokens, group):
        own = group.starts + place
        tokens[own] = choose(own, probabilities)
        self.progress(own.size)

  def _probabilities(
    self, tokens: np.ndarray, group: WindowGroup
  ) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (place, probabilities) for each place that a group codes, in ascending order.

    A place is a position within a window. The probabilities, (windows, V), are those of the V
    values that the token at this place may have in each window. The caller must write the tokens of
    a place into `tokens` before it asks for the next place, because the model reads them.

    Args:
      tokens: The tokens of the sequence, int32 (n,).
      group: The windows and the range of places to code.
    """
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
  """Returns a coder from `constriction` and the family of distributions that it codes with.

  Args:
    name: The class of the coder, "RangeEncoder" or "RangeDecoder".
    *given: The arguments of the class: the code for a decoder, none for an encoder.

  Raises:
    MissingExtraError: `constriction` is not installed.
  """
  try:
    from constriction import stream
  except ImportError as error:
    raise MissingExtraError("arithmetic coding", "compress") from error
  return getattr(stream.queue, name)(*given), stream.model.Categorical(perfect=False)
