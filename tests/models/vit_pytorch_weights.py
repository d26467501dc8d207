"""Converts weights of vit-pytorch's networks to the names and shapes of vitx."""

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


class Weights:
  """PyTorch's state by name, in vitx's shapes; `unread` has the names that were not read yet."""

  def __init__(self, name):
    with np.load(GOLDEN / f"model_{name}.npz") as file:
      self.arrays = dict(file)
    self.unread = {
      k for k in self.arrays if not k.startswith("after.") and k != "x" and not k.endswith("out")
    }

  def __getitem__(self, name):
    self.unread.discard(name)
    return self.arrays[name]

  def bias(self, name):
    return {"bias": self[f"{name}.bias"]} if f"{name}.bias" in self.arrays else {}

  def dense(self, name):
    weight = self[f"{name}.weight"]
    return {"kernel": weight.reshape(weight.shape[:2]).T, **self.bias(name)}

  def conv(self, name):
    return {"kernel": self[f"{name}.weight"].transpose(2, 3, 1, 0), **self.bias(name)}

  def inward(self, weight, heads):
    weight = weight.reshape(weight.shape[:2])
    return {"kernel": weight.T.reshape(weight.shape[1], heads, -1)}

  def outward(self, name, heads):
    weight = self[f"{name}.weight"]
    weight = weight.reshape(weight.shape[:2])
    return {"kernel": weight.T.reshape(heads, -1, weight.shape[0]), **self.bias(name)}

  def norm(self, name, names=("weight", "bias"), ours=("scale", "bias")):
    return {our: self[f"{name}.{key}"].reshape(-1) for our, key in zip(ours, names, strict=True)}

  def qkv(self, name, heads):
    pieces = np.split(self[f"{name}.weight"], 3)
    names = ("query", "key", "value")
    return {our: self.inward(piece, heads) for our, piece in zip(names, pieces, strict=True)}

  def statistics(self, name, prefix=""):
    part = {"mean": "running_mean", "var": "running_var"}
    return {our: self[f"{prefix}{name}.{key}"] for our, key in part.items()}


def pre_norm_block(w, name, heads):
  """Returns the parameters of a layer of ViT or PiT."""
  mixer, mlp = f"{name}.0", f"{name}.1"
  return {
    "mixer_norm": w.norm(f"{mixer}.norm"),
    "token_mixer": w.qkv(f"{mixer}.fn.to_qkv", heads)
    | {"out": w.outward(f"{mixer}.fn.to_out.0", heads)},
    "mlp_norm": w.norm(f"{mlp}.norm"),
    "mlp": {"up": w.dense(f"{mlp}.fn.net.0"), "down": w.dense(f"{mlp}.fn.net.3")},
  }


def around(w):
  """Returns the parameters of ViT or PiT outside the stem and the blocks."""
  return {
    "cls": w["cls_token"],
    "posemb": {"table": w["pos_embedding"]},
    "norm": w.norm("mlp_head.0"),
    "head": w.dense("mlp_head.1"),
  }


def pit(w, prefix):
  stem = "to_patch_embedding.2"  # unfolds patches as (c, p, p)
  kernel = w[f"{stem}.weight"].reshape(-1, 3, 2, 2).transpose(2, 3, 1, 0)
  params = {
    "stem": {"embed": {"kernel": kernel, **w.bias(stem)}},
    "stage_1_pool": {
      "depthwise": w.conv("layers.1.downsample.net.0"),
      "pointwise": w.conv("layers.1.downsample.net.1"),
      "prefix": w.dense("layers.1.cls_ff"),
    },
    **around(w),
  }
  for stage in range(2):
    params[f"stage_{stage}_block_0"] = pre_norm_block(w, f"layers.{2 * stage}.layers.0", 2)
  return params, {}


def levit(w, prefix):
  params = {"stem": {f"conv_{i}": w.conv(f"conv_embedding.{i}") for i in range(3)}}
  params["head"] = w.dense("mlp_head")
  statistics = {}
  for layer in range(2):
    name = f"backbone.0.layers.{layer}"
    assert not w[f"{name}.0.pos_bias.weight"].any()
    mixer, norms = {}, {}
    for ours, theirs in (("query", "to_q"), ("key", "to_k"), ("value", "to_v")):
      mixer[ours] = w.inward(w[f"{name}.0.{theirs}.0.weight"], 2)
      mixer[f"{ours}_norm"] = w.norm(f"{name}.0.{theirs}.1")
      norms[f"{ours}_norm"] = w.statistics(f"{name}.0.{theirs}.1", prefix)
    mixer["out"] = w.outward(f"{name}.0.to_out.1", 2)
    mixer["out_norm"] = w.norm(f"{name}.0.to_out.2")
    norms["out_norm"] = w.statistics(f"{name}.0.to_out.2", prefix)
    mlp = {"up": w.dense(f"{name}.1.net.0"), "down": w.dense(f"{name}.1.net.3")}
    params[f"block_{layer}"] = {"token_mixer": mixer, "mlp": mlp}
    statistics[f"block_{layer}"] = {"token_mixer": norms}
  return params, statistics


def cvt(w, prefix):
  params, statistics = {"head": w.dense("layers.5")}, {}
  channel = {"names": ("g", "b"), "ours": ("gain", "shift")}
  for stage, heads in enumerate((1, 1, 2)):
    top, name = f"layers.{stage}", f"layers.{stage}.2.layers.0"
    embed = w.conv(f"{top}.0")
    params |= {f"stage_{stage}_embed": embed} if stage else {"stem": {"conv_0": embed}}
    params[f"stage_{stage}_norm"] = w.norm(f"{top}.1", **channel)
    queries, pairs = f"{name}.0.fn.to_q.net", f"{name}.0.fn.to_kv.net"
    key, value = np.split(w[f"{pairs}.2.weight"], 2)
    mixer = {
      "query_conv": w.conv(f"{queries}.0"),
      "query_norm": w.norm(f"{queries}.1"),
      "query": w.inward(w[f"{queries}.2.weight"], heads),
      "key_value_conv": w.conv(f"{pairs}.0"),
      "key_value_norm": w.norm(f"{pairs}.1"),
      "key": w.inward(key, heads),
      "value": w.inward(value, heads),
      "out": w.outward(f"{name}.0.fn.to_out.0", heads),
    }
    params[f"stage_{stage}_block_0"] = {
      "mixer_norm": w.norm(f"{name}.0.norm", **channel),
      "token_mixer": mixer,
      "mlp_norm": w.norm(f"{name}.1.norm", **channel),
      "mlp": {"up": w.dense(f"{name}.1.fn.net.0"), "down": w.dense(f"{name}.1.fn.net.3")},
    }
    norms = {"query_norm": f"{queries}.1", "key_value_norm": f"{pairs}.1"}
    norms = {ours: w.statistics(theirs, prefix) for ours, theirs in norms.items()}
    statistics[f"stage_{stage}_block_0"] = {"token_mixer": norms}
  return params, statistics


def cct(w, prefix):
  top = "classifier"
  params = {
    "stem": {f"conv_{i}": w.conv(f"tokenizer.conv_layers.{i}.0") for i in range(2)},
    "posemb": {"table": w[f"{top}.positional_emb"]},
    "norm": w.norm(f"{top}.norm"),
    "pool": {"score": w.dense(f"{top}.attention_pool")},
    "head": w.dense(f"{top}.fc"),
  }
  for layer in range(2):
    name = f"{top}.blocks.{layer}"
    mixer = w.qkv(f"{name}.self_attn.qkv", 2) | {"out": w.outward(f"{name}.self_attn.proj", 2)}
    params[f"block_{layer}"] = {
      "mixer_norm": w.norm(f"{name}.pre_norm"),
      "token_mixer": mixer,
      "mlp_norm": w.norm(f"{name}.norm1"),
      "mlp": {"up": w.dense(f"{name}.linear1"), "down": w.dense(f"{name}.linear2")},
    }
  return params, {}


def vit(w, prefix):
  stem = "to_patch_embedding.1"  # unfolds patches as (p, p, c)
  kernel = w[f"{stem}.weight"].reshape(-1, 2, 2, 3).transpose(1, 2, 3, 0)
  params = {"stem": {"embed": {"kernel": kernel, **w.bias(stem)}}, **around(w)}
  for layer in range(2):
    params[f"block_{layer}"] = pre_norm_block(w, f"transformer.layers.{layer}", 2)
  return params, {}


def small_data(w, prefix):
  """Returns the parameters of a ViT with shifted patches.

  The recorded temperature is a logarithm, and common to all heads of a layer.
  """
  stem = "to_patch_embedding.to_patch_tokens"  # unfolds patches as (p, p, c)
  embed = {"norm": w.norm(f"{stem}.1"), "embed": w.dense(f"{stem}.2")}
  params = {"stem": embed, **around(w)}
  for layer in range(2):
    mixer, mlp = (f"transformer.layers.{layer}.{part}" for part in range(2))
    temperature = np.full(2, np.exp(w[f"{mixer}.temperature"]))
    params[f"block_{layer}"] = {
      "mixer_norm": w.norm(f"{mixer}.norm"),
      "token_mixer": w.qkv(f"{mixer}.to_qkv", 2)
      | {"out": w.outward(f"{mixer}.to_out.0", 2), "temperature": temperature},
      "mlp_norm": w.norm(f"{mlp}.net.0"),
      "mlp": {"up": w.dense(f"{mlp}.net.1"), "down": w.dense(f"{mlp}.net.4")},
    }
  return params, {}


CARRY = {"vit": vit, "levit": levit, "cvt": cvt, "pit": pit, "cct": cct, "small_data": small_data}
