"""Which implementation of a mixer runs, by a rule that was measured."""

from typing import Any

from vitx.attention.properties import Properties
from vitx.errors import ConfigError, listing

IMPLEMENTATIONS = ("auto", "masked", "kernelized")


def chosen(implementation: str, dropout: float = 0.0, *, masked_is_faster: bool = False) -> str:
  """The implementation that runs: of "auto" the faster, but only "masked" can draw dropout.

  Raises:
    ConfigError: unknown implementation, or "kernelized" with dropout.
  """
  field = "token_mixer.implementation"
  if implementation not in IMPLEMENTATIONS:
    raise ConfigError(f"{field}={implementation!r}; valid: {listing(IMPLEMENTATIONS)}")
  if implementation == "kernelized" and dropout:
    raise ConfigError(
      f"{field}='kernelized' cannot drop attention probabilities (token_mixer.dropout={dropout});"
      " use 'masked' or 'auto', or set token_mixer.dropout=0"
    )
  if implementation == "auto":
    return "masked" if dropout or masked_is_faster else "kernelized"
  return implementation


def implementation_of(module: Any, length: int) -> str:
  """The implementation that a token mixer runs on N tokens; "auto" if it has one path only.

  "auto" is "masked" up to the N that the mixer's `properties` name, measured on a CPU and taken for
  all backends. `python -m vitx.benchmark mixers` measures it again.

  Args:
    module: a token mixer.
    length: N.

  Raises:
    ConfigError: see `chosen`.
  """
  properties = getattr(module, "properties", Properties(implementations=()))
  if not properties.implementations:
    return getattr(module, "implementation", "auto")
  faster = length <= properties.masked_up_to
  return chosen(module.implementation, getattr(module, "dropout", 0.0), masked_is_faster=faster)
