"""Context variables that have a value inside a `with` block."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def assigned(variable: contextvars.ContextVar[Value], value: Value) -> Iterator[None]:
  """Gives a context variable a value inside the `with` block.

  Args:
    variable: The variable. After the block it has its former value again.
    value: The value inside the block.
  """
  token = variable.set(value)
  try:
    yield
  finally:
    variable.reset(token)
