"""What a token mixer promises; `vitx.testing.check_token_mixer` tests the promises."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Properties:
  """The promises of a mixer with its default fields; a class declares its own as `properties`.

  Attributes:
    implementations: The implementations that exist and must agree; empty if there is only one.
    accepts_mask: Whether a mask is accepted, and masked tokens then contribute exactly nothing; if
      not, a mask raises ConfigError.
    accepts_causal: Whether `causal=True` is accepted, and outputs are then independent of later
      tokens; if not, it raises ConfigError.
    permutation_equivariant: Whether permuted tokens give permuted outputs.
    masking_is_deletion: Whether masking tokens has the same effect as leaving them out.
    fixed_length: Whether the shapes of parameters depend on N, which must then be the N of `init`.
    memory_exponent: The exponent of N in the temporary memory of the kernelized path.
    flops_exponent: The exponent of N in the floating-point operations of the kernelized path.
  """

  implementations: tuple[str, ...] = ("masked", "kernelized")
  accepts_mask: bool = True
  accepts_causal: bool = False
  permutation_equivariant: bool = False
  masking_is_deletion: bool = False
  fixed_length: bool = False
  memory_exponent: float = 1.0
  flops_exponent: float = 1.0
