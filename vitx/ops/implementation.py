"""Which implementation of an op runs, by a rule that was measured.

"masked" holds the attention matrix, "kernelized" never does, and "auto" is the faster on this kind
of device, for so many tokens and so many matrices at once: see `vitx.ops.rule`.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import jax

from vitx.config.errors import ConfigError, listing
from vitx.ops.rule import Rule, load_rule

Implementation = Literal["auto", "masked", "kernelized"]
IMPLEMENTATIONS = ("auto", "masked", "kernelized")


class Choice(NamedTuple):
  """What one call of an op runs.

  Attributes:
    op: its name.
    family: whose rule "auto" goes by, of `vitx.ops.rule.FAMILIES`.
    implementation: "masked" or "kernelized".
  """

  op: str
  family: str
  implementation: str


_records: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar(
  "implementations", default=None
)


_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)
_rule: contextvars.ContextVar[Rule | None] = contextvars.ContextVar("rule", default=None)


def target() -> str:
  """Returns the platform that is traced for: that of the default device, or of `lowering_for`."""
  return _target.get() or jax.default_backend()


@contextlib.contextmanager
def lowering_for(platform: str) -> Iterator[None]:
  """Traces inside for another platform than the default device's.

  Kernels that only one platform has, and that cost others time to trace, are taken by it.

  Args:
    platform: "cpu", "gpu" or "tpu"; or "any" for several, which leaves such kernels out: jax lowers
      all that a program holds for each of its platforms.
  """
  token = _target.set(platform)
  try:
    yield
  finally:
    _target.reset(token)


def current_rule() -> Rule:
  """Returns the rule of "auto": that of `choosing_by`, else that of the kind of device traced for.

  Raises:
    ConfigError: its file is damaged.
  """
  return _rule.get() or load_rule(_target.get() or jax.devices()[0].device_kind)


@contextlib.contextmanager
def choosing_by(rule: Rule | None) -> Iterator[None]:
  """Lets "auto" pick inside by a given rule; None for the rule of the device."""
  token = _rule.set(rule)
  try:
    yield
  finally:
    _rule.reset(token)


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
  family: str,
  shape: Sequence[int],
  *,
  dropout: float = 0.0,
) -> str:
  """Returns "masked" or "kernelized": of "auto" the faster, but only "masked" can draw dropout.

  Args:
    op: the name under which the choice is recorded.
    implementation: "auto", "masked" or "kernelized".
    family: whose rule "auto" goes by, of `vitx.ops.rule.FAMILIES`.
    shape: of the queries, (B, N, H, ...): the masked path would hold B H matrices of N rows.
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
    masked = dropout or current_rule().is_masked(family, shape[1], shape[0] * shape[2])
    implementation = "masked" if masked else "kernelized"
  records = _records.get()
  if records is not None:
    records.append(Choice(op, family, implementation))
  return implementation
