"""Arrays that do not fit an op are refused alike by both implementations, before anything runs."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import attention_cases as cases
from tests.slow import all_but
from tests.test_annotations import HEADS, LAYOUT, B, D, H, N, shape
from tests.test_annotations import OPS as EVERY
from vitx import ops
from vitx.config.errors import ConfigError
from vitx.ops import TokenLayout, rotary
from vitx.ops.kernels import features
from vitx.ops.patterns import GivenBlocks, Window
from vitx.ops.sparse import bilevel

# Every op on queries, keys and values: the op, its further arrays, and its options.
OPS = {
  name: (getattr(ops, name), arrays[3:], options)
  for name, (arrays, options) in EVERY.items()
  if name not in ("attention", "fourier_mixing")
}
DENSE = ops.attention_with_weights
OPS["window"] = (DENSE, (), {"pattern": Window(3), "layout": LAYOUT})
OPS["function"] = (DENSE, (), {"pattern": lambda b, h, q, k: q >= k})
OPS["drawn"] = (DENSE, (), {"pattern": GivenBlocks(jnp.array([[[1], [0], [2], [1]]]), 4)})
MASKS = {
  "float32 of shape (2, 16)": shape(B, N),  # it may be additive, or ones and zeros
  "int32 of shape (2, 16)": shape(B, N, dtype=np.int32),
  "bool of shape (1, 16)": shape(1, N, dtype=bool),
  "bool of shape (2, 15)": shape(B, N - 1, dtype=bool),
  "bool of shape (2, 1, 1, 16)": shape(B, 1, 1, N, dtype=bool),
}
BOTH = pytest.mark.parametrize("implementation", ["masked", "kernelized"])


def trace(name, implementation, q=HEADS, k=HEADS, v=HEADS, key_mask=None):
  op, more, options = OPS[name]
  masked = {} if key_mask is None else {"key_mask": key_mask}

  def run(q, k, v, more, **masked):
    return op(q, k, v, *more, **options, **masked, implementation=implementation)[0]

  return jax.eval_shape(run, q, k, v, more, **masked)


@BOTH
@pytest.mark.parametrize("name", OPS)
def test_a_mask_of_another_kind_is_refused(name, implementation):
  for words, mask in MASKS.items():
    with pytest.raises(ConfigError, match=rf"key_mask is {re.escape(words)}.*\(2, 16\).*mask == 0"):
      trace(name, implementation, key_mask=mask)
  assert trace(name, implementation, key_mask=shape(B, N, dtype=bool)).shape == HEADS.shape


def fill(spec):
  """Returns positive floats, or else 0, 1, ... or False, True along the last axis."""
  if spec.dtype == np.float32:
    return np.random.default_rng(len(spec.shape)).random(spec.shape, np.float32)
  return np.broadcast_to(np.arange(spec.shape[-1]), spec.shape).astype(spec.dtype)


@BOTH
@pytest.mark.parametrize(
  "name", all_but("attention_with_weights", "linear_attention", "window", of=OPS)
)
def test_nothing_of_a_hidden_key_reaches_a_result_or_a_gradient(name, implementation):
  op, more, options = OPS[name]
  more, (q, k, v, d_out) = [fill(x) for x in more], cases.inputs(B, N, H, D)
  q, k = abs(q), abs(k)  # as features are
  seen = cases.seen_keys(B, N)
  settings = {**options, "key_mask": seen, "implementation": implementation}

  @jax.jit
  def run(q, k, v):
    out, pull = jax.vjp(lambda *x: op(*x, *more, **settings)[0], q, k, v)
    return out, *pull(d_out)

  results = [
    run(q, *(np.where(seen[:, :, None, None], x, hidden) for x in (k, v)))
    for hidden in (0, np.nan, np.inf)
  ]
  assert all(np.isfinite(x).all() for x in results[0])
  assert not any(np.any(x[~seen]) for x in results[0][2:])
  for other in results[1:]:
    jax.tree.map(np.testing.assert_array_equal, other, results[0])


PREDICTED = EVERY["predicted_attention"][0]
CALLS = [(op, (*(HEADS,) * 3, *more), options) for op, more, options in OPS.values()] + [
  (ops.fourier_mixing, *EVERY["fourier_mixing"]),
  (ops.linear_attention, (HEADS,) * 3, {"causal": True}),
  (ops.predicted_attention, PREDICTED, {"budget": 1, "predictor": "sparse"}),
]
# Ops with one implementation.
SINGLE = [
  (rotary.rotate, (HEADS, shape(N, D // 2)), {}),
  (features.softmax_key_features, (HEADS, shape(6, D)), {"stabilizer": "batch"}),
  (bilevel.route, (HEADS,) * 2, {"numbers": bilevel.region_numbers((4, 4), 2), "budget": 2}),
]


@BOTH
def test_an_empty_batch_has_an_empty_result_and_gradient(implementation):
  calls = [(op, x, {**options, "implementation": implementation}) for op, x, options in CALLS]
  for op, arrays, options in calls + SINGLE:

    def run(*arrays, op=op, options=options):
      out, pull = jax.vjp(lambda *y: jax.tree.leaves(op(*y, **options))[0], *arrays)
      return out, pull(out)[0]

    some = [(len(x.shape) > 1 and x.shape[0] == B, x) for x in arrays]
    empty = [shape(0, *x.shape[1:], dtype=x.dtype) if has_batch else x for has_batch, x in some]
    out, gradient = jax.eval_shape(run, *empty)
    assert out.shape[0] == 0 and gradient.shape == empty[0].shape


UNFIT = {
  "integers": {"v": shape(B, N, H, D, dtype=np.int32)},
  "three axes": {"q": shape(N, H, D)},
  "another width": {"k": shape(B, N, H, D + 1)},
  "fewer values": {"v": shape(B, N + 1, H, D)},
  "another batch": {"q": shape(B + 1, N, H, D)},
}


@BOTH
@pytest.mark.parametrize("case", UNFIT)
def test_arrays_that_do_not_fit_are_refused(case, implementation):
  for name in OPS:
    with pytest.raises(ConfigError, match="They must be floats"):
      trace(name, implementation, **UNFIT[case])


@BOTH
@pytest.mark.parametrize(
  "name", [name for name in OPS if name not in ("attention_with_weights", "linear_attention")]
)
def test_another_number_of_keys_is_refused(name, implementation):
  other = shape(B, N + 4, H, D)
  with pytest.raises(ConfigError, match="q has 16 tokens and k has 20"):
    trace(name, implementation, k=other, v=other)


@BOTH
def test_a_layout_or_a_tile_that_does_not_fit_is_refused(implementation):
  run = functools.partial(ops.attention, *[np.zeros((B, N, H, D), np.float32)] * 3, Window(3))
  with pytest.raises(ConfigError, match="both need 9"):
    run(TokenLayout((3, 3)), implementation=implementation)
  with pytest.raises(ConfigError, match="block=-4 must be at least 1"):
    run(LAYOUT, implementation="kernelized", tile=-4)


@pytest.mark.parametrize(("grid", "prefix"), [((-4, -4), 0), ((0,), 0), ((), 0), ((4,), -1)])
def test_a_grid_without_tokens_is_refused(grid, prefix):
  with pytest.raises(ConfigError, match="must be positive"):
    TokenLayout(grid, prefix)


def test_a_grid_may_be_a_list():
  assert hash(TokenLayout([3, 4])) == hash(TokenLayout((3, 4)))  # type: ignore[arg-type]
