"""Token reduction: whole networks against NumPy, the shapes of DeiT-S, what cannot be combined."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.small import vit
from vitx.blocks.token_reduction import TOKEN_REDUCTIONS
from vitx.errors import ConfigError
from vitx.models import initialize
from vitx.ops.layout import TokenLayout

IMAGES = jax.random.normal(jax.random.key(0), (2, 4, 4, 3))  # 16 patches of a pixel
DEPTH = 4
SLOW = pytest.mark.slow  # compiles networks of four blocks


def make(token_mixer="softmax", **fields):
  """A network and parameters of which none is small."""
  settings = {"pool": "cls", "depth": DEPTH, "norm": {"name": "layer", "epsilon": 1e-6}}
  model = vit(token_mixer, **(settings | fields))
  params = jax.jit(lambda key: initialize(model, key, IMAGES))(jax.random.key(1))["params"]
  keys = iter(jax.random.split(jax.random.key(2), 200))
  return model, jax.tree.map(lambda p: 0.5 * jax.random.normal(next(keys), p.shape), params)


def run(model, params, **given):
  def apply(params):
    return model.apply({"params": params}, IMAGES, mutable=["intermediates"], **given)

  logits, found = jax.jit(apply)(params)
  return logits, [x.shape[1] for x in found["intermediates"]["tokens"]]


def dense(x, module):
  kernel = np.asarray(module["kernel"], float)
  return np.tensordot(x, kernel, (-1, 0)) + np.asarray(module["bias"], float)


def norm(x, module):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x * np.asarray(module["scale"], float) + np.asarray(module["bias"], float)


def attend(x, params):
  """What attention adds to tokens (N, C), and the class token's mean attention (N,)."""
  q, k, v = (dense(x, params[name]) for name in ("query", "key", "value"))
  logits = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(q.shape[-1])
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  out = np.einsum("hnm,mhd->nhd", weights, v)
  kernel = np.asarray(params["out"]["kernel"], float)
  return np.einsum("nhd,hdc->nc", out, kernel) + params["out"]["bias"], weights[:, 0].mean(0)


def reduce(x, attention, keep, fuse):
  """EViT's step on tokens (N, C) whose first is the class token."""
  patches, weights = x[1:], attention[1:]
  count = math.ceil(keep * len(patches))
  if count == len(patches):
    return x
  order = sorted(range(len(patches)), key=lambda i: -weights[i])
  rest = sum(weights[i] * patches[i] for i in order[count:])
  return np.stack([x[0], *(patches[i] for i in order[:count]), *([rest] if fuse else [])])


def definition(params, layers, keep, fuse):
  """The logits of a network whose blocks give up tokens, one image after another."""
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
  ("fuse", "layers", "keep"),
  [
    (True, (1, 2), 0.6),
    pytest.param(False, (1, 2), 0.6, marks=SLOW),
    pytest.param(True, (0, 3), 0.3, marks=SLOW),
    pytest.param(True, (2,), 0.99, marks=SLOW),
  ],
)
def test_evit_is_its_definition(layers, keep, fuse):
  reduction = {"name": "evit", "layers": layers, "keep": keep, "fuse": fuse}
  model, params = make(token_reduction=reduction)
  logits, _ = run(model, params)
  wanted = definition(params, layers, keep, fuse)
  np.testing.assert_allclose(logits, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
  plain = run(make()[0], params)[0]
  assert np.allclose(plain, logits, rtol=1e-4) == (keep == 0.99)  # ceil(.99 16) is 16


@pytest.mark.parametrize("keep", [0.7, 0.5])
def test_tokens_of_deit_s(keep):
  """197 in four layers, then three times fewer, the fused token of before a candidate."""
  from configs import imagenet
  from vitx.models import model_from_config

  arg = f"deit_s,model.dtype=float32,model.token_reduction=evit,model.token_reduction.keep={keep}"
  model = model_from_config(imagenet.get_config(arg).model)

  def forward(key, images):
    variables = model.init(key, images)
    return model.apply(variables, images, mutable=["intermediates"])[1]["intermediates"]["tokens"]

  images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
  found = [x.shape[1] for x in jax.eval_shape(forward, jax.random.key(0), images)]
  steps = {0.7: (140, 100, 72), 0.5: (100, 52, 28)}[keep]
  assert found == [197] * 3 + [n for n in steps for _ in range(3)]


@pytest.mark.slow  # compiles two networks
def test_zeroed_tokens_are_as_if_dropped():
  """Where the budgets are the same, which for later layers they need not be."""
  fields = {"layers": (1,), "keep": 0.6}
  dropped, params = make(token_reduction={"name": "evit", "fuse": False, **fields})
  zeroed, _ = make(token_reduction={"name": "zeroed", **fields})
  (a, fewer), (b, all_) = run(dropped, params), run(zeroed, params)
  np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  assert fewer == [17, 11, 11, 11] and all_ == [17] * 4


def test_zeroed_budgets_are_powers_of_the_share_and_what_went_stays_away():
  model, params = make(token_reduction={"name": "zeroed", "layers": (0, 2), "keep": 0.5})
  apply = lambda p: model.apply({"params": p}, IMAGES, mutable=["intermediates"])  # noqa: E731
  tokens = jax.jit(apply)(params)[1]["intermediates"]["tokens"]
  shown = [np.any(np.asarray(x) != 0, axis=-1) for x in tokens]
  assert [set(x.sum(1)) for x in shown] == [{9}, {9}, {5}, {5}]
  assert np.all(shown[0][:, 0]) and np.all(shown[1] | ~shown[2])


@pytest.mark.slow  # compiles two networks
def test_a_mask_of_tokens_is_reduced_with_them():
  """What nobody may attend changes nothing; some of it is given up first, for it has no weight."""
  model, params = make(token_reduction=EVIT)
  mask = np.random.default_rng(0).random((2, 17)) < 0.7
  mask[:, 0] = True
  apply = jax.jit(lambda images: model.apply({"params": params}, images, mask=jnp.asarray(mask)))
  hidden = ~mask[:, 1:].reshape(2, 4, 4, 1)
  np.testing.assert_array_equal(apply(IMAGES), apply(jnp.where(hidden, IMAGES + 3, IMAGES)))
  assert not np.allclose(apply(IMAGES), jax.jit(model.apply)({"params": params}, IMAGES))


@SLOW
def test_fused_weights_have_a_gradient_and_remat_changes_nothing():
  found = []
  for remat in (False, True):
    model, params = make(token_reduction=EVIT, remat=remat)
    loss = lambda p, model=model: jnp.sum(jnp.sin(model.apply({"params": p}, IMAGES, train=True)))  # noqa: E731
    found.append(jax.jit(jax.grad(loss))(params))
  for a, b in zip(*map(jax.tree.leaves, found), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
  stopped = make(token_reduction={**EVIT, "fuse": False})[0]
  loss = lambda p: jnp.sum(jnp.sin(stopped.apply({"params": p}, IMAGES)))  # noqa: E731
  other = jax.jit(jax.grad(loss))(params)
  query = lambda grads: np.asarray(grads["block_2"]["token_mixer"]["query"]["kernel"])  # noqa: E731
  assert np.abs(query(found[0])).max() > 1e-6 and not np.allclose(query(found[0]), query(other))


@SLOW
@pytest.mark.parametrize("granularity", ["token", "block"])
def test_sparsifiner_goes_on_where_tokens_keep_their_places(granularity):
  mixer = {"name": "sparsifiner", "keep": 0.5, "granularity": granularity, "block": 4, "slots": 5}
  model, params = make(mixer, token_reduction={"name": "zeroed", "layers": (1,), "keep": 0.5})
  logits, counts = run(model, params)
  assert counts == [17] * 4 and np.all(np.isfinite(logits))
  assert not np.allclose(logits, run(make(mixer)[0], params)[0])


@pytest.mark.parametrize(
  ("mixer", "fields", "message"),
  [
    ("sparsifiner", {}, r"parameters of Sparsifiner belong to the places.*'zeroed'"),
    ("performer", {}, r"Performer does not tell; use token_mixer 'softmax'"),
    ({"name": "neighborhood", "size": 3}, {}, r"NeighborhoodAttention does not tell"),
    ({"name": "bilevel", "regions": 2}, {}, r"BilevelAttention does not tell"),
    ("softmax", {"posemb": "rope"}, r"token_mixer\.rotary='sequence' needs the places.*'zeroed'"),
    ({"name": "softmax", "relative_bias": "axial"}, {}, r"relative_bias='axial' needs the places"),
    ("softmax", {"block": "parallel"}, r"ParallelBlock has no such place.*model\.block='pre_norm'"),
    ("softmax", {"pool": "mean"}, r"model\.pool has no class token"),
    ("softmax", {"depth": 2}, r"layers=\(1, 2\) of a network of model\.depth=2: name layers of 0"),
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


def test_without_layers_nothing_is_given_up():
  layout = TokenLayout((4, 4), prefix=1)
  for name, reduction in TOKEN_REDUCTIONS.items():
    layers = () if name == "none" else (1,)
    made = reduction() if name == "none" else reduction(layers=layers)
    assert made.at(0) is None and made.layout_after(layout, 0) == layout
