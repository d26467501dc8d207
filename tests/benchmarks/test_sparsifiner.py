"""The benchmark of Sparsifiner's attention with small sizes."""

import jax
import numpy as np
import pytest

from tests.benchmarks import sparsifiner
from tests.benchmarks.sparsifiner import SIZES, counted_macs, format_macs


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_kernels_of_a_case_agree(number):
  case = sparsifiner.make_cases(64, 128, block=16)[number]
  inputs = np.random.default_rng(0).normal(size=(3, *case.shape)).astype(np.float32)
  kernels = [kernel for name, kernel in case.kernels.items() if name != sparsifiner.FLASH]
  fixed = kernels[0].fixed()  # All kernels of a case have these arrays.
  outs = jax.jit(lambda *arrays: [kernel.attend(*arrays) for kernel in kernels])(*inputs, *fixed)
  for out in outs[1:]:
    np.testing.assert_allclose(out, outs[0], rtol=0, atol=1e-5)
  assert len(outs) > 1


def test_every_product_counts():
  """The counted multiply-adds are the sum of all products, those of hidden values included."""
  backbone = SIZES["deit_s"]
  n, d, H, S = backbone.tokens, backbone.width, backbone.heads, backbone.slots
  few = d // H // 2
  predictor = (2 * n - 1) * d * few + n * H * few * S + (n - 1) * H * few * S
  scores = H * (n - 1) * n * S
  front = 2 * n * d
  masked = predictor + scores + 2 * n * n * d
  assert counted_macs(backbone, 50, implementation="masked") == backbone.depth * masked
  gathered = predictor + scores + front + 2 * (n - 1) * d * 10
  macs = counted_macs(backbone, 10) / backbone.depth
  np.testing.assert_allclose(macs, gathered, rtol=0.03)  # The last tile is padded.


def test_the_table_has_published_and_counted_products():
  lines = format_macs("deit_s", (0.25, 0.1)).splitlines()
  assert len(lines) == 4 and "357.7" in lines[0]
  assert lines[2].split()[:4] == ["0.25", "50", "165.6", "180.3"]
