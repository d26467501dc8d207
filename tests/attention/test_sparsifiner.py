"""Sparsifiner against its definition in loops: the keys, the gradients, masks and budgets."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention import written
from tests.attention.written import linear
from tests.slow import all_but
from vitx.attention.sparsifiner import Sparsifiner
from vitx.ops.kernels.selection import count_kept
from vitx.ops.layout import TokenLayout

LAYOUT = TokenLayout((3, 4), prefix=1)
N, C, H = LAYOUT.length, 16, 2


def make(seed=0, **fields):
  """Returns a mixer, parameters of which none is small, and tokens."""
  module = Sparsifiner(H, **{"slots": 5, "implementation": "masked", **fields})
  return module, *written.draw(module, LAYOUT, C, seed)


def run(module, params, x, mask=None):
  return written.run(module, params, x, LAYOUT, mask)


def definition(params, x, *, keep, threshold=None, top=None, basis_threshold=None):
  """Returns the set of keys that each query attends, by (example, head, query), from loops."""
  q, k = linear(x, params["query"]), linear(x, params["key"])  # (B, N, H, D)
  q, k = linear(q, params["reduce_query"]), linear(k, params["reduce_key"])
  down, basis = (np.asarray(params[name], float) for name in ("down", "basis"))
  if basis_threshold is not None:
    basis = np.where(np.abs(basis) > basis_threshold, np.abs(basis), 0)
  sets = {}
  for b, n, h in np.ndindex(q.shape[:3]):
    if n < LAYOUT.prefix:
      sets[b, h, n] = set(range(N))
      continue
    logits = (q[b, n, h] @ (k[b, :, h].T @ down)) / math.sqrt(H)
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    if threshold is not None:
      weights = np.where(weights > threshold, weights, 0)
    if top is not None:
      weights[np.argsort(-weights, kind="stable")[top:]] = 0
    scores = basis @ weights
    order = sorted(range(N), key=lambda m: (-scores[m], m))
    sets[b, h, n] = set(order[: math.ceil(keep * N)])
  return sets


@pytest.mark.parametrize(
  "rules",
  [
    {"keep": 0.25, "threshold": 0.05, "basis_threshold": 0.01},
    {"keep": 0.5, "threshold": 0.2, "basis_threshold": 0.3},
    {"keep": 0.4, "top": 2, "basis_threshold": 0.02},
    {"keep": 0.3},
  ],
)
def test_kept_keys_equal_those_of_the_definition(rules):
  fields = {
    "keep": rules["keep"],
    "coefficient_threshold": rules.get("threshold"),
    "coefficient_top": rules.get("top"),
    "basis_threshold": rules.get("basis_threshold"),
  }
  module, params, x = make(**fields)
  _, sown = run(module, params, x)
  expected = definition(params, x, **rules)
  for place, keys in expected.items():
    assert set(np.flatnonzero(sown["attention"][place])) == keys, place


def test_sown_arrays_equal_their_definitions():
  module, params, x = make(coefficient_threshold=0.3)
  _, sown = run(module, params, x)
  raw = run(make(coefficient_threshold=None)[0], params, x)[1]["coefficients"]
  np.testing.assert_allclose(raw.sum(-1), 1, rtol=1e-5)
  np.testing.assert_array_equal(sown["coefficients"], np.where(raw > 0.3, raw, 0))
  np.testing.assert_allclose(sown["approximation"], raw @ params["basis"].T, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", all_but("kernelized", of=["masked", "kernelized"]))
def test_the_mask_has_no_gradient(implementation):
  """The output has no gradient by the predictor's parameters; the sown approximation has one."""
  module, params, x = make(implementation=implementation)
  predictor = {"reduce_query", "reduce_key", "down", "basis"}

  def output(params):
    return jnp.sum(jnp.sin(module.apply({"params": params}, x, LAYOUT, train=False)))

  def approximation(params):
    _, sown = module.apply({"params": params}, x, LAYOUT, train=False, mutable=["intermediates"])
    return jnp.sum(jnp.square(sown["intermediates"]["approximation"][0]))

  both = jax.jit(lambda params: (jax.grad(output)(params), jax.grad(approximation)(params)))
  learned, taught = jax.device_get(both(params))
  moved = {
    name: any(np.any(leaf != 0) for leaf in jax.tree.leaves(part)) for name, part in learned.items()
  }
  assert {name for name, moves in moved.items() if not moves} == predictor
  assert all(np.any(leaf != 0) for name in predictor for leaf in jax.tree.leaves(taught[name]))
  assert not np.any(taught["value"]["kernel"]) and np.any(taught["query"]["kernel"])


def test_without_sparsity_it_is_softmax_attention():
  from vitx.attention.softmax import SoftmaxAttention

  module, params, x = make(sparse=False)
  shared = {name: params[name] for name in ("query", "key", "value", "out")}
  plain = SoftmaxAttention(H, implementation="masked")
  expected, _ = run(plain, shared, x)
  np.testing.assert_allclose(run(module, params, x)[0], expected, rtol=1e-6, atol=1e-6)
  everything, _ = run(make(keep=1.0)[0], params, x)
  np.testing.assert_allclose(everything, expected, rtol=1e-5, atol=1e-6)


def test_masked_tokens_are_neither_kept_nor_mixed():
  module, params, x = make(keep=0.5)
  mask = np.arange(N) < np.full((2, 1), 7)
  out, sown = run(module, params, x, mask)
  assert not np.any(sown["attention"][..., 7:])
  changed, _ = run(module, params, np.where(mask[..., None], x, x + 3), mask)
  np.testing.assert_array_equal(changed[:, :7], out[:, :7])


@pytest.mark.parametrize(
  ("keep", "count"),
  [
    *((0.9, 178), (0.8, 158), (0.7, 138), (0.6, 119), (0.5, 99), (0.4, 79)),
    *((0.3, 60), (0.25, 50), (0.2, 40), (0.1, 20), (0.05, 10), (0.01, 2), (1.0, 197)),
  ],
)
def test_budgets_equal_the_published_ones(keep, count):
  """The counts for 197 tokens are the paper's "Att. num."; 50 is that of the released code."""
  assert count_kept(keep, 197) == count
  assert count_kept(0.7, 10) == 7  # in floats, 0.7 * 10 is a little more than 7
  assert count_kept(1e-4**3, 197) == 1  # the third reduction of a network, see `ZeroInattentive`
