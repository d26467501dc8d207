"""Blocks and small networks give the recorded values of their formulas (tests/golden)."""

from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.attention.shaped import ShapedAttention
from vitx.attention.softmax import SoftmaxAttention
from vitx.blocks.registry import BLOCKS
from vitx.models import create_model
from vitx.ops.layout import TokenLayout

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
WIDTH, HEADS, MLP, DEPTH = 8, 2, 12, 2
BOTH = pytest.mark.parametrize("implementation", ["masked", "kernelized"])
ONE_MAP = {"one_map": True, "per_head": False, "center": False, "start": "equal"}
ONE_HEAD = {"head_dim": WIDTH // HEADS, "value_dim": WIDTH}
NORM = partial(nn.LayerNorm, epsilon=1e-5)
FIRST = {"values": "first"}
MIXERS = {
  "simplified": (partial(ShapedAttention, HEADS), ONE_MAP),
  "vanilla": (partial(SoftmaxAttention, 1), ONE_HEAD),
  "sas_p": (partial(ShapedAttention, HEADS), FIRST),
  "sas": (partial(ShapedAttention, HEADS), FIRST),
}


def load(name):
  """Returns the recorded parameters, nested by module, the input and the output."""
  with np.load(GOLDEN / f"{name}.npz") as file:
    recorded = dict(file)
  x, out = recorded.pop("x"), recorded.pop("out")
  params = {}
  for path, value in recorded.items():
    *modules, leaf = path.split(".")
    node = params
    for module in modules:
      node = node.setdefault(module, {})
    node[leaf] = value
  return params, jnp.asarray(x), out


def in_heads(block, kind):
  """Returns a block's parameters with the kernels (C, H, D) of values and (H, D, C) of output."""
  mixer, heads = block["token_mixer"], 1 if kind == "vanilla" else HEADS
  for name, shape in (("value", (WIDTH, heads, -1)), ("out", (heads, -1, WIDTH))):
    if name in mixer:
      mixer[name]["kernel"] = mixer[name]["kernel"].reshape(shape)
  if "bias" in mixer.get("value", {}):
    mixer["value"]["bias"] = mixer["value"]["bias"].reshape(heads, -1)
  return block


def close(actual, expected):
  """Checks that values are equal within 1e-5 of the largest."""
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@BOTH
@pytest.mark.parametrize("kind", MIXERS)
def test_a_block_equals_its_recorded_formula(kind, implementation):
  params, x, out = load(f"block_{kind}")
  mixer, fields = MIXERS[kind]
  fields = {**fields, "implementation": implementation}
  block = BLOCKS[kind](token_mixer=partial(mixer, **fields), mlp_dim=MLP, norm=NORM)
  variables = {"params": in_heads(params["block"], kind)}
  run = jax.jit(partial(block.apply, train=False), static_argnums=2)
  close(run(variables, x, TokenLayout((5,))), out)


@BOTH
@pytest.mark.parametrize("kind", ["simplified", "vanilla"])
def test_a_network_equals_its_recorded_formula(kind, implementation):
  params, images, out = load(f"network_{kind}")
  for layer in range(DEPTH):
    in_heads(params[f"block_{layer}"], kind)
  mixer = {"name": "shaped", **ONE_MAP} if kind == "simplified" else {"name": "softmax", **ONE_HEAD}
  model = create_model(
    "vit",
    num_classes=3,
    width=WIDTH,
    depth=DEPTH,
    num_heads=HEADS if kind == "simplified" else 1,
    mlp_dim=MLP,
    stem={"name": "linear", "patch": 2},
    posemb={"name": "learned", "prefix": False},
    norm={"name": "layer", "epsilon": 1e-5},
    block=kind,
    token_mixer=mixer | {"implementation": implementation},
    head_hidden=WIDTH,
  )
  close(jax.jit(model.apply)({"params": params}, images), out)
