"""Which implementation of a mixer runs."""

from vitx.errors import ConfigError, listing

IMPLEMENTATIONS = ("auto", "masked", "kernelized")


def chosen(implementation: str, dropout: float = 0.0) -> str:
  """The implementation that runs: "auto" is "kernelized" but for dropout, which "masked" draws.

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
    return "masked" if dropout else "kernelized"
  return implementation
