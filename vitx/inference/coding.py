"""Lossless compression of tokens: arithmetic coding with an autoregressive model's probabilities.

A window is a sequence of N tokens, as many as the model reads. Several windows are coded at a time,
each in a lane: an entry of the model's batch. The encoder and the decoder must compute the same
probabilities bit for bit. So both run one compiled program, which reads a token of each window and
returns logits; the host computes the probabilities. On devices of one kind with equal software
versions the bits agree.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from vitx.config.errors import importing
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

    Returns:
      The code, and the negative log-likelihood of the tokens in bits. The length of the code
      exceeds this number of bits by less than a hundred, plus the effect of rounding the
      probabilities to 24 bits.
    """
    coder, categorical = _make_coder("RangeEncoder")
    tokens, bits = tokens.astype(np.int32), 0.0

    def choose(places: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
      nonlocal bits
      known = tokens[places]
      coder.encode(known, categorical, probabilities)
      share = np.take_along_axis(probabilities, known[:, None], axis=1)
      bits -= float(np.log2(np.maximum(share, 2.0**-24)).sum())
      return known

    self._visit(tokens, choose)
    return coder.get_compressed().astype("<u4").tobytes(), bits

  def decode(self, code: bytes, count: int) -> np.ndarray:
    """Returns the tokens that `encode` compressed, int32 (count,).

    A code that was made with other weights, or on a device that rounds in another way, decodes to
    wrong tokens without an error. Store a digest of the tokens with the code to notice this.
    """
    coder, categorical = _make_coder("RangeDecoder", np.frombuffer(code, "<u4").astype(np.uint32))
    tokens = np.zeros(count, np.int32)
    self._visit(tokens, lambda _, probabilities: coder.decode(categorical, probabilities))
    return tokens

  def _visit(
    self, tokens: np.ndarray, choose: Callable[[np.ndarray, np.ndarray], np.ndarray]
  ) -> None:
    """Sets all tokens, in the order of the code, to those that `choose` returns.

    `choose` takes indices (windows,) and the probabilities of the V tokens there, (windows, V).
    """
    for group in group_windows(tokens.size, self.size, self.lanes):
      cache = self.model.init_cache(self.lanes)  # type: ignore[attr-defined]
      previous, used = np.zeros((self.lanes, 1), np.int32), group.starts.size
      for place in range(group.stop):
        if place:
          previous[:used, 0] = tokens[group.starts + place - 1]
        at = np.array([place], np.int32)
        logits, cache = _step(self.model, self.variables, cache, previous.copy(), at)
        if place >= group.first:
          indices = group.starts + place
          tokens[indices] = choose(indices, _softmax(np.asarray(logits)[:used]))
          self.progress(used)


def _softmax(logits: np.ndarray) -> np.ndarray:
  """Returns float32 probabilities (n, V), which are rounded from a softmax in float64."""
  weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
  return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


_step = partial(jax.jit, static_argnums=0, donate_argnums=2)(next_logits)


def _make_coder(name: str, *code: np.ndarray) -> tuple[Any, Any]:
  """Returns a coder of `constriction` and the family of distributions that it codes with."""
  with importing("arithmetic coding", "compress"):
    from constriction import stream
  return getattr(stream.queue, name)(*code), stream.model.Categorical(perfect=False)
