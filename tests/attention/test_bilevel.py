"""Bi-level routing against its definition, written out one query after another."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention import written
from tests.attention.written import linear
from tests.slow import all_but
from vitx.attention.bilevel import BilevelAttention
from vitx.ops.layout import TokenLayout
from vitx.ops.sparse.bilevel import region_numbers

C, H = 8, 2
DIVIDED, RAGGED = TokenLayout((4, 6)), TokenLayout((5, 4), prefix=1)


def make(layout, **fields):
  """Returns a mixer, parameters of which none is small, and tokens."""
  module = BilevelAttention(H, **{"regions": 2, "top": 2, "implementation": "masked", **fields})
  return module, *written.draw(module, layout, C)


def region(token, layout, regions):
  """Returns the row and column of the region of a token."""
  spot = np.unravel_index(token - layout.prefix, layout.grid)
  return tuple(int(c // math.ceil(g / regions)) for c, g in zip(spot, layout.grid, strict=True))


def definition(params, x, layout, *, regions, top, scale, mask=None):
  """Returns the outputs and the edges, by loops over regions, queries, heads and the kernel."""
  q, k, v = (linear(x, params[name]) for name in ("query", "key", "value"))  # (B, N, H, D)
  batch, n, heads, dim = q.shape
  seen = np.ones((batch, n), bool) if mask is None else np.asarray(mask)
  out, sees = np.zeros((batch, n, heads, dim)), np.zeros((batch, n, n), bool)
  grid = range(layout.prefix, n)
  for b in range(batch):
    members = {}
    for token in grid:
      members.setdefault(region(token, layout, regions), []).append(token)
    mean = lambda x, tokens, b=b: np.mean(x[b, tokens].reshape(len(tokens), -1), axis=0)  # noqa: E731
    there = {r: [t for t in tokens if seen[b, t]] for r, tokens in members.items()}
    for mine, tokens in members.items():
      ranked = [r for r in sorted(members) if there[r]]
      if there[mine]:
        query = mean(q, there[mine])
        ranked.sort(key=lambda r: -query @ mean(k, there[r]))
      for token in tokens:
        for other in ranked[:top]:
          sees[b, token, members[other]] = True
    sees[b, : layout.prefix] = sees[b, :, : layout.prefix] = True
    sees[b] &= seen[b]
    for token, head in np.ndindex(n, heads):
      keys = np.flatnonzero(sees[b, token])
      if keys.size:
        logits = scale * k[b, keys, head] @ q[b, token, head]
        weights = np.exp(logits - logits.max())
        out[b, token, head] = weights @ v[b, keys, head] / weights.sum()
  if "local" in params:
    out += enhancement(params["local"], np.where(seen[..., None, None], v, 0), layout)
  return linear(out.reshape(batch, n, -1), flat_out(params["out"])), sees


def flat_out(module):
  return {"kernel": module["kernel"].reshape(-1, C), "bias": module["bias"]}


def enhancement(module, v, layout):
  """Returns the depthwise convolution of the values, (B, N, H, D), one kernel tap after another."""
  kernel, bias = np.asarray(module["kernel"], float), np.asarray(module["bias"], float)
  batch, _, heads, dim = v.shape
  rows, columns = layout.grid
  reach = kernel.shape[0] // 2
  image = v[:, layout.prefix :].reshape(batch, rows, columns, heads * dim)
  output = np.tile(bias, (batch, rows, columns, 1))
  for r, c, i, j in np.ndindex(rows, columns, *kernel.shape[:2]):
    row, column = r + i - reach, c + j - reach
    if 0 <= row < rows and 0 <= column < columns:
      output[:, r, c] += kernel[i, j, 0] * image[:, row, column]
  ahead = np.zeros((batch, layout.prefix, heads, dim))
  return np.concatenate([ahead, output.reshape(batch, -1, heads, dim)], axis=1)


CASES = [
  (DIVIDED, {}),
  (RAGGED, {"regions": 3, "top": 2, "local_kernel": 3}),
  (RAGGED, {"top": 1, "local_kernel": 0, "scale_by": "width"}),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("number", all_but(1, of=range(len(CASES))))
@pytest.mark.parametrize("implementation", all_but("kernelized", of=["masked", "kernelized"]))
def test_routed_attention_equals_its_definition(number, masked, implementation):
  layout, fields = CASES[number]
  module, params, x = make(layout, implementation=implementation, **fields)
  mask = None
  if masked:
    mask = np.random.default_rng(3).random(x.shape[:2]) < 0.6
    for token in range(layout.prefix, layout.length):  # one region of one example is masked
      mask[0, token] = region(token, layout, module.regions) != (0, 0)
  out, sown = written.run(module, params, x, layout, mask)
  width = C if fields.get("scale_by") == "width" else C // H
  expected, sees = definition(
    params, x, layout, regions=module.regions, top=module.top, scale=width**-0.5, mask=mask
  )
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
  if implementation == "masked":
    np.testing.assert_array_equal(sown["attention"][:, 0] > 0, sees)


def test_only_the_choice_of_regions_has_no_gradient():
  """The routing has no gradient, and every kernel has one.

  The bias of the keys has none either, since a vector added to all keys changes no softmax.
  """
  module, params, x = make(DIVIDED)
  grads = jax.jit(
    jax.grad(lambda p: jnp.sum(jnp.sin(module.apply({"params": p}, x, DIVIDED, train=False))))
  )(params)
  np.testing.assert_allclose(grads["key"]["bias"], 0, atol=1e-5)
  for name in ("query", "key", "value", "out", "local"):
    assert np.any(np.abs(grads[name]["kernel"]) > 1e-4), name


def test_regions_cover_a_grid_that_they_do_not_divide():
  numbers = region_numbers((5, 4), 3)  # two rows and two columns each
  assert numbers.shape == (6, 4)
  np.testing.assert_array_equal(numbers[0], [0, 1, 4, 5])
  np.testing.assert_array_equal(numbers[5], [18, 19, -1, -1])
  assert sorted(numbers[numbers >= 0]) == list(range(20))


def test_all_regions_are_all_tokens():
  from vitx.attention.softmax import SoftmaxAttention

  (module, params, x), plain = make(RAGGED, top=9, local_kernel=0), SoftmaxAttention(H)
  both = jax.jit(
    lambda variables, x: [m.apply(variables, x, RAGGED, train=False) for m in (module, plain)]
  )
  np.testing.assert_allclose(*both({"params": params}, x), rtol=1e-5, atol=1e-6)
