"""Rules for the weights of the library transformers: its ViT, DeiT, DINOv2, DINOv3 and SigLIP.

ViT and DeiT share names; DINOv2's blocks have timm's names. Files have the library's older names:
its newer versions have newer names in memory, which the rules know too.
"""

from vitx.interop.naming import (
  MIXER,
  QKV,
  biased_convolution,
  interleaved,
  linear,
  linear_from_heads,
  linear_to_heads,
  norm,
  rule,
  same,
  stacked,
)
from vitx.interop.timm_names import both_tokens, placed_class


def _block(block: str, attention: dict[str, str], norms: tuple[str, str], mlp: list[str]) -> list:
  """Returns the rules that rename the parameters of a block of transformers to those of vitx."""
  return [
    *(r for x in QKV for r in linear_to_heads(f"{block}.{attention[x]}", f"{MIXER}/{x}")),
    *linear_from_heads(f"{block}.{attention['out']}", f"{MIXER}/out"),
    *norm(f"{block}.{norms[0]}", "params/block_{}/mixer_norm"),
    *norm(f"{block}.{norms[1]}", "params/block_{}/mlp_norm"),
    *linear(f"{block}.{mlp[0]}", "params/block_{}/mlp/up"),
    *linear(f"{block}.{mlp[1]}", "params/block_{}/mlp/down"),
  ]


def _dinov3_block(block: str) -> list:
  """Returns the rules of a block of DINOv3, whose published name is `block`."""
  return [
    *_block(block, _NEW, ("norm1", "norm2"), ["mlp.up_proj", "mlp.down_proj"]),
    same(f"{block}.layer_scale1.lambda1", "params/block_{}/mixer_scale"),
    same(f"{block}.layer_scale2.lambda1", "params/block_{}/mlp_scale"),
  ]


_OLD = {**{x: f"attention.attention.{x}" for x in QKV}, "out": "attention.output.dense"}
_NEW = {**{x: f"attention.{x[0]}_proj" for x in QKV}, "out": "attention.o_proj"}
_VIT_NORMS = ("layernorm_before", "layernorm_after")
_MLP = ["mlp.fc1", "mlp.fc2"]
_BLOCKS = [
  *_block("encoder.layer.{}", _OLD, _VIT_NORMS, ["intermediate.dense", "output.dense"]),
  *_block("layers.{}", _NEW, _VIT_NORMS, _MLP),
]
_DINOV2_BLOCKS = [
  *_block("encoder.layer.{}", _OLD, ("norm1", "norm2"), _MLP),
  *_block("encoder.layer.{}", _NEW, ("norm1", "norm2"), _MLP),
  same("encoder.layer.{}.layer_scale1.lambda1", "params/block_{}/mixer_scale"),
  same("encoder.layer.{}.layer_scale2.lambda1", "params/block_{}/mlp_scale"),
]
_PATCHES = biased_convolution("embeddings.patch_embeddings.projection", "params/stem/embed")
_CLASS, _POSITIONS = "embeddings.cls_token", "embeddings.position_embeddings"
_BEGIN = [same(_CLASS, "params/cls"), same(_POSITIONS, "params/posemb/table"), *_PATCHES]
_END = [*norm("layernorm", "params/norm"), *linear("classifier", "params/head")]

VIT = [*_BEGIN, *_BLOCKS, *_END]
DINOV2 = [*_BEGIN, *_DINOV2_BLOCKS, *_END]
DISTILLED = [
  both_tokens(_CLASS, "embeddings.distillation_token"),
  same(_POSITIONS, "params/posemb/table"),
  *_PATCHES,
  *_BLOCKS,
  *norm("layernorm", "params/norm"),
  *linear("cls_classifier", "params/head"),
  *linear("distillation_classifier", "params/head_distillation"),
]
DINOV2_REGISTERS = [
  placed_class(_CLASS, _POSITIONS),
  same("embeddings.register_tokens", "params/extra"),
  *_PATCHES,
  *_DINOV2_BLOCKS,
  *_END,
]

# Newer versions of the library name the blocks `model.layer.0` in memory.
DINOV3 = [
  interleaved(plain)
  for plain in (
    *_dinov3_block("layer.{}"),
    *_dinov3_block("model.layer.{}"),
    same(_CLASS, "params/cls"),
    same("embeddings.register_tokens", "params/extra"),
    *biased_convolution("embeddings.patch_embeddings", "params/stem/embed"),
    *norm("norm", "params/norm"),
  )
]
_POOL = "params/pool/attention"
SIGLIP = [
  *_block(
    "encoder.layers.{}",
    {**{x: f"self_attn.{x[0]}_proj" for x in QKV}, "out": "self_attn.out_proj"},
    ("layer_norm1", "layer_norm2"),
    _MLP,
  ),
  *biased_convolution("embeddings.patch_embedding", "params/stem/embed"),
  rule(
    "embeddings.position_embedding.weight",
    ("params/posemb/table",),
    lambda x, heads: (x[None],),
    lambda xs: xs[0][0],
  ),
  *norm("post_layernorm", "params/norm"),
  same("head.probe", "params/pool/probe"),
  stacked("head.attention.in_proj_weight", tuple(f"{_POOL}/{x}/kernel" for x in QKV)),
  stacked("head.attention.in_proj_bias", tuple(f"{_POOL}/{x}/bias" for x in QKV)),
  *linear_from_heads("head.attention.out_proj", f"{_POOL}/out"),
  *norm("head.layernorm", "params/pool/norm"),
  *linear("head.mlp.fc1", "params/pool/mlp/up"),
  *linear("head.mlp.fc2", "params/pool/mlp/down"),
]
