"""The command, from its arguments to its files."""

import csv

import jax
import numpy as np
import pytest

from vitx.attention.registry import MIXERS
from vitx.benchmark import cases, mixers, named, report, timing
from vitx.cli.main import main

TINY = [
  "benchmark",
  "mixers",
  "--heads=2",
  "--head_dim=4",
  "--repeats=1",
  "--seconds=0.1",
  "--runs=0",
]


@pytest.mark.slow
def test_from_arguments_to_files(tmp_path, capsys):
  files = [tmp_path / "rows.csv", tmp_path / "rows.png"]
  chosen = "--mixers=mlp_mixing,neighborhood"
  assert not main([*TINY, "--tokens=16,49", chosen, f"--csv={files[0]}", f"--plot={files[1]}"])
  with open(files[0], newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert tuple(rows[0]) == report.COLUMNS
  assert len(rows) == 2 * (2 + 1 + 2)  # softmax stands beside what was asked for
  for row in rows:
    if row["mixer"] == "softmax":
      assert float(row[f"time_times_less_than_{row['implementation']}"]) == 1
    # A neighborhood of 7 x 7 does not fit a grid of 4 x 4.
    assert bool(row["note"]) == (row["mixer"] == "neighborhood" and row["tokens"] == "16")
  assert files[1].read_bytes().startswith(b"\x89PNG")
  assert "N = 49" in capsys.readouterr().out


def test_an_unknown_mixer_says_which_is_nearest(capsys):
  assert main([*TINY, "--mixers=performr"]) == 1
  error = capsys.readouterr().err
  assert "performr" in error and "Did you mean 'performer'" in error


def test_all_mixers_are_the_default(monkeypatch):
  asked = []
  monkeypatch.setattr(mixers, "measure", lambda *given, **_: asked.append(given) or [])
  monkeypatch.setattr(report, "format_rows", lambda *_: "")
  assert not main(["benchmark", "mixers", "--runs=0"])
  assert asked[0][:2] == (list(MIXERS), [256, 1024, 4096])


def test_what_does_not_fit_is_skipped_and_named(monkeypatch):
  monkeypatch.setattr(timing, "find_free_bytes", lambda: 10**5)
  setting = mixers.Setting(heads=2, head_dim=4)
  rows = mixers.measure(["fnet"], [256], setting, repeats=1, seconds=0.1)
  skipped = [row for row in rows if row.note]
  assert ("softmax", "masked") in {(row.mixer, row.implementation) for row in skipped}
  assert all("GB are free" in row.note for row in skipped)


def test_a_mixer_of_ones_own():
  setting = mixers.Setting(heads=2, head_dim=4)
  name = "vitx.attention.softmax:SoftmaxAttention"
  rows = mixers.measure([name], [16], setting, repeats=1, seconds=0.1)
  assert [row.mixer for row in rows] == ["softmax"] * 2 + [name] * 2
  assert rows[0].flops == rows[2].flops


def test_grids_are_nearly_square():
  found = [mixers.make_grid(n).grid for n in (16, 512, 530, 7)]
  assert found == [(4, 4), (16, 32), (10, 53), (1, 7)]


def test_a_named_case_in_small():
  kernels = {
    "masked": named.Kernel(cases._attend_masked()),
    "weighted": named.Kernel(lambda q, k, v, w, i: v[:, i] * w, ((4,),), lambda: (np.arange(64),)),
  }
  figures = (
    named.Figure("weighted", "masked", "memory", 1.0),
    named.Figure("weighted", "masked", "time", 1e9),
  )
  case = named.Case("small", (1, 64, 2, 4), kernels, figures)
  memory, time = named.measure((case,), runs=2, repeats=1, seconds=0.1)
  assert memory.met == len(memory.found) == 1
  assert time.met == 0 and len(time.found) == 2


def test_named_cases_too_large_are_skipped(monkeypatch):
  monkeypatch.setattr(timing, "find_free_bytes", lambda: 10**6)
  outcomes = named.measure(cases.CASES[:1])
  assert all(outcome.note and not outcome.found for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_exact_kernels_of_a_named_case_compute_the_same(case):
  q, k, v = np.sin(np.arange(3 * 2 * 256 * 2 * 8, dtype=np.float32)).reshape(3, 2, 256, 2, 8)
  fixed = (np.random.default_rng(0).permutation(256)[None, None, None, :20],)
  given = [np.broadcast_to(x, (2, 1, 256, 20)) for x in fixed if "kept" in case.name]
  exact = [name for name in case.kernels if "former" not in name]
  exact = [name for name in exact if name != "dense kernelized" or case.name.startswith("dense")]
  outs = jax.jit(lambda *arrays: [case.kernels[name].attend(*arrays) for name in exact])(
    *(q, k, v, *given)
  )
  for out in outs[1:]:
    np.testing.assert_allclose(out, outs[0], rtol=0, atol=1e-5)
  assert len(outs) > 1 or case.name.startswith("linear")
