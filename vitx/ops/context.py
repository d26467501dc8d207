"""Values that hold while a `with` block is traced."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def assigned(variable: contextvars.ContextVar[Value], value: Value) -> Iterator[None]:
  """Gives a context variable a value inside the `with` block.

  Args:
    variable: The variable, which has its former value again behind the block.
    value: The value inside the block.
  """
  token = variable.set(value)
  try:
    yield
  finally:
    variable.reset(token)
