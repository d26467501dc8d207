"""Token reduction: networks against NumPy, the shapes of DeiT-S, and combinations refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.small import vit
from vitx.blocks.token_reduction import TOKEN_REDUCTIONS
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout

IMAGES = np.random.default_rng(0).normal(size=(2, 4, 4, 3)).astype(np.float32)  # 16 patches
DEPTH = 3


def make(token_mixer="softmax", **fields):
  """Returns a network, and parameters of which none is small."""
  settings = {"pool": "cls", "depth": DEPTH, "norm": {"name": "layer", "epsilon": 1e-6}}
  model = vit(token_mixer, **(settings | fields))
  shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]
  random = np.random.default_rng(2)
  return model, jax.tree.map(lambda p: random.normal(0, 0.5, p.shape).astype(p.dtype), shapes)


def run(model, params, images=IMAGES, **given):
  """Returns the logits, and the tokens after each block."""
  apply = jax.jit(lambda p, x: model.apply({"params": p}, x, mutable=["intermediates"], **given))
  logits, found = apply(params, images)
  return logits, found["intermediates"]["tokens"]


def close(logits, wanted):
  np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def dense(x, module):
  kernel = np.asarray(module["kernel"], float)
  return np.tensordot(x, kernel, (-1, 0)) + np.asarray(module["bias"], float)


def norm(x, module):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x * np.asarray(module["scale"], float) + np.asarray(module["bias"], float)


def attend(x, params):
  """Returns the output of attention (N, C), and the class token's mean attention (N,)."""
  q, k, v = (dense(x, params[name]) for name in ("query", "key", "value"))
  logits = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(q.shape[-1])
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  out = np.einsum("hnm,mhd->nhd", weights, v)
  kernel = np.asarray(params["out"]["kernel"], float)
  return np.einsum("nhd,hdc->nc", out, kernel) + params["out"]["bias"], weights[:, 0].mean(0)


def reduce(x, attention, keep, fuse):
  """Applies EViT's reduction to tokens (N, C), the first of which is the class token."""
  patches, weights = x[1:], attention[1:]
  count = math.ceil(keep * len(patches))
  if count == len(patches):
    return x
  order = sorted(range(len(patches)), key=lambda i: -weights[i])
  rest = sum(weights[i] * patches[i] for i in order[count:])
  return np.stack([x[0], *(patches[i] for i in order[:count]), *([rest] if fuse else [])])


def definition(params, layers, keep, fuse):
  """Returns the logits of a network with EViT's reduction, one image after another."""
  erf = np.vectorize(math.erf)
  found = []
  for image in np.asarray(IMAGES, float):
    embed = params["stem"]["embed"]
    x = dense(image.reshape(16, 3), {**embed, "kernel": embed["kernel"][0, 0]})
    x = np.concatenate([np.asarray(params["cls"][0], float), x]) + params["posemb"]["table"][0]
    for layer in range(DEPTH):
      block = params[f"block_{layer}"]
      added, attention = attend(norm(x, block["mixer_norm"]), block["token_mixer"])
      x = x + added
      if layer in layers:
        x = reduce(x, attention, keep, fuse)
      hidden = dense(norm(x, block["mlp_norm"]), block["mlp"]["up"])
      hidden = 0.5 * hidden * (1 + erf(hidden / math.sqrt(2)))
      x = x + dense(hidden, block["mlp"]["down"])
    found.append(dense(norm(x[0], params["norm"]), params["head"]))
  return np.stack(found)


EVIT = {"name": "evit", "layers": (1, 2), "keep": 0.6}


@pytest.mark.parametrize(
  ("fuse", "layers", "keep", "remat", "tokens"),
  [
    (True, (1, 2), 0.6, False, [17, 12, 9]),
    pytest.param(False, (0, 2), 0.3, True, [6, 6, 3], marks=pytest.mark.slow),
  ],
)
def test_evit_is_its_definition(layers, keep, fuse, remat, tokens):
  reduction = {"name": "evit", "layers": layers, "keep": keep, "fuse": fuse}
  model, params = make(token_reduction=reduction, remat=remat)
  logits, found = run(model, params)
  close(logits, definition(params, layers, keep, fuse))
  assert [x.shape[1] for x in found] == tokens
  assert not np.allclose(logits, definition(params, (), keep, fuse), rtol=1e-4)
  loss = lambda p: jnp.sum(model.apply({"params": p}, IMAGES, train=True))  # noqa: E731
  jax.eval_shape(jax.grad(loss), params)


def test_tokens_of_deit_s():
  """Four layers attend 197 tokens; later reductions may keep or drop the fused token."""
  from configs import imagenet
  from vitx.models import model_from_config

  arg = "deit_s,model.dtype=float32,model.token_reduction=evit,model.token_reduction.keep=0.7"
  model = model_from_config(imagenet.get_config(arg).model)
  images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  init = lambda key, images: model.init(key, images, mutable=True)["intermediates"]  # noqa: E731
  found = [x.shape[1] for x in jax.eval_shape(init, jax.random.key(0), images)["tokens"]]
  assert found == [197] * 3 + [n for n in (140, 100, 72) for _ in range(3)]
  layout, lengths = TokenLayout((14, 14), prefix=1), []
  half = TOKEN_REDUCTIONS["evit"](keep=0.5)
  for layer in range(12):
    layout = half.layout_after(layout, layer)
    lengths.append(layout.length)
  assert lengths == [197] * 3 + [n for n in (100, 52, 28) for _ in range(3)]


def test_zeroed_tokens_are_as_if_dropped_and_stay_away():
  """Zeroed tokens give the logits of dropped tokens, and stay zero in later layers.

  In this network, dropping and zeroing keep equal numbers of tokens.
  """
  model, params = make(token_reduction={"name": "zeroed", "layers": (0, 2), "keep": 0.5})
  logits, tokens = run(model, params)
  close(logits, definition(params, (0, 2), 0.5, fuse=False))
  shown = [np.any(np.asarray(x) != 0, axis=-1) for x in tokens]
  assert [set(x.sum(1)) for x in shown] == [{9}, {9}, {5}]
  assert np.all(shown[0][:, 0]) and np.all(shown[1] | ~shown[2])


@pytest.mark.slow  # compiles a network
def test_a_mask_of_tokens_is_reduced_with_them():
  """Masked tokens change no logits; the reduction removes them first, as their weight is zero."""
  model, params = make(token_reduction=EVIT)
  mask = np.random.default_rng(0).random((2, 17)) < 0.7
  mask[:, 0] = True
  apply = jax.jit(lambda images: model.apply({"params": params}, images, mask=mask))
  logits, hidden = apply(IMAGES), ~mask[:, 1:].reshape(2, 4, 4, 1)
  np.testing.assert_array_equal(logits, apply(np.where(hidden, IMAGES + 3, IMAGES)))
  assert not np.allclose(logits, definition(params, (1, 2), 0.6, fuse=True))


def test_a_masked_token_is_not_fused():
  layout, attention = TokenLayout((8,), prefix=1), np.arange(9, dtype=np.float32)[None]
  reduction = TOKEN_REDUCTIONS["evit"](layers=(0,), keep=0.6)
  x, mask = np.random.default_rng(0).random((1, 9, 2), np.float32), np.ones((1, 9), bool)
  mask[0, 1], attention[0, 1], x[0, 1] = False, 0, np.nan
  tokens, _ = reduction.reduce(x, layout, mask, attention, number=0)
  np.testing.assert_allclose(tokens[0, -1], 2 * x[0, 2] + 3 * x[0, 3], rtol=1e-6)


@pytest.mark.parametrize("fuse", [True, False])
def test_the_weights_of_fused_tokens_alone_have_a_gradient(fuse):
  layout, x = TokenLayout((8,), prefix=1), np.random.default_rng(0).random((1, 9, 2), np.float32)
  reduction = TOKEN_REDUCTIONS["evit"](layers=(0,), keep=0.6, fuse=fuse)

  def loss(attention, mask):
    tokens, shown = reduction.reduce(x, layout, mask, attention, number=0)
    return jnp.sum(tokens), shown

  slope = jax.jit(jax.grad(loss, has_aux=True))
  for hidden in (1, 3):  # of the three tokens that are removed
    mask = np.array([[True, *[False] * hidden, *[True] * (8 - hidden)]])
    slopes, shown = slope(np.arange(9, dtype=np.float32)[None], mask)
    np.testing.assert_array_equal(shown[0], [True] * 6 + [hidden < 3] * fuse)
    wanted = np.isin(np.arange(9), range(hidden + 1, 4)) & fuse
    np.testing.assert_array_equal(slopes[0] != 0, wanted)


@pytest.mark.slow  # compiles a network
@pytest.mark.parametrize("granularity", ["token", "block"])
def test_sparsifiner_goes_on_where_tokens_keep_their_places(granularity):
  mixer = {"name": "sparsifiner", "keep": 0.5, "granularity": granularity, "block": 4, "slots": 5}
  reduction = {"name": "zeroed", "layers": (0,), "keep": 0.5}
  logits, tokens = run(*make(mixer, token_reduction=reduction, depth=2))
  assert np.all(np.isfinite(logits))
  for x in tokens:
    assert x.shape[1] == 17 and set(np.any(np.asarray(x) != 0, axis=-1).sum(1)) == {9}


@pytest.mark.parametrize(
  ("mixer", "fields", "message"),
  [
    ("sparsifiner", {}, r"parameters of Sparsifiner belong to the places.*'zeroed'"),
    ("performer", {}, r"Performer does not return; use model\.token_mixer='softmax'"),
    ({"name": "neighborhood", "size": 3}, {}, r"NeighborhoodAttention does not return"),
    ({"name": "bilevel", "regions": 2}, {}, r"BilevelAttention does not return"),
    ("softmax", {"posemb": "rope"}, r"token_mixer\.rotary='sequence' needs the places.*'zeroed'"),
    ({"name": "softmax", "relative_bias": "axial"}, {}, r"relative_bias='axial' needs the places"),
    ("softmax", {"block": "parallel"}, r"ParallelBlock does not support.*model\.block='pre_norm'"),
    ("softmax", {"pool": "mean"}, r"model\.pool has no class token"),
    ("softmax", {"depth": 2}, r"layers=\(1, 2\) must name layers of 0 .* model\.depth=2"),
    (
      "softmax",
      {"token_reduction": {"name": "evit", "layers": (2, 1)}},
      r"layers=\(2, 1\).*ascending",
    ),
    (
      "softmax",
      {"token_reduction": {"name": "evit", "keep": 0.0}},
      r"model\.token_reduction\.keep=0\.0 is out of range",
    ),
    ("softmax", {"token_reduction": "evits"}, r"Did you mean 'evit'"),
  ],
)
def test_what_cannot_be_combined_is_named(mixer, fields, message):
  settings = {"pool": "cls", "depth": DEPTH, "token_reduction": EVIT}
  with pytest.raises(ConfigError, match=message):
    jax.eval_shape(vit(mixer, **(settings | fields)).init, jax.random.key(0), IMAGES)


def test_without_layers_or_of_too_large_a_share_nothing_is_given_up():
  layout = TokenLayout((4, 4), prefix=1)
  evit = TOKEN_REDUCTIONS["evit"](layers=(2,), keep=0.99)  # ceil(.99 16) is 16
  x = np.zeros((1, 17, 2))
  assert evit.reduce(x, layout, None, x[..., 0], number=0)[0] is x
  assert evit.layout_after(layout, 2) == layout
  for name, reduction in TOKEN_REDUCTIONS.items():
    layers = () if name == "none" else (1,)
    made = reduction() if name == "none" else reduction(layers=layers)
    assert made.at(0) is None and made.layout_after(layout, 0) == layout
