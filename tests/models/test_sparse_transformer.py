"""The Sparse Transformer: counts, causality, positions, initial scales, the loop over cycles."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vitx
from tests.slow import all_but
from vitx.errors import ConfigError
from vitx.models import initialize, names
from vitx.training.optimizers import tensors

SMALL = dict(vocabulary=11, grid=(5, 4), width=16, depth=2, num_heads=2, mlp_dim=24)
CYCLE = dict(name="strided", form="code", stride=4, arrangement="layers")
MIXERS = {
  "dense": dict(name="softmax"),
  "narrow": dict(name="softmax", head_dim=4, value_dim=8),
  "strided": dict(name="strided", form="code", stride=4, arrangement="layers"),
  "strided_paper": dict(name="strided", form="paper", stride=4, arrangement="merged"),
  "strided_heads": dict(name="strided", form="code", stride=4, arrangement="heads"),
  "axial": dict(name="strided", stride=4, arrangement="merged"),  # both ways, but for `causal`
  "fixed": dict(name="fixed", stride=4, summary=1, distinct=2, arrangement="merged"),
  "fixed_layers": dict(name="fixed", stride=4, summary=2, arrangement="layers"),
  "window": dict(name="longformer", window=6),
  "bigbird": dict(name="bigbird", block=4, random=1, global_blocks=(0,)),
  "performer": dict(name="performer"),
  "linear_transformer": dict(name="linear_transformer"),
}


def start(model, key=0):
  tokens = jnp.zeros((1, model.layout.length), jnp.int32)
  return jax.jit(lambda key, x: initialize(model, key, x))(jax.random.key(key), tokens)


def make(mixer, key=0, **fields):
  """Returns a model and parameters whose head is not zero."""
  model = vitx.create_model("sparse_transformer", token_mixer=mixer, **{**SMALL, **fields})
  params = start(model, key)
  shape = params["params"]["head"]["kernel"].shape
  params["params"]["head"]["kernel"] = jax.random.normal(jax.random.key(key + 1), shape)
  return model, params


def draw(number=3, length=20, key=5):
  return jax.random.randint(jax.random.key(key), (number, length), 0, SMALL["vocabulary"])


SOME = all_but("strided", of=MIXERS)


@pytest.mark.parametrize("name", SOME)
def test_a_token_sees_no_later_one(name):
  model, params = make(MIXERS[name])
  tokens = draw()
  apply = jax.jit(model.apply)
  logits = apply(params, tokens)
  changed = apply(params, tokens.at[:, 9].set((tokens[:, 9] + 1) % 11))
  np.testing.assert_array_equal(logits[:, :10], changed[:, :10])  # place 9 predicts token 9
  assert np.abs(logits[:, 10:] - changed[:, 10:]).max() > 1e-4


@pytest.mark.parametrize("name", SOME)
def test_the_gradient_to_the_future_is_exactly_zero(name):
  model, params = make(MIXERS[name])
  tokens = draw(1)
  layer = params["params"]["stem"]["embedding"]

  def place(offset, at):
    # A displacement of each place's embedding: its positions are a table of their own.
    table = {"axis_0": offset, "axis_1": jnp.zeros((1, 16))}
    flat = model.clone(grid=(20, 1))
    variables = {**params, "params": {**params["params"], "posemb": table}}
    return flat.apply(variables, tokens)[0, at].sum()

  gradient = jax.jit(jax.grad(place))(jnp.zeros((20, layer.shape[1])), 9)
  np.testing.assert_array_equal(gradient[9:], 0)
  assert np.all(np.any(gradient[:9] != 0, axis=1)) or name not in ("dense", "performer")


@pytest.mark.slow  # plain pytest compares the operations that these are made of
@pytest.mark.parametrize("name", MIXERS)
def test_implementations_agree(name):
  outputs, gradients = [], []
  for implementation in ("masked", "kernelized"):
    model, variables = make(MIXERS[name] | {"implementation": implementation})
    tokens = draw()

    def loss(params, model=model, state=variables, tokens=tokens):
      out = model.apply({**state, "params": params}, tokens)
      return jnp.sum(jnp.sin(out)), out

    gradient, out = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
    outputs.append(out)
    gradients.append(gradient)
  np.testing.assert_allclose(*outputs, atol=2e-5 * np.abs(outputs[0]).max())
  # A key's bias moves all logits of a query alike: its own gradient is rounding.
  largest = max(np.abs(x).max() for x in jax.tree.leaves(gradients[0]))
  for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * largest)


def test_the_start_is_first_and_positions_come_before_the_shift():
  """Written out for a model without blocks' effect: branches of zero."""
  model, params = make(MIXERS["dense"])
  p = jax.tree.map(np.asarray, params["params"])
  for i in range(2):
    for branch in (p[f"block_{i}"]["token_mixer"]["out"], p[f"block_{i}"]["mlp"]["down"]):
      branch["kernel"] = np.zeros_like(branch["kernel"])
  tokens = np.asarray(draw(1))[0]
  places = p["posemb"]["axis_0"][np.arange(20) // 4] + p["posemb"]["axis_1"][np.arange(20) % 4]
  x = np.concatenate([p["start"][None], (p["stem"]["embedding"][tokens] + places)[:-1]])
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  found = model.apply({"params": p}, tokens[None])[0]
  np.testing.assert_allclose(found, x @ p["head"]["kernel"], atol=1e-5)


def test_a_block_written_out():
  """H + a + b with x · sigmoid(1.702 x), and epsilon 1e-5 inside."""
  model, params = make(MIXERS["dense"], depth=1, num_heads=1)
  p = jax.tree.map(np.asarray, params["params"])
  tokens = draw(1)
  _, state = model.apply(params, tokens, mutable=["intermediates"])
  (after,) = state["intermediates"]["tokens"]
  places = p["posemb"]["axis_0"][np.arange(20) // 4] + p["posemb"]["axis_1"][np.arange(20) % 4]
  x = np.concatenate([p["start"][None], (p["stem"]["embedding"][tokens[0]] + places)[:-1]])
  norm = lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)  # noqa: E731
  block = p["block_0"]
  linear = lambda x, q: x @ q["kernel"].reshape(x.shape[-1], -1) + q["bias"].reshape(-1)  # noqa: E731
  q, k, v = (linear(norm(x), block["token_mixer"][name]) for name in ("query", "key", "value"))
  logits = np.where(np.tri(20, dtype=bool), q @ k.T / 4, -np.inf)
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  a = linear(weights / weights.sum(-1, keepdims=True) @ v, block["token_mixer"]["out"])
  hidden = linear(norm(x + a), block["mlp"]["up"])
  b = linear(hidden / (1 + np.exp(-1.702 * hidden)), block["mlp"]["down"])
  np.testing.assert_allclose(after[0], x + a + b, atol=1e-5)


def test_initial_scales():
  model, params = make("softmax", width=256, mlp_dim=512)
  params = {**params["params"], "head": start(model)["params"]["head"]}
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


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
def test_a_loop_over_cycles_is_the_layers_one_by_one(remat):
  fields = dict(depth=4, token_mixer=CYCLE, remat=remat)
  one, params = make(**_split(fields))
  loop, same = make(**_split(fields | {"layer_cycle": 2}))
  assert jax.tree.structure(params) == jax.tree.structure(same)
  jax.tree.map(np.testing.assert_array_equal, params, same)
  tokens = draw()
  loss = lambda model: lambda p: jnp.sum(jnp.tanh(model.apply(p, tokens)))  # noqa: E731
  found = [jax.jit(jax.value_and_grad(loss(model)))(params) for model in (one, loop)]
  np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-3)
  leaves = [jax.tree.leaves(gradient["params"]) for _, gradient in found]
  largest = max(np.abs(x).max() for x in leaves[0])
  for a, b in zip(*leaves, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * largest)


@pytest.mark.slow  # compiles twice
def test_dropout_in_the_loop_differs_by_layer_and_repeats():
  model, params = make(CYCLE, depth=4, layer_cycle=2, dropout=0.5)
  tokens = draw()
  run = jax.jit(
    lambda key: model.apply(params, tokens, train=True, rngs={"dropout": jax.random.key(key)})
  )
  np.testing.assert_array_equal(run(0), run(0))
  assert np.abs(run(0) - run(1)).max() > 1e-3
  text = str(jax.make_jaxpr(run)(0))
  assert "scan" in text


def _split(fields):
  return {"mixer": fields["token_mixer"]} | {k: v for k, v in fields.items() if k != "token_mixer"}


def test_decay_touches_tensors_of_two_axes_but_no_bias():
  _, params = make(MIXERS["dense"])
  mask = jax.tree_util.tree_leaves_with_path(tensors(params["params"]))
  touched = {jax.tree_util.keystr(p, simple=True, separator="/") for p, value in mask if value}
  assert {"stem/embedding", "posemb/axis_0", "head/kernel", "block_0/mlp/up/kernel"} <= touched
  assert not any("bias" in name or "norm" in name or name == "start" for name in touched)


def test_layers_of_parameters():
  assert names.layer_of("start", 2) == names.layer_of("stem/embedding", 2) == 0


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(causal=False), "model.causal=False"),
    (dict(layer_cycle=3), "model.layer_cycle=3 does not divide model.depth=2"),
    (dict(layer_cycle=2, stochastic_depth=0.1), "model.stochastic_depth=0.1"),
    (dict(token_mixer="fnet"), "causal"),
    (dict(token_mixer="nystromformer"), "causal"),
    (dict(vocabulary=0), "model.vocabulary=0"),
  ],
)
def test_refusals(fields, message):
  with pytest.raises(ConfigError, match=message):
    model = vitx.create_model("sparse_transformer", **{**SMALL, **fields})
    model.init(jax.random.key(0), jnp.zeros((1, 20), jnp.int32))


def test_tokens_that_do_not_fill_the_grid():
  model = vitx.create_model("sparse_transformer", **SMALL)
  with pytest.raises(ConfigError, match="20 places, but there are 19 tokens"):
    model.init(jax.random.key(0), jnp.zeros((1, 19), jnp.int32))
