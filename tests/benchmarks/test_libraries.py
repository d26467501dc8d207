"""The benchmark beside other libraries on a CPU, where none of them runs."""

import jax
import numpy as np
import pytest

from tests.benchmarks import libraries
from vitx.benchmark import gpu, tune
from vitx.benchmark.mixers import make_grid
from vitx.ops import attention, dense_mask


@pytest.mark.parametrize("name", gpu.EDGES)
def test_other_libraries_get_equal_edges(name):
  make_mask, n = libraries.MASKS[name], 1024
  q, k = np.ogrid[:n, :n]
  ours = dense_mask(gpu.EDGES[name], make_grid(n), 8)
  theirs = True if make_mask is None else make_mask(n, np.asarray)(q, k)
  np.testing.assert_array_equal(ours, np.broadcast_to(theirs, ours.shape))
  assert name == "dense" or 0.01 < ours.mean() < 0.8


@pytest.mark.slow  # compiles two attentions
def test_the_window_of_cudnn_has_equal_edges():
  arrays = jax.random.normal(jax.random.key(0), (3, 1, 384, 1, 16))
  ours = attention(*arrays, gpu.EDGES["causal window of 257"], implementation="kernelized")
  np.testing.assert_allclose(libraries.attend_window("xla", *arrays), ours, atol=2e-6)


def test_the_tables_are_printed_and_written(monkeypatch, tmp_path, capsys):
  line = {"edges": "dense", "blocks": 1.0, "ours ms": 1.25, "FlexAttention ms": 2.0}
  monkeypatch.setattr(tune, "check_kernels", lambda where: None)
  monkeypatch.setattr(gpu, "measure_table", lambda tokens, say, **_: [(f"N = {tokens}", [line])])
  effort = {"runs": 1, "repeats": 1, "seconds": 0.1, "say": print}
  libraries.measure([64], 1.0, str(tmp_path / "rows.csv"), effort)
  printed = capsys.readouterr().out
  assert printed.startswith("Measured on") and "| N = [64] |" in printed
  assert "| dense | 100.0% | 1.250 | - | - | - | - | - | 2.000 | - | - |" in printed
  assert "FlexAttention ms" in (tmp_path / "rows.csv").read_text()
