"""A run with balanced classes that is interrupted ends with the bits of one that is not."""

import jax
import numpy as np
import pytest

from tests import runs
from vitx.training import loop

UNEQUAL = ("data.sampling=balanced", "task.class_weights=balanced", "task.loss=focal")


@pytest.mark.slow  # trains three runs
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
  loop.train(runs.tiny(*UNEQUAL), tmp_path / "whole")
  loop.train(runs.tiny(*UNEQUAL, "stop_after=17 steps"), tmp_path / "parts")
  loop.train(runs.tiny(*UNEQUAL), tmp_path / "parts")
  assert runs.rows(tmp_path / "whole") == runs.rows(tmp_path / "parts")
  whole, parts = (runs.final_state(tmp_path / name) for name in ("whole", "parts"))
  jax.tree.map(np.testing.assert_array_equal, whole, parts)
