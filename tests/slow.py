"""Long tables of parameters, of which plain `pytest` runs a few and `pytest --all` every one."""

import pytest


def all_but(*quick, of) -> list:
  """Marks the values, or tuples of values, as slow that do not have one of `quick` in them."""
  marked = []
  for value in of:
    values = value if isinstance(value, tuple) else (value,)
    marks = () if set(quick) & set(values) else pytest.mark.slow
    marked.append(pytest.param(*values, marks=marks))
  unknown = set(quick) - {part for value in marked for part in value.values}
  assert not unknown, f"no parameter is called {sorted(unknown)}"
  return marked
