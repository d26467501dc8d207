"""Rules for the weights of timm, DeiT, DINO, DINOv2, DINOv3, SigLIP, LV-ViT and Sparsifiner.

All these projects extend the names of one vision transformer.
"""

import numpy as np

from vitx.interop.naming import (
  MIXER,
  QKV,
  NameRule,
  Several,
  batch_norm,
  biased_convolution,
  convolution,
  interleaved,
  linear,
  linear_from_heads,
  linear_to_heads,
  norm,
  same,
  stacked,
)

_PREDICTOR = "blocks.{}.attn.mask_predictor"
_KERNELS = tuple(f"{MIXER}/{x}/kernel" for x in QKV)
_BIASES = (f"{MIXER}/query/bias", f"{MIXER}/value/bias")

_BLOCKS = [
  *norm("blocks.{}.norm1", "params/block_{}/mixer_norm"),
  *linear_to_heads("blocks.{}.attn.qkv", *(f"{MIXER}/{x}" for x in QKV)),
  *linear_from_heads("blocks.{}.attn.proj", f"{MIXER}/out"),
  same("blocks.{}.ls1.gamma", "params/block_{}/mixer_scale"),
  *norm("blocks.{}.norm2", "params/block_{}/mlp_norm"),
  *linear("blocks.{}.mlp.fc1", "params/block_{}/mlp/up"),
  *linear("blocks.{}.mlp.fc2", "params/block_{}/mlp/down"),
  same("blocks.{}.ls2.gamma", "params/block_{}/mlp_scale"),
  # Sparsifiner adds these inside the attention of its backbones, DeiT and LV-ViT.
  *linear(f"{_PREDICTOR}.proj_c_q", f"{MIXER}/reduce_query"),
  *linear(f"{_PREDICTOR}.proj_c_k", f"{MIXER}/reduce_key"),
  same(f"{_PREDICTOR}.proj_n", f"{MIXER}/down"),
  same(f"{_PREDICTOR}.proj_back_n", f"{MIXER}/basis"),
]
_END = [*norm("norm", "params/norm"), *linear("head", "params/head")]
_CLASS = same("cls_token", "params/cls")
_POSITIONS = same("pos_embed", "params/posemb/table")
_PATCHES = biased_convolution("patch_embed.proj", "params/stem/embed")


def both_tokens(token: str, distillation: str) -> NameRule:
  """Returns the rule of a class token and a distillation token, which vitx keeps in one array."""
  return NameRule(
    (token, distillation),
    ("params/cls",),
    lambda xs, heads: (np.concatenate(xs, axis=1),),
    lambda xs: (xs[0][:, :1], xs[0][:, 1:]),
  )


def placed_class(token: str, positions: str) -> NameRule:
  """Returns the rule of the class token and the position table of DINOv2 with registers.

  In the file the class token has a position and the registers have none. The network uses only the
  sum of the class token and its position. So vitx stores this sum as the class token, and a table
  of positions for the grid alone.
  """

  def into(xs: Several, heads: int) -> Several:
    token, table = xs
    if token.shape != table[:, :1].shape:
      raise ValueError(f"{list(token.shape)} is not the shape of a row of {list(table.shape)}")
    return token + table[:, :1], table[:, 1:]

  def back(xs: Several) -> Several:
    token, table = xs
    return token, np.concatenate([np.zeros_like(token), table], axis=1)

  return NameRule((token, positions), ("params/cls", "params/posemb/table"), into, back)


def _masked_bias() -> NameRule:
  """Returns the rule of DINOv3's biases of queries and values; keys have none.

  The file has an array and a mask, and the bias is their product.
  """

  def into(xs: Several, heads: int) -> Several:
    query, key, value = np.split(xs[0] * xs[1], 3)
    if np.any(key):
      raise ValueError("its mask leaves a bias of the keys, and DINOv3 has none")
    return query.reshape(heads, -1), value.reshape(heads, -1)

  def back(xs: Several) -> Several:
    query, value = (x.reshape(-1) for x in xs)
    ones, zeros = np.ones_like(query), np.zeros_like(query)
    return np.concatenate([query, zeros, value]), np.concatenate([ones, zeros, ones])

  qkv = "blocks.{}.attn.qkv"
  return NameRule((f"{qkv}.bias", f"{qkv}.bias_mask"), _BIASES, into, back)


def _without_biases() -> NameRule:
  """Returns the rule of projections whose biases timm left out of its file because all are zero."""
  weight = stacked("blocks.{}.attn.qkv.weight", _KERNELS)

  def into(xs: Several, heads: int) -> Several:
    kernels = weight.into(xs, heads)
    zeros = np.zeros(kernels[0].shape[1:], kernels[0].dtype)
    return *kernels, zeros, zeros

  return NameRule(weight.theirs, (*_KERNELS, *_BIASES), into, lambda xs: weight.back(xs[:3]))


def _lv_stem(number: int) -> list[NameRule]:
  return [
    convolution(f"patch_embed.conv{number + 1}.weight", f"params/stem/conv_{number}/kernel"),
    *batch_norm(f"patch_embed.bn{number + 1}", f"stem/norm_{number}"),
  ]


_NETWORK = [*_PATCHES, *_BLOCKS, *_END]
VIT = [_CLASS, _POSITIONS, *_NETWORK]
DISTILLED = [
  *(both_tokens("cls_token", "dist_token"), _POSITIONS, *_NETWORK),
  *linear("head_dist", "params/head_distillation"),
]
REGISTERS = [same("reg_token", "params/extra"), *VIT]
DINOV2_REGISTERS = [
  placed_class("cls_token", "pos_embed"),
  same("register_tokens", "params/extra"),
  *_NETWORK,
]
_DINOV3 = [
  _masked_bias(),
  stacked("blocks.{}.attn.qkv.weight", _KERNELS),
  same("storage_tokens", "params/extra"),
  _CLASS,
  *_NETWORK,
]
_TIMM_DINOV3 = [
  stacked("blocks.{}.attn.q_bias", _BIASES[:1]),
  stacked("blocks.{}.attn.v_bias", _BIASES[1:]),
  stacked("blocks.{}.attn.qkv.weight", _KERNELS),
  same("blocks.{}.gamma_1", "params/block_{}/mixer_scale"),
  same("blocks.{}.gamma_2", "params/block_{}/mlp_scale"),
  same("reg_token", "params/extra"),
  _CLASS,
  *_NETWORK,
]
DINOV3 = [interleaved(rule) for rule in _DINOV3]
TIMM_DINOV3 = [interleaved(rule) for rule in _TIMM_DINOV3]
TIMM_DINOV3_WITHOUT_BIASES = [interleaved(rule) for rule in (_without_biases(), *_TIMM_DINOV3)]
SIGLIP = [
  _POSITIONS,
  *_NETWORK,
  same("attn_pool.latent", "params/pool/probe"),
  *linear_to_heads("attn_pool.q", "params/pool/attention/query"),
  *linear_to_heads("attn_pool.kv", "params/pool/attention/key", "params/pool/attention/value"),
  *linear_from_heads("attn_pool.proj", "params/pool/attention/out"),
  *norm("attn_pool.norm", "params/pool/norm"),
  *linear("attn_pool.mlp.fc1", "params/pool/mlp/up"),
  *linear("attn_pool.mlp.fc2", "params/pool/mlp/down"),
]
LV_VIT = [
  _CLASS,
  _POSITIONS,
  *(rule for number in range(3) for rule in _lv_stem(number)),
  *biased_convolution("patch_embed.proj", "params/stem/patches/embed"),
  *_BLOCKS,
  *_END,
  *linear("aux_head", "params/head_patches"),
]
MLP_MIXER = [
  *biased_convolution("stem.proj", "params/stem/embed"),
  *norm("blocks.{}.norm1", "params/block_{}/mixer_norm"),
  *linear("blocks.{}.mlp_tokens.fc1", f"{MIXER}/up"),
  *linear("blocks.{}.mlp_tokens.fc2", f"{MIXER}/down"),
  *norm("blocks.{}.norm2", "params/block_{}/mlp_norm"),
  *linear("blocks.{}.mlp_channels.fc1", "params/block_{}/mlp/up"),
  *linear("blocks.{}.mlp_channels.fc2", "params/block_{}/mlp/down"),
  *_END,
]
CONVMIXER = [
  *biased_convolution("stem.0", "params/stem/embed"),
  *batch_norm("stem.2", "stem_norm"),
  *biased_convolution("blocks.{}.0.fn.0", "params/depthwise_{}"),
  *batch_norm("blocks.{}.0.fn.2", "depthwise_{}_norm"),
  *biased_convolution("blocks.{}.1", "params/pointwise_{}"),
  *batch_norm("blocks.{}.3", "pointwise_{}_norm"),
  *linear("head", "params/head"),
]
