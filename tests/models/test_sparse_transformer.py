"""The Sparse Transformer: counts, causality, positions, initial scales, the loop over cycles."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vitx
from tests.drawn import draw_variables
from tests.slow import all_but
from vitx.models import initialize
from vitx.training.optim.optimizers import tensors

SMALL = dict(vocabulary=11, grid=(5, 4), width=16, depth=2, num_heads=2, mlp_dim=24)
CYCLE = dict(name="strided", form="code", stride=4, arrangement="layers")
MIXERS = {
  "dense": dict(name="softmax"),
  "strided": dict(name="strided", form="code", stride=4, arrangement="layers"),
  "axial": dict(name="strided", stride=4, arrangement="merged"),  # two-way without `causal`
  "fixed": dict(name="fixed", stride=4, summary=1, distinct=2, arrangement="merged"),
  "bigbird": dict(name="bigbird", block=4, random=1, global_blocks=(0,)),
  "performer": dict(name="performer"),
}


def make(mixer, **fields):
  """Returns a model and parameters of which none is zero."""
  model = vitx.create_model("sparse_transformer", token_mixer=mixer, **{**SMALL, **fields})
  return model, draw_variables(model.init, np.zeros((1, model.layout.length), np.int32))


def draw(number=3, length=20):
  return np.random.default_rng(5).integers(0, SMALL["vocabulary"], (number, length), np.int32)


def close(grads, expected):
  # A key's bias shifts all logits of a query, so its gradient is rounding alone.
  largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
  for a, b in zip(*map(jax.tree.leaves, (grads, expected)), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * largest)


@pytest.mark.parametrize("name", all_but("dense", of=MIXERS))
def test_no_token_depends_on_a_later_token(name):
  """Compares outputs and gradients, also between the two implementations."""
  depth = 2 if MIXERS[name].get("arrangement") == "layers" else 1
  # Each token of the second sequence has its own row of the embedding; the first uses other rows.
  tokens = np.stack([20 + draw(1)[0] % 4, np.arange(20, dtype=np.int32)])
  later = tokens.copy()
  later[:, 9] = 20 + (tokens[:, 9] + 1) % 4
  results = []
  for implementation in ("masked", "kernelized"):
    mixer = MIXERS[name] | {"implementation": implementation}
    model, variables = make(mixer, depth=depth, vocabulary=24)

    @jax.jit
    def run(tokens, model=model, variables=variables):
      def loss(params):
        out = model.apply({**variables, "params": params}, tokens)
        return jnp.sum(jnp.sin(out[0])) + out[1, 9].sum(), out

      return jax.grad(loss, has_aux=True)(variables["params"])

    slopes, logits = run(tokens)
    _, changed = run(later)
    np.testing.assert_array_equal(logits[:, :10], changed[:, :10])  # place 9 predicts token 9
    assert np.abs(logits[:, 10:] - changed[:, 10:]).max() > 1e-4
    rows = slopes["stem"]["embedding"]
    np.testing.assert_array_equal(rows[9:20], 0)
    assert np.all(np.any(rows[:9] != 0, axis=1)) or name not in ("dense", "performer")
    assert np.any(rows[:9] != 0)
    results.append((slopes, logits))
  np.testing.assert_allclose(results[0][1], results[1][1], atol=2e-5 * np.abs(results[0][1]).max())
  close(results[1][0], results[0][0])


def norm(x, params, epsilon):
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
  return x * params["scale"] + params["bias"]


def test_the_start_is_first_and_positions_come_before_the_shift():
  """A model whose branches are zero follows the formula of its embedding."""
  model, params = make(MIXERS["dense"])
  p = jax.tree.map(np.asarray, params["params"])
  for i in range(2):
    for branch in (p[f"block_{i}"]["token_mixer"]["out"], p[f"block_{i}"]["mlp"]["down"]):
      branch.update({name: np.zeros_like(x) for name, x in branch.items()})
  tokens = np.asarray(draw(1))[0]
  places = p["posemb"]["axis_0"][np.arange(20) // 4] + p["posemb"]["axis_1"][np.arange(20) % 4]
  x = np.concatenate([p["start"][None], (p["stem"]["embedding"][tokens] + places)[:-1]])
  x = norm(x, p["norm"], 1e-6)
  logits = jax.jit(model.apply)({"params": p}, tokens[None])[0]
  np.testing.assert_allclose(logits, x @ p["head"]["kernel"], atol=1e-5)


def test_a_block_equals_its_formula():
  """A block computes H + a + b, the sum of its input and of its attention and MLP branches.

  The activation is x · sigmoid(1.702 x), and the epsilon is 1e-5.
  """
  model, params = make(MIXERS["dense"], depth=1, num_heads=1)
  p = jax.tree.map(np.asarray, params["params"])
  tokens = draw(1)
  _, state = jax.jit(partial(model.apply, mutable=["intermediates"]))(params, tokens)
  (after,) = state["intermediates"]["tokens"]
  places = p["posemb"]["axis_0"][np.arange(20) // 4] + p["posemb"]["axis_1"][np.arange(20) % 4]
  x = np.concatenate([p["start"][None], (p["stem"]["embedding"][tokens[0]] + places)[:-1]])
  block = p["block_0"]
  y = norm(x, block["mixer_norm"], 1e-5)
  linear = lambda x, q: x @ q["kernel"].reshape(x.shape[-1], -1) + q["bias"].reshape(-1)  # noqa: E731
  q, k, v = (linear(y, block["token_mixer"][name]) for name in ("query", "key", "value"))
  logits = np.where(np.tri(20, dtype=bool), q @ k.T / 4, -np.inf)
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  a = linear(weights / weights.sum(-1, keepdims=True) @ v, block["token_mixer"]["out"])
  hidden = linear(norm(x + a, block["mlp_norm"], 1e-5), block["mlp"]["up"])
  b = linear(hidden / (1 + np.exp(-1.702 * hidden)), block["mlp"]["down"])
  np.testing.assert_allclose(after[0], x + a + b, atol=1e-5)


@pytest.mark.slow
def test_initial_kernels_have_the_published_scales():
  sizes = SMALL | {"width": 256, "mlp_dim": 512}
  model = vitx.create_model("sparse_transformer", token_mixer="softmax", **sizes)
  params = jax.jit(partial(initialize, model))(jax.random.key(0), draw(1))["params"]
  block = params["block_1"]
  first, last = math.sqrt(0.125 / 256), math.sqrt(0.125 / 256) / math.sqrt(2 * 2)
  for kernel, stddev in (
    (block["token_mixer"]["query"]["kernel"], first),
    (block["token_mixer"]["value"]["kernel"], first),
    (block["mlp"]["up"]["kernel"], first),
    (block["token_mixer"]["out"]["kernel"], last),
    (block["mlp"]["down"]["kernel"], math.sqrt(0.125 / 512) / 2),
    (params["stem"]["embedding"], 0.01),
    (params["posemb"]["axis_0"], 0.01 / math.sqrt(2)),
  ):
    np.testing.assert_allclose(np.std(kernel), stddev, rtol=0.1)
  assert not np.any(params["head"]["kernel"]) and "bias" not in params["head"]
  assert not np.any(block["mlp"]["up"]["bias"])


@pytest.mark.slow  # compiles three gradients
def test_a_loop_over_cycles_equals_the_layers_one_by_one():
  one, params = make(CYCLE, depth=4)
  tokens = draw()
  loss = lambda model: lambda p: jnp.sum(jnp.tanh(model.apply({"params": p}, tokens)))  # noqa: E731
  expected = jax.jit(jax.value_and_grad(loss(one)))(params["params"])
  for remat in (False, True):
    loop = one.clone(layer_cycle=2, remat=remat)
    result = jax.jit(jax.value_and_grad(loss(loop)))(params["params"])
    np.testing.assert_allclose(result[0], expected[0], atol=1e-3)
    close(result[1], expected[1])


@pytest.mark.slow  # compiles two initializations
def test_a_loop_starts_with_the_parameters_of_single_layers():
  one, _ = make(CYCLE, depth=4)
  init = lambda model: jax.jit(partial(initialize, model))(jax.random.key(0), draw(1))  # noqa: E731
  params, same = init(one), init(one.clone(layer_cycle=2))
  assert jax.tree.structure(params) == jax.tree.structure(same)
  jax.tree.map(np.testing.assert_array_equal, params, same)


@pytest.mark.slow  # compiles twice
def test_dropout_in_the_loop_differs_by_layer_and_repeats():
  model, params = make(CYCLE, depth=4, layer_cycle=2, dropout=0.5)
  tokens = draw()
  run = jax.jit(
    lambda key: model.apply(params, tokens, train=True, rngs={"dropout": jax.random.key(key)})
  )
  traced = run.trace(0)
  assert "scan" in str(traced.jaxpr)
  first, again, other = (np.asarray(run(key)) for key in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.abs(first - other).max() > 1e-3


def test_decay_touches_tensors_of_two_axes_but_no_bias():
  _, params = make(MIXERS["dense"])
  mask = jax.tree_util.tree_leaves_with_path(tensors(params["params"]))
  touched = {jax.tree_util.keystr(p, simple=True, separator="/") for p, value in mask if value}
  assert {"stem/embedding", "posemb/axis_0", "head/kernel", "block_0/mlp/up/kernel"} <= touched
  assert not any("bias" in name or "norm" in name or name == "start" for name in touched)


def test_one_token_without_a_mutable_cache_is_refused():
  model, variables = make(MIXERS["dense"])
  inputs = {**variables, "cache": model.init_cache(1)}
  with pytest.raises(ValueError, match="mutable collection 'cache'"):
    jax.eval_shape(model.apply, inputs, draw(1)[:, :1], at=np.array([2]))
