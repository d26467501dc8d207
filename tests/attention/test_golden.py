"""Modules with the weights of independent implementations give their outputs (tests/golden)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.golden import BOTH, HEADS, close, inward, load, outward, run
from tests.slow import all_but
from vitx import ops
from vitx.attention.linformer import Linformer
from vitx.attention.nystromformer import Nystromformer
from vitx.attention.performer import Performer
from vitx.attention.softmax import SoftmaxAttention
from vitx.attention.xcit import CrossCovarianceAttention
from vitx.ops.kernels import features, linear


@BOTH
def test_softmax_equals_pytorch(implementation):
  g = load("softmax")
  weights, biases = np.split(g["in_proj_weight"], 3), np.split(g["in_proj_bias"], 3)
  params = {
    name: inward(*pair)
    for name, *pair in zip(("query", "key", "value"), weights, biases, strict=True)
  }
  params["out"] = outward(g["out_proj.weight"], g["out_proj.bias"])
  module = SoftmaxAttention(HEADS, implementation=implementation)
  close(run(module, {"params": params}, g["x"]), g["out"])
  close(run(module, {"params": params}, g["x"], g["mask"]), g["masked_out"])


@BOTH
@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_performer_equals_performer_pytorch(kernel, implementation):
  g = load(f"performer_{kernel}")
  params = {
    name: inward(g[f"to_{name[0]}.weight"], g[f"to_{name[0]}.bias"])
    for name in ("query", "key", "value")
  }
  params["out"] = outward(g["to_out.weight"], g["to_out.bias"])
  state = {"projection": g["fast_attention.projection_matrix"]}
  state |= {"seed": np.zeros(2, np.uint32), "calls": np.int32(0)}
  assert len(state["projection"]) == features.default_count(g["x"].shape[-1] // HEADS)
  module = Performer(HEADS, kernel=kernel, implementation=implementation)
  close(run(module, {"params": params, "features": state}, g["x"]), g["out"])


def test_cross_covariance_equals_timm():
  g = load("xcit")
  weights, biases = np.split(g["qkv.weight"], 3), np.split(g["qkv.bias"], 3)
  pairs = zip(("query", "key", "value"), weights, biases, strict=True)
  params = {name: inward(*pair) for name, *pair in pairs}
  params["out"] = outward(g["proj.weight"], g["proj.bias"])
  params["temperature"] = g["temperature"].reshape(HEADS)
  module = CrossCovarianceAttention(HEADS)
  close(run(module, {"params": params}, g["x"]), g["out"])
  mask = np.broadcast_to(np.arange(13) < 9, g["x"].shape[:2])  # as if there were fewer tokens
  close(run(module, {"params": params}, g["x"], mask)[:, :9], g["fewer_out"])


def test_features_equal_those_of_performer_pytorch(monkeypatch):
  monkeypatch.setattr(linear, "CHUNK", 4)
  g = load("features")
  first = lambda x: jnp.swapaxes(x, 1, 2)  # noqa: E731  heads first <-> tokens first

  def attend(*arrays, causal=False, implementation="kernelized"):
    return ops.linear_attention(*arrays, causal=causal, implementation=implementation)[0]

  @jax.jit
  def run(x, k, v, w):
    q, k, v = first(x), first(k), first(v)
    phi_q, phi_k = features.softmax_query_features(q, w), features.softmax_key_features(k, w)
    outputs = {
      "phi_q": phi_q,
      "phi_k": phi_k,
      "relu": features.generalized_features(q, w),
      "out": attend(phi_q, phi_k, v),
    }
    causal = [
      attend(phi_q, phi_k, v, causal=True, implementation=name) for name in ("masked", "kernelized")
    ]
    return jax.tree.map(first, (outputs, causal))

  outputs, causal = run(g["x"], g["k"], g["v"], g["projection"])
  for name, value in outputs.items():
    close(value, g[name])
  for value in causal:
    close(value, g["causal"])


@BOTH
@pytest.mark.parametrize("sharing", ["separate", "shared"])
def test_linformer_equals_the_package_linformer(sharing, implementation):
  g = load(f"linformer_{sharing}")
  shared = sharing == "shared"
  params = {"query": inward(g["to_q.weight"]), "key_slots": g["proj_k"]}
  params["key"] = inward(g["to_k.weight"], heads=1 if shared else HEADS)
  if not shared:
    params |= {"value": inward(g["to_v.weight"]), "value_slots": g["proj_v"]}
  params["out"] = outward(g["to_out.weight"], g["to_out.bias"])
  fields = {"share_kv": shared, "one_kv_head": shared, "use_bias": False, "slots": 5}
  module = Linformer(HEADS, implementation=implementation, **fields)
  close(run(module, {"params": params}, g["x"]), g["out"])


@BOTH
@pytest.mark.parametrize("length", all_but("padded", of=("aligned", "padded")))
def test_nystromformer_equals_nystrom_attention(length, implementation):
  g = load(f"nystrom_{length}")
  weights = np.split(g["to_qkv.weight"], 3)
  params = {n: inward(w) for n, w in zip(("query", "key", "value"), weights, strict=True)}
  params["out"] = outward(g["to_out.0.weight"], g["to_out.0.bias"])
  params["convolution"] = g["res_conv.weight"][:, 0, :, 0].T
  fields = {"landmarks": 4, "kernel_size": 5, "use_bias": False, "padding": "front"}
  module = Nystromformer(HEADS, implementation=implementation, pinv_scale="batch", **fields)
  close(run(module, {"params": params}, g["x"]), g["out"])
  # The outputs of masked tokens differ, and nothing reads them.
  close(run(module, {"params": params}, g["x"], g["mask"]), g["masked_out"], g["mask"])
  ours = module.clone(pinv_scale="example")
  assert np.abs(run(ours, {"params": params}, g["x"]) - g["out"]).max() > 1e-4
