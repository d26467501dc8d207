"""Sparsifiner by blocks of keys against its definition in loops."""

import math

import numpy as np
import pytest

from tests.attention import written
from tests.attention.written import run
from tests.slow import all_but
from vitx.attention.sparsifiner import Sparsifiner
from vitx.ops.kernels.selection import count_kept
from vitx.ops.layout import TokenLayout

C, H = 16, 2
LAYOUTS = {"class token": TokenLayout((3, 6), prefix=1), "ragged": TokenLayout((17,))}
FIELDS = {"granularity": "block", "block": 4, "keep": 0.4, "slots": 5}


def make(layout, **fields):
  """Returns a mixer, parameters of which none is small, and tokens."""
  module = Sparsifiner(H, **{"implementation": "masked", **FIELDS, **fields})
  return module, *written.draw(module, layout, C)


def definition(coefficients, basis, layout, keep, block, mask):
  """Returns the edges, bool (B, H, N, N); the score of two blocks sums that of all token pairs."""
  batch, heads, n, _ = coefficients.shape
  prefix, length = layout.prefix, layout.length
  blocks = [range(a, min(a + block, n)) for a in range(0, n, block)]
  sees = np.zeros((batch, heads, length, length), bool)
  sees[:, :, :prefix] = sees[..., :prefix] = True
  for b, h in np.ndindex(batch, heads):
    counts = [[t for t in tokens if mask[b, prefix + t]] for tokens in blocks]
    for number, tokens in enumerate(blocks):
      score = {
        other: sum(
          coefficients[b, h, i] @ basis[prefix + j] for i in counts[number] for j in counts[other]
        )
        for other in range(len(blocks))
        if counts[other]
      }
      best = sorted(score, key=lambda other: (-score[other], other))
      for other in best[: math.ceil(keep * len(blocks))]:
        for i in tokens:
          sees[b, h, prefix + i, [prefix + j for j in blocks[other]]] = True
  return sees & mask[:, None, None]


@pytest.mark.parametrize("masked", all_but(True, of=[False, True]))
@pytest.mark.parametrize("name", LAYOUTS)
def test_kept_blocks_equal_those_of_the_definition(name, masked):
  layout = LAYOUTS[name]
  module, params, x = make(layout)
  mask = np.ones(x.shape[:2], bool)
  if masked:
    mask = np.random.default_rng(0).random(mask.shape) < 0.6
    mask[0, layout.prefix : layout.prefix + 4] = False
  _, sown = run(module, params, x, layout, mask if masked else None)
  basis = np.abs(np.asarray(params["basis"], float))
  basis = np.where(basis > module.basis_threshold, basis, 0)
  expected = definition(sown["coefficients"].astype(float), basis, layout, 0.4, 4, mask)
  np.testing.assert_array_equal(sown["attention"] > 0, expected)


def test_blocks_of_one_token_are_tokens():
  """Blocks of one token give the outputs of single tokens, in a layout without a class token.

  A class token is a candidate among single tokens only; among blocks, all queries attend it.
  """
  layout = LAYOUTS["ragged"]
  fields = {"keep": 0.3, "implementation": "masked"}
  module, params, x = make(layout, block=1, **fields)
  by_token, _, _ = make(layout, granularity="token", **fields)
  a, b = (run(m, params, x, layout)[0] for m in (module, by_token))
  np.testing.assert_array_equal(a, b)


def test_ties_go_to_the_first_blocks():
  """The high threshold makes the basis zero, so that all scores are equal."""
  layout = LAYOUTS["class token"]
  module, params, x = make(layout, basis_threshold=100.0)
  attention = run(module, params, x, layout)[1]["attention"][:, :, 1:]
  assert count_kept(0.4, 5) == 2
  assert np.all(attention[..., :9] > 0) and np.all(attention[..., 9:] == 0)
