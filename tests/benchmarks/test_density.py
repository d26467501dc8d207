"""The benchmark of density models with small sizes."""

import jax
import numpy as np
import pytest

from tests.benchmarks import density, density_steps
from tests.ops import attention_cases as cases
from vitx.ops import TokenLayout, dense_mask
from vitx.ops.patterns import Fixed, Strided

QUICK = {"runs": 2, "repeats": 1, "seconds": 0.1, "say": lambda text: None}
SETUP = density_steps.Setup(
  grid=(4, 8),
  fields={"width": 8, "num_heads": 2, "mlp_dim": 8},
  mixer={"head_dim": 4, "value_dim": 2},
  stride=8,
  summary=2,
  published={"dense": 3.0, "fixed": 2.0, "strided": 1.5},
)


@pytest.mark.slow
def test_the_kernels_compute_their_patterns():
  q, k, v, _ = cases.inputs(1, 64, 4, 8)
  kernels = {n: k for n, k in density.make_case(64, 8, 2).kernels.items() if k.layers == 1}
  outs = jax.jit(lambda *x: {name: k.attend(*x) for name, k in kernels.items()})(q, k, v)
  edges = {
    "strided, local": Strided(8, "local", "code"),
    "strided, column": Strided(8, "column", "code"),
    "strided, merged": Strided(8, "merged", "code"),
    "fixed": Fixed(8, 2, distinct=4),
  }
  for name, out in outs.items():
    mask = np.tri(64, dtype=bool)
    if name in edges:
      mask = np.asarray(dense_mask(edges[name], TokenLayout((64,)), 4))
    np.testing.assert_allclose(out, cases.masked(q, k, v, mask)[0], atol=2e-6, err_msg=name)


@pytest.mark.slow  # compiles two models forward and backward
def test_steps_are_measured_in_small(capsys, monkeypatch):
  two = {name: density_steps.PATTERNS[name] for name in ("dense", "strided")}
  monkeypatch.setattr(density_steps, "PATTERNS", two)
  density_steps.measure_steps({"small": SETUP}, 1, **QUICK)
  lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
  assert lines[0][:5] == ["small", "32", "dense", "1.00", "1.00"]
  assert [(line[2], line[4]) for line in lines[1:]] == [("strided", "2.00")]


@pytest.mark.slow  # compiles a model twice
def test_sampling_is_measured_in_small(capsys, monkeypatch):
  monkeypatch.setattr(density_steps, "PATTERNS", {"strided": density_steps.PATTERNS["strided"]})
  density_steps.measure_sampling(SETUP, 1, **QUICK)
  pattern, _, ratio, *_ = capsys.readouterr().out.splitlines()[2].split()
  assert pattern == "strided" and float(ratio) > 0
