"""Multiply-adds of Sparsifiner's attention against the paper's tables, and as they are made."""

import numpy as np
import pytest

from vitx.analysis.mhsa_flops import (
  BACKBONES,
  counted_macs,
  dense_macs,
  format_macs,
  published_macs,
  released_macs,
)
from vitx.ops.kernels.selection import count_kept

# Keys that are kept, and millions as printed (Wei et al. 2023, the tables of both backbones).
PRINTED = {
  "deit_s": {
    **{0.9: (178, 396.8), 0.8: (158, 360.6), 0.7: (138, 324.6), 0.6: (119, 290.3)},
    **{0.5: (99, 254.2), 0.4: (79, 218.0), 0.3: (60, 183.6), 0.2: (40, 147.5)},
    **{0.1: (20, 111.4), 0.05: (10, 93.3), 0.01: (2, 78.9)},
  },
  "lv_vit_s": {0.5: (99, 339.7), 0.25: (50, 221.7), 0.1: (20, 149.5)},
}


@pytest.mark.parametrize("name", PRINTED)
def test_the_printed_figures(name):
  for share, (kept, millions) in PRINTED[name].items():
    assert count_kept(share, 197) == kept
    np.testing.assert_allclose(published_macs(BACKBONES[name], kept) / 1e6, millions, rtol=1e-3)


def test_the_lines_of_the_figures():
  """Constant and slope, in millions."""
  for name, line in {"deit_s": (75.28, 1.80634), "lv_vit_s": (101.30, 2.40845)}.items():
    zero, one = (published_macs(BACKBONES[name], kept) / 1e6 for kept in (0, 1))
    np.testing.assert_allclose((zero, one - zero), line, rtol=1e-4)
  assert round(dense_macs(BACKBONES["deit_s"]) / 1e6, 1) == 357.7
  assert round(dense_macs(BACKBONES["lv_vit_s"]) / 1e6, 1) == 476.9


def test_the_released_code_makes_a_product_more():
  found = [released_macs(BACKBONES["deit_s"], kept) / 1e6 for kept in (0, 50)]
  np.testing.assert_allclose(found, (90.03, 180.3), rtol=1e-3)


@pytest.mark.parametrize("name", ["deit_s", "lv_vit_m"])
def test_every_product_counts(name):
  """Term by term: what each path multiplies, hidden or not."""
  backbone = BACKBONES[name]
  n, d, H, S = backbone.tokens, backbone.width, backbone.heads, backbone.slots
  few = d // H // 2
  predictor = (2 * n - 1) * d * few + n * H * few * S + (n - 1) * H * few * S
  scores = H * (n - 1) * n * S
  front = 2 * n * d
  masked = predictor + scores + 2 * n * n * d
  assert counted_macs(backbone, 50, implementation="masked") == backbone.depth * masked
  gathered = predictor + scores + front + 2 * (n - 1) * d * 10
  found = counted_macs(backbone, 10) / backbone.depth
  np.testing.assert_allclose(found, gathered, rtol=0.03)  # the last tile is filled up
  hidden = predictor + scores + front + 2 * (n - 1) * n * d
  found = counted_macs(backbone, 50) / backbone.depth
  np.testing.assert_allclose(found, hidden, rtol=0.03)


def test_blocks_multiply_what_they_keep():
  """Four of fourteen rows of patches, and the class token's row and column."""
  backbone = BACKBONES["deit_s"]
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
