"""The trunk: the fields and arguments that its blocks get, and a network of tokens built on it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.attention import MIXERS
from vitx.blocks.registry import BLOCKS
from vitx.config.registry import build
from vitx.models.trunk import Trunk
from vitx.ops.layout import TokenLayout

LAYOUT = TokenLayout((6,))
TOKENS = np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32)


class Recorder(nn.Module):
  """A mixer that records its fields and the arguments of its calls."""

  num_heads: int
  dtype: jnp.dtype = jnp.float32
  layer: int = 0
  depth: int = 1
  causal: bool = False
  rotary: str = "none"
  rotary_base: float = 1.0

  @nn.compact
  def __call__(self, x, layout, *, mask=None, at=None, train):
    fields = ("num_heads", "layer", "depth", "causal", "rotary", "rotary_base")
    CALLS.append({name: getattr(self, name) for name in fields} | {"mask": mask, "at": at})
    return x


CALLS: list[dict] = []


class Decoder(Trunk):
  """A trunk that maps tokens to tokens."""

  depth: int = 2

  @nn.compact
  def __call__(self, x, *, mask=None, at=None, train=False):
    x = self.add_positions(x, LAYOUT, at)
    sizes = {"layers": range(self.depth), "depth": self.depth, "num_heads": 2, "mlp_dim": 8}
    return self.run_blocks(x, LAYOUT, mask=mask, at=at, train=train, **sizes)


def decoder(mixer=Recorder, **fields):
  parts = {}
  for field, (table, default, hidden) in Trunk.PARTS.items():
    spec = fields.pop(field, default)
    parts[field] = build(table, spec, field, hidden)
  return Decoder(**{**parts, "token_mixer": mixer, **fields})


def run(model, **extra):
  """Traces the initialization and a call of a network, which is not compiled."""
  CALLS.clear()
  return jax.eval_shape(lambda key: model.init_with_output(key, TOKENS, **extra), jax.random.key(0))


def test_parameters_are_in_the_scope_of_the_network():
  _, variables = run(decoder())
  assert sorted(variables["params"]) == ["block_0", "block_1", "posemb"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("remat", [False, True])
def test_mask_and_places_reach_every_mixer(block, remat):
  mask, at = np.ones((2, 6), bool), np.arange(6)
  run(decoder(block=block, remat=remat), mask=mask, at=at)
  assert [call["layer"] for call in CALLS] == [0, 1]
  for call in CALLS:
    assert call["mask"] is mask and call["at"] is at and call["depth"] == 2


def test_the_trunk_sets_fields_of_the_mixer():
  run(decoder(causal=True, posemb={"name": "rope", "kind": "axial", "base": 7.0}))
  assert {(c["causal"], c["rotary"], c["rotary_base"], c["num_heads"]) for c in CALLS} == {
    (True, "axial", 7.0, 2)
  }
  run(decoder())
  assert {(c["causal"], c["rotary"]) for c in CALLS} == {(False, "none")}


def whole_and_some(model, chosen, at):
  """Returns the outputs of chosen tokens, computed with all tokens and computed alone."""

  @jax.jit
  def both(key):
    whole, variables = model.init_with_output(key, TOKENS)
    return whole[:, chosen], model.apply(variables, TOKENS[:, chosen], at=at)

  return both(jax.random.key(0))


@pytest.mark.parametrize("posemb", ["learned", "sincos", "none"])
def test_tokens_at_some_places_get_the_positions_of_these_places(posemb):
  at = np.array([4, 1], np.int32)
  # The recorder mixes no tokens, so that outputs do not depend on other tokens.
  whole, some = whole_and_some(decoder(posemb=posemb), at, jnp.array(at))
  np.testing.assert_allclose(some, whole, rtol=1e-5, atol=1e-6)


def test_one_program_serves_all_places():
  model = decoder()
  whole, variables = jax.jit(model.init_with_output)(jax.random.key(0), TOKENS)
  step = jax.jit(lambda x, at: model.apply(variables, x, at=at[None]))
  for place in range(6):
    one = step(TOKENS[:, place : place + 1], np.int32(place))
    np.testing.assert_allclose(one[:, 0], np.asarray(whole)[:, place], rtol=1e-5, atol=1e-6)
  assert step._cache_size() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
  ("mixer", "posemb"),
  [
    pytest.param("softmax", "learned", marks=pytest.mark.slow),
    ("softmax", "rope"),
    ("performer", "rope"),
    pytest.param("linear_transformer", "learned", marks=pytest.mark.slow),
  ],
)
def test_the_first_tokens_have_equal_outputs_alone_and_among_all(mixer, posemb):
  """A causal trunk gives the first tokens equal outputs alone and among all tokens."""
  model = decoder(MIXERS[mixer], posemb=posemb, causal=True, depth=1)
  whole, some = whole_and_some(model, np.arange(4), jnp.arange(4))
  np.testing.assert_allclose(some, whole, rtol=1e-5, atol=1e-6)
