"""What a token mixer promises; `vitx.testing.check_token_mixer` holds it to that."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Properties:
  """Of a mixer with its default fields; a class states its own as `properties`.

  Attributes:
    implementations: those that exist and must agree; empty: one path only.
    accepts_mask: masked tokens contribute exactly nothing; else a mask raises ConfigError.
    permutation_equivariant: permuted tokens give permuted outputs.
    masking_is_deletion: masking tokens gives what leaving them out gives.
    fixed_length: parameters depend on N, which stays as it was at `init`.
    masked_up_to: the largest N for which "masked" was measured to be the faster: on two CPU cores,
      forward and backward, float32, heads of 64; 0: for none.
    memory_exponent: of the kernelized path's temporary memory, in N.
    flops_exponent: of its floating-point operations, in N.
  """

  implementations: tuple[str, ...] = ("masked", "kernelized")
  accepts_mask: bool = True
  permutation_equivariant: bool = False
  masking_is_deletion: bool = False
  fixed_length: bool = False
  masked_up_to: int = 0
  memory_exponent: float = 1.0
  flops_exponent: float = 1.0
