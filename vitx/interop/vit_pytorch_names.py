"""Rules for the weights of vit-pytorch's ViT, and of papers that replaced its mixer.

BBViT's code is this ViT with BigBird's attention. VisionXformer's is this ViT with the attention of
the packages performer-pytorch, linformer and nystrom-attention. The names inside a mixer are those
of its package. The place of the mixer in the network, `layers.{}.0.fn`, is a guess from the
original ViT, since neither project published a file.
"""

import math

import numpy as np

from vitx.interop.naming import (
  MIXER,
  QKV,
  Into,
  NameRule,
  Several,
  linear,
  linear_from_heads,
  linear_to_heads,
  norm,
  rule,
  same,
  stacked,
)

_FN = "transformer.layers.{}.0.fn"


def _patches(theirs: str, ours: str) -> NameRule:
  """Returns the rule of a linear map of patches of p x p pixels and c channels, (C, p p c)."""

  def into(x: np.ndarray, heads: int) -> tuple[np.ndarray, ...]:
    side = math.isqrt(x.shape[1] // 3)
    channels = 3 if 3 * side**2 == x.shape[1] else 1
    side = math.isqrt(x.shape[1] // channels)
    return (x.reshape(len(x), side, side, channels).transpose(1, 2, 3, 0),)

  return rule(theirs, (ours,), into, lambda xs: xs[0].reshape(-1, xs[0].shape[-1]).T)


def _query_and_key() -> NameRule:
  """Returns the rule of linear maps to queries (H D, C) and keys (H D, C).

  If all heads share their keys, the map to keys is (D, C).
  """

  def into(xs: Several, heads: int) -> Several:
    query, key = xs
    dim = len(query) // heads
    return tuple(x.T.reshape(x.shape[1], -1, dim) for x in (query, key))

  def back(xs: Several) -> Several:
    return tuple(x.reshape(len(x), -1).T for x in xs)

  theirs = (f"{_FN}.to_q.weight", f"{_FN}.to_k.weight")
  return NameRule(theirs, (f"{MIXER}/query/kernel", f"{MIXER}/key/kernel"), into, back)


def _taps() -> NameRule:
  """Returns the rule of Nyströmformer's convolution along the tokens, (H, 1, taps, 1)."""
  into: Into = lambda x, heads: (x[:, 0, :, 0].T,)  # noqa: E731
  back = lambda xs: xs[0].T[:, None, :, None]  # noqa: E731
  return rule(f"{_FN}.res_conv.weight", (f"{MIXER}/convolution",), into, back)


VIT_PYTORCH = [
  same("cls_token", "params/cls"),
  same("pos_embedding", "params/posemb/table"),
  _patches("to_patch_embedding.1.weight", "params/stem/embed/kernel"),
  same("to_patch_embedding.1.bias", "params/stem/embed/bias"),
  *norm("transformer.layers.{}.0.norm", "params/block_{}/mixer_norm"),
  # These belong to the ViT itself and to Nyströmformer.
  stacked(f"{_FN}.to_qkv.weight", tuple(f"{MIXER}/{x}/kernel" for x in QKV)),
  *linear_from_heads(f"{_FN}.to_out.0", f"{MIXER}/out"),
  _taps(),
  # These belong to BigBird.
  *(x for part in QKV for x in linear_to_heads(f"{_FN}.{part}", f"{MIXER}/{part}")),
  # These belong to Performer and Linformer.
  _query_and_key(),
  stacked(f"{_FN}.to_v.weight", (f"{MIXER}/value/kernel",)),
  *(stacked(f"{_FN}.to_{x[0]}.bias", (f"{MIXER}/{x}/bias",)) for x in QKV),
  *linear_from_heads(f"{_FN}.to_out", f"{MIXER}/out"),
  same(f"{_FN}.proj_k", f"{MIXER}/key_slots"),
  same(f"{_FN}.proj_v", f"{MIXER}/value_slots"),
  same(f"{_FN}.fast_attention.projection_matrix", "features/block_{}/token_mixer/projection"),
  *norm("transformer.layers.{}.1.norm", "params/block_{}/mlp_norm"),
  *linear("transformer.layers.{}.1.fn.net.0", "params/block_{}/mlp/up"),
  *linear("transformer.layers.{}.1.fn.net.3", "params/block_{}/mlp/down"),
  *norm("mlp_head.0", "params/norm"),
  *linear("mlp_head.1", "params/head"),
]
