"""Chooses an op's implementation by a measured rule.

"masked" keeps the attention matrix in memory, "kernelized" never does, and "auto" picks the faster
for the kind of device, the number of tokens and the number of matrices: see `vitx.ops.rule`.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, get_args

import jax

from vitx.config.checks import check_choice
from vitx.config.context import assigned
from vitx.config.errors import ConfigError
from vitx.ops.rule import Rule, load_rule

Implementation = Literal["auto", "masked", "kernelized"]


class Choice(NamedTuple):
  """The implementation that one call of an op runs.

  Attributes:
    family: The family of ops whose common rule "auto" follows, a key of `vitx.ops.rule.FAMILIES`.
    implementation: The path that was taken: "masked" or "kernelized".
  """

  family: str
  implementation: str


_records: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar(
  "implementations", default=None
)


_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)
_rule: contextvars.ContextVar[Rule | None] = contextvars.ContextVar("rule", default=None)


def target() -> str:
  """Returns the platform for which code is traced: "cpu", "gpu", "tpu", or "any" of them.

  This is the platform given to the enclosing context `lowering_for`, or else that of the default
  device.
  """
  return _target.get() or jax.default_backend()


def lowering_for(platform: str) -> AbstractContextManager[None]:
  """Sets the platform that `target` returns inside a `with` block.

  Some kernels exist on one platform only and cost tracing time on others. Ops call `target` to
  decide whether to use such a kernel.

  Args:
    platform: The platform "cpu", "gpu" or "tpu", or "any" for a program for several platforms. JAX
      lowers the whole program for each of them, so with "any" ops use no kernel that exists on one
      platform only.
  """
  return assigned(_target, platform)


def current_rule() -> Rule:
  """Returns the rule by which `implementation="auto"` picks an implementation.

  This is the rule given to the enclosing context `choosing_by`, or else the rule for the kind of
  device for which code is traced.
  """
  return _rule.get() or load_rule(_target.get() or jax.devices()[0].device_kind)


def choosing_by(rule: Rule | None) -> AbstractContextManager[None]:
  """Makes "auto" follow a given rule inside the context; `None` means the device's rule."""
  return assigned(_rule, rule)


@contextlib.contextmanager
def recording_implementations() -> Iterator[list[Choice]]:
  """Yields a list that collects the implementations of the ops traced in a `with` block.

  Each call of an op appends one `Choice`. If such blocks are nested, only the innermost list grows.
  """
  choices: list[Choice] = []
  with assigned(_records, choices):
    yield choices


def resolve_implementation(
  implementation: str, family: str, shape: Sequence[int], *, dropout: float = 0.0
) -> str:
  """Decides between "masked" and "kernelized" for a call of an op.

  "auto" becomes the faster one, or "masked" if there is dropout.

  Args:
    implementation: The path to take: "auto", "masked" or "kernelized".
    family: The family of ops whose common rule "auto" follows, a key of `vitx.ops.rule.FAMILIES`.
    shape: The shape of the queries, (B, N, H, ...). The masked path would keep B H matrices of N
      rows in memory.
    dropout: The rate at which attention probabilities are dropped in training. Only the masked
      path can drop them.
  """
  check_choice(implementation, "implementation", get_args(Implementation))
  if implementation == "kernelized" and dropout:
    raise ConfigError(
      "implementation='kernelized' cannot drop attention probabilities"
      f" (dropout={dropout}). Use implementation='masked' or 'auto', or set dropout=0."
    )
  if implementation == "auto":
    masked = dropout or current_rule().is_masked(family, shape[1], shape[0] * shape[2])
    implementation = "masked" if masked else "kernelized"
  records = _records.get()
  if records is not None:
    records.append(Choice(family, implementation))
  return implementation
