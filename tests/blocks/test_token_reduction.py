"""Token reduction: networks against NumPy, the shapes of DeiT-S, and combinations refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.small import vit
from tests.drawn import draw_variables
from vitx.attention.softmax import SoftmaxAttention
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


def run(model, params, images=IMAGES, **options):
  """Returns the logits, and the tokens after each block."""
  apply = jax.jit(lambda p, x: model.apply({"params": p}, x, mutable=["intermediates"], **options))
  logits, sown = apply(params, images)
  return logits, sown["intermediates"]["tokens"]


def close(logits, expected):
  np.testing.assert_allclose(logits, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def dense(x, module):
  kernel = np.asarray(module["kernel"], float)
  return np.tensordot(x, kernel, (-1, 0)) + np.asarray(module["bias"], float)


def norm(x, module):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x * np.asarray(module["scale"], float) + np.asarray(module["bias"], float)


def attend(x, params, sizes):
  """Returns the output of attention (N, C), the weights (H, N, N), and the keys (N, H, D)."""
  q, k, v = (dense(x, params[name]) for name in ("query", "key", "value"))
  logits = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(q.shape[-1])
  weights = np.exp(logits - logits.max(-1, keepdims=True)) * sizes
  weights /= weights.sum(-1, keepdims=True)
  out = np.einsum("hnm,mhd->nhd", weights, v)
  kernel = np.asarray(params["out"]["kernel"], float)
  return np.einsum("nhd,hdc->nc", out, kernel) + params["out"]["bias"], weights, k


def make_evit(layers, keep, fuse):
  """Returns EViT's reduction of tokens (N, C), the first of which is the class token."""

  def reduce(layer, x, sizes, weights, keys):
    patches, attention = x[1:], weights[:, 0].mean(0)[1:]
    count = math.ceil(keep * len(patches))
    if layer not in layers or count == len(patches):
      return x, sizes
    order = sorted(range(len(patches)), key=lambda i: -attention[i])
    rest = sum(attention[i] * patches[i] for i in order[count:])
    x = np.stack([x[0], *(patches[i] for i in order[:count]), *([rest] if fuse else [])])
    return x, np.ones(len(x))

  return reduce


def make_tome(layers, remove, prefix=1):
  """Returns ToMe's reduction, token by token; the first `prefix` tokens are never merged."""

  def reduce(layer, x, sizes, weights, keys):
    if layer not in layers:
      return x, sizes
    keys = keys.mean(1)
    unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
    links = []
    for i in range(0, len(x), 2):
      others = [j for j in range(1, len(x), 2) if j >= prefix]
      if i >= prefix:
        best = max(others, key=lambda j: unit[i] @ unit[j])
        links.append((-(unit[i] @ unit[best]), i, best))
    merged = sorted(links)[: min(remove, (len(x) - prefix) // 2)]
    sums, total = x * sizes[:, None], sizes.copy()
    for _, i, j in merged:
      sums[j] += x[i] * sizes[i]
      total[j] += sizes[i]
    gone = {i for _, i, _ in merged}
    places = [*range(prefix), *range(prefix, len(x))]
    order = places[:prefix] + sorted(places[prefix:], key=lambda i: (i % 2, i))
    order = [i for i in order if i not in gone]
    return (sums / total[:, None])[order], total[order]

  return reduce


def definition(params, reduce, images=IMAGES):
  """Returns the logits of a network with a reduction, one image after another."""
  erf = np.vectorize(math.erf)
  logits = []
  for image in np.asarray(images, float):
    embed = params["stem"]["embed"]
    x = dense(image.reshape(16, 3), {**embed, "kernel": embed["kernel"][0, 0]})
    front = [np.asarray(params[name][0], float) for name in ("cls", "extra") if name in params]
    x = np.concatenate([*front, x]) + params["posemb"]["table"][0]
    sizes = np.ones(len(x))
    for layer in range(DEPTH):
      block = params[f"block_{layer}"]
      added, *found_in_attention = attend(norm(x, block["mixer_norm"]), block["token_mixer"], sizes)
      x, sizes = reduce(layer, x + added, sizes, *found_in_attention)
      hidden = dense(norm(x, block["mlp_norm"]), block["mlp"]["up"])
      hidden = 0.5 * hidden * (1 + erf(hidden / math.sqrt(2)))
      x = x + dense(hidden, block["mlp"]["down"])
    logits.append(dense(norm(x[0], params["norm"]), params["head"]))
  return np.stack(logits)


def check(model, params, reduce, keep_all, tokens):
  """Compares a network with its definition, in which the reduction matters; traces a gradient."""
  logits, sown = run(model, params)
  close(logits, definition(params, reduce))
  assert [x.shape[1] for x in sown] == tokens
  assert not np.allclose(logits, definition(params, keep_all), rtol=1e-4)
  loss = lambda p: jnp.sum(model.apply({"params": p}, IMAGES, train=True))  # noqa: E731
  jax.eval_shape(jax.grad(loss), params)


EVIT = {"name": "evit", "layers": (1, 2), "keep": 0.6}


@pytest.mark.slow  # compiles networks
@pytest.mark.parametrize(
  ("fuse", "layers", "keep", "remat", "tokens"),
  [(True, (1, 2), 0.6, False, [17, 12, 9]), (False, (0, 2), 0.3, True, [6, 6, 3])],
)
def test_evit_equals_its_definition(layers, keep, fuse, remat, tokens):
  reduction = {"name": "evit", "layers": layers, "keep": keep, "fuse": fuse}
  model, params = make(token_reduction=reduction, remat=remat)
  check(model, params, make_evit(layers, keep, fuse), make_evit((), keep, fuse), tokens)


MERGED = [
  *(({}, 1, (0, 1, 2), 3, "masked", [14, 11, 8]), ({}, 1, (0, 1), 99, "kernelized", [9, 5, 5])),
  ({"extra_tokens": 2}, 3, (0, 2), 5, "kernelized", [14, 14, 9]),
]


@pytest.mark.slow  # compiles networks
@pytest.mark.parametrize(
  ("fields", "prefix", "layers", "remove", "implementation", "tokens"), MERGED
)
def test_tome_equals_its_definition(fields, prefix, layers, remove, implementation, tokens):
  mixer = {"name": "softmax", "implementation": implementation}
  reduction = {"name": "tome", "layers": layers, "remove": remove}
  model, params = make(mixer, token_reduction=reduction, **fields)
  check(model, params, make_tome(layers, remove, prefix), make_tome((), 0), tokens)


@pytest.mark.parametrize(
  ("implementation", "dtype"),
  [
    ("masked", "float32"),
    ("kernelized", "bfloat16"),
    pytest.param("masked", "bfloat16", marks=pytest.mark.slow),
    pytest.param("kernelized", "float32", marks=pytest.mark.slow),
  ],
)
def test_a_token_of_size_s_is_attended_as_s_tokens(implementation, dtype):
  mixer = SoftmaxAttention(num_heads=2, implementation=implementation, dtype=dtype)
  x = np.random.default_rng(0).normal(size=(1, 4, 8)).astype(np.float32)
  counts = np.array([1, 3, 1, 2])
  repeated, first = np.repeat(x, counts, axis=1), np.cumsum(counts) - counts
  params = draw_variables(lambda key: mixer.init(key, x, TokenLayout((4,)), train=False))

  def loss(x, sizes):
    out = mixer.apply(params, x, TokenLayout((x.shape[1],)), mask=sizes, train=False)
    out = out if sizes is not None else out[:, first]
    return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

  gradient = jax.jit(jax.grad(loss, has_aux=True))
  slopes, out = gradient(x, counts[None].astype(np.float32))
  parts, expected = gradient(repeated, None)
  error = 1e-5 if dtype == "float32" else 0.03
  np.testing.assert_allclose(out, expected, rtol=error, atol=error)
  np.testing.assert_allclose(slopes, np.add.reduceat(parts, first, axis=1), rtol=error, atol=error)


def test_merging_equal_tokens_changes_no_logits():
  """Without positions, tokens of equal neighbors merge without loss, since sizes count."""
  doubled = np.repeat(IMAGES[:, :, ::2], 2, axis=2)
  reduction = {"name": "tome", "layers": (0,), "remove": 8}
  model, params = make(token_reduction=reduction, posemb="none")
  logits, sown = run(model, params, doubled)
  assert sown[0].shape[1] == 9
  whole, _ = run(make(posemb="none")[0], params, doubled)
  close(logits, whole)


def test_deit_s_has_the_published_numbers_of_tokens():
  """Four layers attend 197 tokens; later reductions may keep or drop the fused token."""
  for keep, later in ((0.7, (140, 100, 72)), (0.5, (100, 52, 28))):
    layout, lengths = TokenLayout((14, 14), prefix=1), []
    for layer in range(12):
      layout = TOKEN_REDUCTIONS["evit"](keep=keep).layout_after(layout, layer)
      lengths.append(layout.length)
    assert lengths == [197] * 3 + [n for n in later for _ in range(3)]


def test_zeroed_tokens_have_the_effect_of_dropped_tokens():
  """Zeroed tokens give the logits of dropped tokens, and stay zero in later layers.

  In this network, dropping and zeroing keep equal numbers of tokens.
  """
  model, params = make(token_reduction={"name": "zeroed", "layers": (0, 2), "keep": 0.5})
  logits, tokens = run(model, params)
  close(logits, definition(params, make_evit((0, 2), 0.5, fuse=False)))
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
  assert not np.allclose(logits, definition(params, make_evit((1, 2), 0.6, fuse=True)))


def test_a_masked_token_is_not_fused():
  layout, attention = TokenLayout((8,), prefix=1), np.arange(9, dtype=np.float32)[None]
  reduction = TOKEN_REDUCTIONS["evit"](layers=(0,), keep=0.6)
  x, mask = np.random.default_rng(0).random((1, 9, 2), np.float32), np.ones((1, 9), bool)
  mask[0, 1], attention[0, 1], x[0, 1] = False, 0, np.nan
  tokens, _ = reduction.reduce(x, layout, mask, attention, number=0)
  np.testing.assert_allclose(tokens[0, -1], 2 * x[0, 2] + 3 * x[0, 3], rtol=1e-6)


@pytest.mark.parametrize("fuse", [True, False])
def test_only_the_weights_of_fused_tokens_have_a_gradient(fuse):
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
    expected = np.isin(np.arange(9), range(hidden + 1, 4)) & fuse
    np.testing.assert_array_equal(slopes[0] != 0, expected)


@pytest.mark.slow  # compiles a network
@pytest.mark.parametrize("granularity", ["token", "block"])
def test_sparsifiner_works_where_tokens_keep_their_places(granularity):
  mixer = {"name": "sparsifiner", "keep": 0.5, "granularity": granularity, "block": 4, "slots": 5}
  reduction = {"name": "zeroed", "layers": (0,), "keep": 0.5}
  logits, tokens = run(*make(mixer, token_reduction=reduction, depth=2))
  assert np.all(np.isfinite(logits))
  for x in tokens:
    assert x.shape[1] == 17 and set(np.any(np.asarray(x) != 0, axis=-1).sum(1)) == {9}


TOME = {"name": "tome", "layers": (0,)}
REFUSED = [
  ("sparsifiner", {}, r"parameters of Sparsifiner belong to places"),
  ("performer", {}, r"Performer \(causal=False\) does not return"),
  ("sparsifiner", {"token_reduction": {**EVIT, "name": "zeroed"}, "pool": "mean"}, r"class token"),
  ({"name": "neighborhood", "size": 3}, {"token_reduction": TOME}, r"by their 'keys'"),
  ("softmax", {"pool": "mean_of_all", "causal": True}, r"causal=True"),
  ("softmax", {"posemb": "rope"}, r"token_mixer\.rotary='sequence' needs the places"),
  ("softmax", {"depth": 2}, r"layers=\(1, 2\) must name layers of 0 .* model\.depth=2"),
  ("softmax", {"token_reduction": {"name": "evit", "layers": (2, 1)}}, r"ascending"),
]


@pytest.mark.parametrize(("mixer", "fields", "message"), REFUSED)
def test_a_reduction_that_would_compare_nothing_is_refused(mixer, fields, message):
  settings = {"pool": "cls", "depth": DEPTH, "token_reduction": EVIT}
  with pytest.raises(ConfigError, match=message):
    jax.eval_shape(vit(mixer, **(settings | fields)).init, jax.random.key(0), IMAGES)


def test_a_reduction_without_layers_removes_nothing():
  layout = TokenLayout((4, 4), prefix=1)
  evit = TOKEN_REDUCTIONS["evit"](layers=(2,), keep=0.99)  # ceil(.99 16) is 16
  x = np.zeros((1, 17, 2))
  assert evit.reduce(x, layout, None, x[..., 0], number=0)[0] is x
  assert evit.layout_after(layout, 2) == layout
  for name, reduction in TOKEN_REDUCTIONS.items():
    layers = () if name == "none" else (1,)
    instance = reduction() if name == "none" else reduction(layers=layers)
    assert instance.at(0) is None and instance.layout_after(layout, 0) == layout
