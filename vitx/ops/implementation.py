"""Which implementation of an op runs, by a rule that was measured.

"masked" holds the attention matrix, "kernelized" never does, and "auto" is "masked" up to the N
that an op gives for itself and "kernelized" beyond. The numbers come from forward and backward of
every module on two CPU cores (float32, H=4, D=64, 1024 and 8192 tokens in a batch); other backends
have not been measured and get the same. In time, masked over kernelized, was found, with few and
with many tokens in a batch:

                       N=64          128          256          512
  attention patterns   0.80-0.98   0.72-0.95   0.69-1.14   0.58-2.1
  axial, strided       1.20-1.56   1.37-1.55   1.70-2.07   2.3-2.5
  softmax, shaped      0.96-1.11   0.93-1.05   1.02-1.58   1.0-1.8
  linear, Performer    0.72-0.89   0.84-1.12   1.35-1.44   1.7-1.9
  Nystromformer        1.01        1.33        1.72        1.24
  FNet                 3.4         5.1         7.3         8.9

At 256 and 512 tokens the patterns' winner depends on the batch: masked as long as all matrices
of the batch fit the cache. `vitx benchmark mixers` measures it again.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax

from vitx.errors import ConfigError, listing

Implementation = Literal["auto", "masked", "kernelized"]
IMPLEMENTATIONS = ("auto", "masked", "kernelized")


class Choice(NamedTuple):
  """What one call of an op runs: the op's name, and "masked" or "kernelized"."""

  op: str
  implementation: str


_records: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar(
  "implementations", default=None
)


_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)


def target() -> str:
  """Returns the platform that is traced for: "cpu", "gpu" or "tpu"; that of the default device."""
  return _target.get() or jax.default_backend()


@contextlib.contextmanager
def lowering_for(platform: str) -> Iterator[None]:
  """Traces inside for another platform than the default device's.

  Kernels that only one platform has, and that cost others time to trace, are taken by it.

  Args:
    platform: "cpu", "gpu" or "tpu".
  """
  token = _target.set(platform)
  try:
    yield
  finally:
    _target.reset(token)


@contextlib.contextmanager
def recording_implementations() -> Iterator[list[Choice]]:
  """Collects what every op picks while it is traced inside, in the order of the calls.

  Where recordings are nested, the innermost one collects.
  """
  found: list[Choice] = []
  token = _records.set(found)
  try:
    yield found
  finally:
    _records.reset(token)


def resolve_implementation(
  op: str,
  implementation: str,
  length: int,
  *,
  masked_up_to: int = 0,
  dropout: float = 0.0,
) -> str:
  """Returns "masked" or "kernelized": of "auto" the faster, but only "masked" can draw dropout.

  Args:
    op: the name under which the choice is recorded.
    implementation: "auto", "masked" or "kernelized".
    length: N, the number of queries.
    masked_up_to: the largest N for which "masked" was measured to be the faster; 0 where it never
      is.
    dropout: rate at which attention probabilities are dropped in training.

  Raises:
    ConfigError: unknown implementation, or "kernelized" with dropout.
  """
  if implementation not in IMPLEMENTATIONS:
    raise ConfigError(f"implementation={implementation!r}; valid: {listing(IMPLEMENTATIONS)}")
  if implementation == "kernelized" and dropout:
    raise ConfigError(
      f"implementation='kernelized' cannot drop attention probabilities (dropout={dropout}); use"
      " implementation='masked' or 'auto', or dropout=0"
    )
  if implementation == "auto":
    implementation = "masked" if dropout or length <= masked_up_to else "kernelized"
  records = _records.get()
  if records is not None:
    records.append(Choice(op, implementation))
  return implementation
