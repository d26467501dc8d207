"""Which implementation of a mixer runs, by a rule that was measured.

"auto" is "masked" up to the N in a mixer's `properties.masked_up_to` and "kernelized" beyond. The
numbers come from forward and backward of every module on two CPU cores (float32, H=4, D=64, 1024
and 8192 tokens in a batch); other backends have not been measured and get the same. In time,
masked over kernelized, was found, with few and with many tokens in a batch:

                       N=64          128          256          512
  attention patterns   0.80-0.98   0.72-0.95   0.69-1.14   0.58-2.1
  axial, strided       1.20-1.56   1.37-1.55   1.70-2.07   2.3-2.5
  softmax, shaped      0.96-1.11   0.93-1.05   1.02-1.58   1.0-1.8
  linear, Performer    0.72-0.89   0.84-1.12   1.35-1.44   1.7-1.9
  Nystromformer        1.01        1.33        1.72        1.24
  FNet                 3.4         5.1         7.3         8.9

At 256 and 512 tokens the patterns' winner depends on the batch: masked as long as all matrices
of the batch fit the cache. `python -m vitx.benchmark mixers` measures it again.
"""

from typing import Any

from vitx.attention.contract import Properties
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
