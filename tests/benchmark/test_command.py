"""`vitx benchmark mixers`, from its arguments to its files."""

import csv

import pytest

from vitx.attention import MIXERS
from vitx.benchmark import mixers, report, timing
from vitx.cli.main import main

TINY = ["benchmark", "mixers", "--heads=2", "--head_dim=4", "--repeats=1", "--seconds=0.1"]


@pytest.mark.slow
def test_from_arguments_to_files(tmp_path, capsys):
  files = [tmp_path / "rows.csv", tmp_path / "rows.png"]
  chosen = "--mixers=mlp_mixing,neighborhood"
  assert not main([*TINY, "--tokens=16,49", chosen, f"--csv={files[0]}", f"--plot={files[1]}"])
  with open(files[0], newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 2 * (2 + 1 + 2)  # Softmax is added to the chosen mixers.
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
  assert not main(["benchmark", "mixers"])
  assert asked[0][:2] == (list(MIXERS), [256, 1024, 4096])


def test_what_does_not_fit_is_skipped_and_named(monkeypatch):
  monkeypatch.setattr(timing, "find_free_bytes", lambda: 10**5)
  setting = mixers.Setting(heads=2, head_dim=4)
  rows = mixers.measure(["fnet"], [256], setting, repeats=1, seconds=0.1)
  skipped = [row for row in rows if row.note]
  assert ("softmax", "masked") in {(row.mixer, row.implementation) for row in skipped}
  assert all("GB are free" in row.note for row in skipped)


@pytest.mark.slow
def test_a_mixer_of_ones_own():
  setting = mixers.Setting(heads=2, head_dim=4)
  name = "vitx.attention.softmax:SoftmaxAttention"
  rows = mixers.measure([name], [16], setting, repeats=1, seconds=0.1)
  assert [row.mixer for row in rows] == ["softmax"] * 2 + [name] * 2
  assert rows[0].flops == rows[2].flops


def test_grids_are_nearly_square():
  found = [mixers.make_grid(n).grid for n in (16, 512, 530, 7)]
  assert found == [(4, 4), (16, 32), (10, 53), (1, 7)]
