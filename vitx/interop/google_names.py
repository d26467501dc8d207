"""Rules that rename the arrays of Google's AugReg and big_vision files to vitx's names.

The axes of the arrays already have vitx's order.
"""

from vitx.interop.naming import QKV, NameRule, same


def _network(
  prefix: str, positions: str, *, second_norm: int, attention: int, mlp: int
) -> list[NameRule]:
  """Returns the rules of a network of AugReg or big_vision, whose names differ in the arguments."""
  block = f"{prefix}Transformer/encoderblock_{{}}"
  heads = f"{block}/MultiHeadDotProductAttention_{attention}"
  linear = {
    f"{prefix}embedding": "stem/embed",
    **{f"{heads}/{part}": f"block_{{}}/token_mixer/{part}" for part in (*QKV, "out")},
    f"{block}/MlpBlock_{mlp}/Dense_0": "block_{}/mlp/up",
    f"{block}/MlpBlock_{mlp}/Dense_1": "block_{}/mlp/down",
    f"{prefix}head": "head",
  }
  norms = {
    f"{block}/LayerNorm_0": "block_{}/mixer_norm",
    f"{block}/LayerNorm_{second_norm}": "block_{}/mlp_norm",
    f"{prefix}Transformer/encoder_norm": "norm",
  }
  kinds = ((linear, ("kernel", "bias")), (norms, ("scale", "bias")))
  return [
    same(f"{prefix}cls", "params/cls"),
    same(f"{prefix}{positions}", "params/posemb/table"),
    *(
      same(f"{theirs}/{leaf}", f"params/{ours}/{leaf}")
      for modules, leaves in kinds
      for theirs, ours in modules.items()
      for leaf in leaves
    ),
  ]


AUGREG = _network("", "Transformer/posembed_input/pos_embedding", second_norm=2, attention=1, mlp=3)
BIG_VISION = _network("params/", "pos_embedding", second_norm=1, attention=0, mlp=0)
