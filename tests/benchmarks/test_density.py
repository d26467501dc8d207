"""The benchmark of density models in small, and its judgment of rows made by hand."""

import jax
import numpy as np
import pytest

from tests.benchmarks import density, density_steps
from tests.ops import attention_cases as cases
from vitx.ops import TokenLayout, dense_mask
from vitx.ops.patterns import Fixed, Strided

QUICK = {"runs": 2, "repeats": 1, "seconds": 0.1}
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
  kernels = density.kernels(8, 2)
  outs = jax.jit(lambda *given: {name: attend(*given) for name, attend in kernels.items()})(q, k, v)
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


@pytest.mark.slow  # compiles all kernels forward and backward
def test_attention_in_small(monkeypatch, capsys):
  monkeypatch.setattr(density, "MASKED_UP_TO", 32)
  rows = {
    r.name: r for r in density.measure_attention(64, stride=8, summary=2, head_dim=8, **QUICK)
  }
  masked, column, local = (rows[n] for n in ("masked", "strided, column", "strided, local"))
  assert not masked.seconds and "not run" in masked.note and masked.temporary_bytes > 4 * 2 * 64**2
  assert all(len(row.seconds) == 2 for name, row in rows.items() if name != "masked")
  mean = [(c + 3 * x) / 4 for c, x in zip(column.seconds, local.seconds, strict=True)]
  assert rows[density.LAYERS].seconds == pytest.approx(mean)
  text = density.format_measured(list(rows.values()), "in small")
  assert f"{'causal flash':<30}{'1.00':>14}{'0.00':>7}" in text and "not run" in text
  outcomes = {o.figure: o for o in density.judge(list(rows.values()), "in small")}
  assert [bool(outcomes[f].note) for f in density.FIGURES] == [False] * 7 + [True]

  monkeypatch.setattr(density, "measure_attention", lambda n, **given: [*rows.values()])
  effort = {"say": lambda text: None}
  density.measure(("attention",), [64], 8, 2, (), 4, effort)
  out = capsys.readouterr().out
  assert "N = 64, H = 2, D = 64, l = 8, c = 2" in out and "strided, merged" in out
  assert "Named cases" not in out  # whose figures are those of another size


def test_ratios_and_figures_of_rows_made_by_hand():
  names = {f.kernel for f in density.FIGURES} | {f.other for f in density.FIGURES}
  rows = {name: density.Measured(name, (1.0, 2.0), 10**6) for name in names}
  rows["fixed"] = density.Measured("fixed", (0.25, 2.0), 10**6)
  rows["masked"] = density.Measured("masked", (), 60 * 10**6, note="not run")
  outcomes = density.judge(list(rows.values()), "case")
  fixed = next(o for o in outcomes if o.figure.kernel == "fixed")
  assert fixed.found == (4, 1) and fixed.met == 1
  memory = [o for o in outcomes if o.figure.quantity == "memory"]
  assert all(o.met == 1 for o in memory) and outcomes[-1].note == "not run"


@pytest.mark.slow  # compiles three models forward and backward
def test_steps_in_small():
  rows = density_steps.measure_steps({"small": SETUP}, depth=1, **QUICK)
  assert [(row.pattern, row.published) for row in rows] == [
    *(("dense", 1.0), ("fixed", 1.5), ("strided", 2.0))
  ]
  assert all(len(row.seconds) == 2 and row.temporary_bytes for row in rows)
  lines = density_steps.format_steps(rows, 4).splitlines()
  assert len(lines) == 5 and lines[2].split()[:5] == ["small", "32", "dense", "1.00", "1.00"]


@pytest.mark.slow  # compiles three models twice
def test_sampling_in_small():
  rows = density_steps.measure_sampling(SETUP, depth=2, **QUICK)
  assert [row.pattern for row in rows] == list(density_steps.PATTERNS)
  assert all(len(row.ratio) == 2 and min(row.ratio) > 0 for row in rows)
  dense, _, strided = rows
  assert 0 < strided.cache_bytes < dense.cache_bytes
  assert len(density_steps.format_sampling(rows, 4).splitlines()) == 5
