"""The parallel block."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np

from tests.blocks.small import LAYOUT, TOKENS, B, H, M, close, draw
from vitx.attention.softmax import SoftmaxAttention
from vitx.blocks.parallel import ParallelBlock
from vitx.layers.mlp import MLP

VIT_22B = {"use_bias": False, "qk_norm": True}


def make(mixer=None, **fields):
  mixer = partial(SoftmaxAttention, H, **(mixer or {}))
  block = ParallelBlock(token_mixer=mixer, mlp_dim=M, **fields)
  return block, draw(block)


@partial(jax.jit, static_argnums=0)
def run(block, params, key=None):
  options = {} if key is None else {"rngs": {"dropout": key}}
  return block.apply({"params": params}, TOKENS, LAYOUT, train=bool(options), **options)


def without(params, *modules):
  """Returns the parameters with the last linear map of the given branches set to zero."""
  last = {"token_mixer": "out", "mlp": "down"}
  for module in modules:
    zero = jax.tree.map(np.zeros_like, params[module][last[module]])
    params = {**params, module: {**params[module], last[module]: zero}}
  return params


@jax.jit
def branches(params):
  """Returns the output of each branch, computed from the shared normalization."""
  y = nn.LayerNorm().apply({"params": params["norm"]}, TOKENS)
  mixer = SoftmaxAttention(H).apply({"params": params["token_mixer"]}, y, LAYOUT, train=False)
  return mixer, MLP(M).apply({"params": params["mlp"]}, y, False)


def test_the_block_adds_attention_and_the_mlp():
  block, params = make()
  mixer, mlp = branches(params)
  close(run(block, without(params, "mlp")), TOKENS + mixer)
  close(run(block, without(params, "token_mixer")), TOKENS + mlp)
  close(run(block, params), TOKENS + mixer + mlp)
  np.testing.assert_array_equal(run(block, without(params, "token_mixer", "mlp")), TOKENS)


def test_branches_share_one_normalization_or_have_two():
  (one, shared), (two, params) = make(), make(separate_norms=True)
  assert {name for name in shared if "norm" in name} == {"norm"}
  assert {name for name in params if "norm" in name} == {"norm", "mlp_norm"}
  close(run(two, {**shared, "mlp_norm": shared["norm"]}), run(one, shared))
  doubled = jax.tree.map(lambda x: 2 * x, shared["norm"])
  no_mlp, no_mixer = (without(shared, module) for module in ("mlp", "token_mixer"))
  close(run(two, {**no_mlp, "mlp_norm": doubled}), run(one, no_mlp))
  assert not np.allclose(run(two, {**no_mixer, "mlp_norm": doubled}), run(one, no_mixer), atol=0.1)


def test_vit_22b_attends_by_the_direction_of_queries_and_keys():
  block, params = make(VIT_22B)
  mixer = params["token_mixer"]
  assert all(set(mixer[name]) == {"kernel"} for name in ("query", "key", "value"))
  assert all(set(mixer[name]) == {"scale"} for name in ("query_norm", "key_norm"))
  longer = {**mixer, "query": {"kernel": 100 * mixer["query"]["kernel"]}}
  close(run(block, {**params, "token_mixer": longer}), run(block, params))
  plain, params = make()
  mixer = params["token_mixer"]
  longer = {**mixer, "query": {**mixer["query"], "kernel": 100 * mixer["query"]["kernel"]}}
  assert not np.allclose(run(plain, {**params, "token_mixer": longer}), run(plain, params))


def test_stochastic_depth_drops_the_branches_independently():
  block, params = make(stochastic_depth=0.5)
  mixer, mlp = map(np.asarray, branches(params))
  # A branch that is not dropped is doubled, so that the mean does not change.
  outcomes = {(a, b): TOKENS + 2 * a * mixer + 2 * b * mlp for a in (0, 1) for b in (0, 1)}
  seen = set()
  for seed in range(12):
    out = np.asarray(run(block, params, jax.random.key(seed)))
    for example in range(B):
      fits = [o for o, y in outcomes.items() if np.allclose(out[example], y[example], atol=1e-4)]
      assert len(fits) == 1
      seen.update(fits)
  assert seen == set(outcomes)
