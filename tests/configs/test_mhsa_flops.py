"""The multiply-adds of Sparsifiner's attention: the paper's tables, and the released code's."""

import numpy as np
import pytest

from tests.benchmarks.sparsifiner import SIZES, dense_macs, published_macs, released_macs
from vitx.ops.kernels.selection import count_kept

# Kept keys, and the printed millions (Wei et al. 2023, the tables of both backbones).
PRINTED = {
  "deit_s": {
    **{0.9: (178, 396.8), 0.8: (158, 360.6), 0.7: (138, 324.6), 0.6: (119, 290.3)},
    **{0.5: (99, 254.2), 0.4: (79, 218.0), 0.3: (60, 183.6), 0.2: (40, 147.5)},
    **{0.1: (20, 111.4), 0.05: (10, 93.3), 0.01: (2, 78.9)},
  },
  "lv_vit_s": {0.5: (99, 339.7), 0.25: (50, 221.7), 0.1: (20, 149.5)},
}


@pytest.mark.parametrize("name", PRINTED)
def test_counts_equal_the_printed_figures(name):
  for share, (keys, millions) in PRINTED[name].items():
    assert count_kept(share, 197) == keys
    np.testing.assert_allclose(published_macs(SIZES[name], keys) / 1e6, millions, rtol=1e-3)


def test_counts_are_on_the_printed_lines():
  """The lines in the paper's figures have these constants and slopes, in millions."""
  for name, line in {"deit_s": (75.28, 1.80634), "lv_vit_s": (101.30, 2.40845)}.items():
    zero, one = (published_macs(SIZES[name], keys) / 1e6 for keys in (0, 1))
    np.testing.assert_allclose((zero, one - zero), line, rtol=1e-4)
  assert round(dense_macs(SIZES["deit_s"]) / 1e6, 1) == 357.7
  assert round(dense_macs(SIZES["lv_vit_s"]) / 1e6, 1) == 476.9


def test_the_released_code_computes_one_more_product():
  macs = [released_macs(SIZES["deit_s"], keys) / 1e6 for keys in (0, 50)]
  np.testing.assert_allclose(macs, (90.03, 180.3), rtol=1e-3)
