"""Decoding token by token with a cache equals the causal call, or is refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawn import draw_variables
from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.blocks.pre_norm import PreNormBlock
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout

WIDTH, HEADS = 16, 4
LAYOUT = TokenLayout((27,))  # three strides of 8 and a part of one, or three windows


def make(name, **fields):
  return MIXERS[name](num_heads=HEADS, causal=True, **fields)


def tokens(layout, dtype=np.float32):
  return np.random.default_rng(0).normal(size=(2, layout.length, WIDTH)).astype(dtype)


def variables(mixer, layout, x, **options):
  """Returns random parameters, and the other collections that `init` makes."""
  drawn = draw_variables(mixer.init, x, layout=layout, train=False, **options)
  return drawn.pop("params"), drawn


def check(mixer, layout=LAYOUT, tolerance=1e-5):
  """Compares decoding token by token with the causal call; returns the cache at the end."""
  x = tokens(layout, mixer.dtype)
  params, state = variables(mixer, layout, x[:, :1], at=np.zeros(1, np.int32))
  cache = jax.tree.map(lambda c: np.zeros(c.shape, c.dtype), state["cache"])

  def decode(params, x, cache, at):
    now = jax.lax.dynamic_slice_in_dim(x, at, 1, axis=1)
    options = {"at": at[None], "train": False, "mutable": ["cache"]}
    out, changed = mixer.apply({"params": params, "cache": cache}, now, layout, **options)
    return changed["cache"], out[:, 0]

  @jax.jit
  def run(params, x, cache):
    step = partial(decode, params, x)
    whole = mixer.clone(implementation="masked").apply({"params": params}, x, layout, train=False)
    places = jnp.arange(layout.length, dtype=jnp.int32)
    return whole, *jax.lax.scan(step, cache, places)

  whole, cache, out = jax.device_get(run(params, x, cache))
  decoded, expected = (y.astype(np.float32) for y in (np.moveaxis(out, 0, 1), whole))
  np.testing.assert_allclose(decoded, expected, rtol=tolerance, atol=tolerance)
  return cache


# The mixer, its fields, and the number of slots that its cache has for each head. Other patterns
# are in tests/ops/test_decode.py.
STRIDED, FIXED = {"stride": 8, "form": "code"}, {"stride": 8, "summary": 2}
CASES = [
  ("softmax", {}, 27),
  ("softmax", {"rotary": "sequence", "qk_norm": True, "value_dim": 3, "value_bias": False}, 27),
  ("softmax", {"relative_bias": "axial", "head_dim": 6}, 27),
  ("strided", STRIDED | {"arrangement": "layers", "layer": 1}, 8),
  ("strided", STRIDED | {"arrangement": "heads", "value_dim": 2}, 27),
  ("fixed", FIXED | {"arrangement": "merged", "distinct": 4}, 12),
  ("longformer", {"window": 3, "dilation": (1, 3)}, 10),
  ("pattern", {"edges": "window_causal"}, 5),
  ("locality", {"rotary": "sequence"}, 27),
  # Grids, and a token before the grid.
  ("neighborhood", {"size": 3}, 21),
  ("axial", {"rotary": "axial"}, 20),
  ("shifted_window", {"size": 2, "layer": 1, "relative_bias": "window"}, 20),
]
GRIDS = {"neighborhood": TokenLayout((4, 5), prefix=1)}
GRIDS |= dict.fromkeys(("axial", "shifted_window"), TokenLayout((4, 5)))
QUICK = ("softmax", "pattern")


@pytest.mark.parametrize(("name", "fields", "count"), all_but(*QUICK, of=CASES))
def test_decoding_equals_the_causal_call(name, fields, count):
  cache = check(make(name, **fields), GRIDS.get(name, LAYOUT))
  assert cache["cached_key"].shape[2] == cache["cached_value"].shape[2] <= count
  width = fields.get("value_dim", fields.get("head_dim", 4))
  assert cache["cached_value"].shape[3] == width


def test_the_cache_has_the_mixers_dtype():
  cache = check(make("strided", stride=8, form="code", dtype=jnp.bfloat16), tolerance=0.05)
  assert cache["cached_key"].dtype == cache["cached_value"].dtype == jnp.bfloat16


def call(mixer, at, n=1, **options):
  """Traces a call of a mixer on `n` tokens at the places `at`."""
  x, at = tokens(TokenLayout((n,))), np.array(at, np.int32)
  params, state = variables(mixer, LAYOUT, tokens(LAYOUT))
  apply = partial(mixer.apply, layout=LAYOUT, train=False, **options)
  return jax.eval_shape(apply, {"params": params, **state}, x, at=at)


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_every_mixer_decodes_or_refuses_to(name):
  kind = MIXERS[name]
  if kind.decodes:
    assert kind.properties.accepts_causal
    return
  mixer = lambda name: kind(num_heads=HEADS, name=name)  # noqa: E731
  block = PreNormBlock(token_mixer=mixer, mlp_dim=4, norm=lambda **_: lambda x: x)
  x = tokens(TokenLayout((1,)))
  with pytest.raises(ConfigError, match=f"{kind.__name__} cannot be decoded token by token"):
    block.apply({}, x, LAYOUT, at=np.zeros(1, np.int32), train=False, mutable=["cache"])


REFUSED = [
  (MIXERS["softmax"](HEADS), [0], {"mutable": ["cache"]}, "causal=True"),
  (make("strided", stride=8), [0], {}, "only with a mutable 'cache'"),
  (make("softmax"), [0, 1], {"mutable": ["cache"]}, r"takes one token \(not 2\)"),
]


@pytest.mark.parametrize(("mixer", "at", "options", "message"), REFUSED)
def test_a_call_that_cannot_decode_is_refused(mixer, at, options, message):
  with pytest.raises(ConfigError, match=message):
    call(mixer, at, n=len(at), **options)


def test_a_cache_is_made_empty():
  options = {"layout": LAYOUT, "at": np.zeros(1, np.int32), "train": False}
  init = jax.jit(partial(make("fixed", stride=8).init, **options))
  cache = init(jax.random.key(0), tokens(LAYOUT)[:, :1])["cache"]
  assert not any(np.any(c) for c in jax.tree.leaves(cache))
