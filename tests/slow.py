"""Long tables of test cases, of which plain `pytest` runs a few and `pytest --all` every one."""

import pytest


def all_but(*quick, of) -> list:
  """Marks the values, or tuples of values, as slow unless they are or contain one of `quick`."""
  tuples = [value if isinstance(value, tuple) else (value,) for value in of]
  held = [any(one in values for one in quick) for values in tuples]
  assert all(any(one in values for values in tuples) for one in quick), f"not all there: {quick}"
  marks = [() if here else pytest.mark.slow for here in held]
  return [pytest.param(*values, marks=mark) for values, mark in zip(tuples, marks, strict=True)]
