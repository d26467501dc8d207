"""Each value of a token mixer's field works, or is refused in one line that names the field."""

import functools

import jax
import numpy as np
import pytest

import vitx
from tests.slow import all_but
from vitx.attention import FROM_MODEL, MIXERS
from vitx.config.errors import ConfigError
from vitx.config.registry import options
from vitx.ops.layout import TokenLayout

BAD = (-1, 0, 10**9, 1e9, float("nan"), "x", True, None, (0,), ())
# What mixers need in order to run over a grid of 4 x 4.
NEEDED = {
  "bigbird": {"block": 4},
  "bilevel": {"regions": 2},
  "neighborhood": {"size": 3},
  "watts_strogatz": {"neighbors": 4},
}
FIELDS = [
  (name, field)
  for name, mixer in MIXERS.items()
  for field in options(mixer)
  if field not in FROM_MODEL
]


SMALL = {"num_classes": 3, "width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8, "pool": "mean"}
LAYOUT = TokenLayout((4, 4))


def run(name, **fields):
  """Makes a network of one block, and traces the initialization and a call of its mixer."""
  mixer = {"name": name, **NEEDED.get(name, {}), **fields}
  vitx.create_model("vit", **SMALL, stem={"name": "linear", "patch": 2}, token_mixer=mixer)
  # A field with its default value is left out, so that equal networks are traced once.
  usual = {key: option.default for key, option in options(MIXERS[name]).items()}
  trace(tuple(item for item in mixer.items() if item[1] is not usual.get(item[0], item)))


@functools.cache  # equal values, such as 10**9 and 1e9, are traced once
def trace(settings):
  fields = dict(settings)
  mixer = MIXERS[fields.pop("name")](num_heads=2, **fields)

  def forward(key, x):
    variables = mixer.init(key, x, LAYOUT, train=False)
    streams = dict.fromkeys(("dropout", "graph"), key)
    state = [name for name in variables if name != "params"]
    return mixer.apply(variables, x, LAYOUT, train=True, rngs=streams, mutable=state)[0]

  x = jax.ShapeDtypeStruct((2, LAYOUT.length, SMALL["width"]), np.float32)
  assert jax.eval_shape(forward, jax.random.key(0), x).shape == x.shape


QUICK = ("softmax", "bigbird")  # the other mixers trace for a minute, so they run with --all


@pytest.mark.parametrize(("name", "field"), all_but(*QUICK, of=FIELDS))
def test_fields_of_mixers(name, field):
  for value in BAD:
    try:
      run(name, **{field: value})
    except ConfigError as error:
      message = str(error)
      assert f"token_mixer.{field}" in message and "\n" not in message, (value, message)


def test_more_random_blocks_than_there_are_are_refused():
  fields = {"width": 8, "depth": 1, "num_heads": 2, "pool": "mean", "stem": "linear"}

  def trace(**mixer):
    model = vitx.create_model(
      "vit", num_classes=3, **fields, token_mixer={"name": "bigbird", **mixer}
    )
    images = jax.ShapeDtypeStruct((1, 16, 16, 3), np.float32)
    jax.eval_shape(model.init, jax.random.key(0), images)

  with pytest.raises(
    ConfigError, match=r"token_mixer.random=1000 exceeds the number of blocks, 8,"
  ):
    trace(block=2, random=1000)
  trace(block=2, random=8)
  trace()  # by default 3 random blocks, although there is one block
