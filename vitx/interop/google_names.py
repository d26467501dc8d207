"""Rules that rename the arrays of Google's AugReg and big_vision files to vitx's names.

The arrays have vitx's axes.
"""

from vitx.interop.naming import QKV, NameRule, same


def _block(block: str, norms: tuple[str, str], attention: str, mlp: str) -> list[NameRule]:
  parts = {
    **dict(zip(norms, ("mixer_norm", "mlp_norm"), strict=True)),
    **{f"{attention}/{part}": f"token_mixer/{part}" for part in (*QKV, "out")},
    **{f"{mlp}/Dense_{i}": f"mlp/{part}" for i, part in enumerate(("up", "down"))},
  }
  return [
    same(f"{block}/{theirs}/{leaf}", f"params/block_{{}}/{ours}/{leaf}")
    for theirs, ours in parts.items()
    for leaf in (("scale", "bias") if theirs in norms else ("kernel", "bias"))
  ]


def _network(prefix: str, positions: str, block: list[NameRule]) -> list[NameRule]:
  return [
    same(f"{prefix}cls", "params/cls"),
    same(f"{prefix}{positions}", "params/posemb/table"),
    *(same(f"{prefix}embedding/{x}", f"params/stem/embed/{x}") for x in ("kernel", "bias")),
    *block,
    *(same(f"{prefix}Transformer/encoder_norm/{x}", f"params/norm/{x}") for x in ("scale", "bias")),
    *(same(f"{prefix}head/{x}", f"params/head/{x}") for x in ("kernel", "bias")),
  ]


AUGREG = _network(
  "",
  "Transformer/posembed_input/pos_embedding",
  _block(
    "Transformer/encoderblock_{}",
    ("LayerNorm_0", "LayerNorm_2"),
    "MultiHeadDotProductAttention_1",
    "MlpBlock_3",
  ),
)
BIG_VISION = _network(
  "params/",
  "pos_embedding",
  _block(
    "params/Transformer/encoderblock_{}",
    ("LayerNorm_0", "LayerNorm_1"),
    "MultiHeadDotProductAttention_0",
    "MlpBlock_0",
  ),
)
