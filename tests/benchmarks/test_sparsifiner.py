"""The benchmark of Sparsifiner's attention with small sizes."""

import jax
import numpy as np
import pytest

from tests.benchmarks import named, sparsifiner
from tests.benchmarks.sparsifiner import SIZES, counted_macs, format_macs


def test_the_figures_to_reach():
  asked = {
    (case.name.split(",")[0], f.other, f.quantity): f.at_least
    for case in sparsifiner.make_cases()
    for f in case.figures
    if f.at_least is not None
  }
  assert asked == {
    ("keys", "masked", "memory"): 3,
    ("keys", "masked", "time"): 1,
    ("given keys", "masked", "time"): 6,
    ("blocks of 64", "masked", "time"): 6,
    ("blocks of 64", sparsifiner.FLASH, "time"): 2,
  }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_kernels_of_a_case_compute_the_same(number):
  case = sparsifiner.make_cases(64, 128, block=16)[number]
  given = np.random.default_rng(0).normal(size=(3, *case.shape)).astype(np.float32)
  kernels = [kernel for name, kernel in case.kernels.items() if name != sparsifiner.FLASH]
  fixed = kernels[0].fixed()  # All kernels of a case have these arrays.
  outs = jax.jit(lambda *arrays: [kernel.attend(*arrays) for kernel in kernels])(*given, *fixed)
  for out in outs[1:]:
    np.testing.assert_allclose(out, outs[0], rtol=0, atol=1e-5)
  assert len(outs) > 1


@pytest.mark.slow
def test_in_small():
  outcomes = named.measure(
    sparsifiner.make_cases(64, 128, block=16), runs=2, repeats=1, seconds=0.1
  )
  assert len(outcomes) == 8
  for outcome in outcomes:
    assert len(outcome.found) == (1 if outcome.figure.quantity == "memory" else 2)


@pytest.mark.parametrize("name", ["deit_s", "lv_vit_m"])
def test_every_product_counts(name):
  """The counted multiply-adds are the sum of all products, those of hidden values included."""
  backbone = SIZES[name]
  n, d, H, S = backbone.tokens, backbone.width, backbone.heads, backbone.slots
  few = d // H // 2
  predictor = (2 * n - 1) * d * few + n * H * few * S + (n - 1) * H * few * S
  scores = H * (n - 1) * n * S
  front = 2 * n * d
  masked = predictor + scores + 2 * n * n * d
  assert counted_macs(backbone, 50, implementation="masked") == backbone.depth * masked
  gathered = predictor + scores + front + 2 * (n - 1) * d * 10
  found = counted_macs(backbone, 10) / backbone.depth
  np.testing.assert_allclose(found, gathered, rtol=0.03)  # The last tile is padded.
  hidden = predictor + scores + front + 2 * (n - 1) * n * d
  found = counted_macs(backbone, 50) / backbone.depth
  np.testing.assert_allclose(found, hidden, rtol=0.03)


def test_blocks_multiply_what_they_keep():
  """Each query attends four of fourteen rows of patches, and the class token, which attends all."""
  backbone = SIZES["deit_s"]
  n, d, H, S = 197, 384, 6, 32
  few = 32
  predictor = (2 * n - 1) * d * few + n * H * few * S + (n - 1) * H * few * S
  scores = H * 14 * 14 * S
  attention = 2 * (n - 1) * d * 4 * 14 + 2 * (n - 1) * d + 2 * n * d
  found = counted_macs(backbone, 4, block=14) / backbone.depth
  np.testing.assert_allclose(found, predictor + scores + attention, rtol=0.03)


def test_the_table():
  lines = format_macs("deit_s", (0.25, 0.1)).splitlines()
  assert len(lines) == 4 and "357.7" in lines[0]
  assert lines[2].split()[:4] == ["0.25", "50", "165.6", "180.3"]
