"""What a token mixer promises; `vitx.testing.check_token_mixer` holds it to that."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Properties:
  """What a mixer guarantees with its default fields; a class states its own as `properties`.

  Attributes:
    implementations: those that exist and must agree; empty where there is one path only.
    accepts_mask: masked tokens contribute exactly nothing; else a mask raises ConfigError.
    accepts_causal: with `causal=True` no output depends on a later token; else that raises
      ConfigError.
    permutation_equivariant: permuted tokens give permuted outputs.
    masking_is_deletion: masking tokens gives what leaving them out gives.
    fixed_length: parameters depend on N, which stays as it was at `init`.
    memory_exponent: of the kernelized path's temporary memory, in N.
    flops_exponent: of its floating-point operations, in N.
  """

  implementations: tuple[str, ...] = ("masked", "kernelized")
  accepts_mask: bool = True
  accepts_causal: bool = False
  permutation_equivariant: bool = False
  masking_is_deletion: bool = False
  fixed_length: bool = False
  memory_exponent: float = 1.0
  flops_exponent: float = 1.0
