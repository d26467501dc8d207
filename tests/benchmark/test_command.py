"""`vitx benchmark mixers`, from its arguments to its files."""

import csv

import pytest

from vitx.benchmark import mixers, timing
from vitx.cli.main import main

TINY = ["benchmark", "mixers", "--heads=2", "--head_dim=4", "--repeats=1", "--seconds=0.1"]


@pytest.mark.slow
def test_the_command_writes_its_rows_and_plot(tmp_path, capsys):
  files = [tmp_path / "rows.csv", tmp_path / "rows.png"]
  assert not main(
    [*TINY, "--tokens=16,49", "--mixers=neighborhood", f"--csv={files[0]}", f"--plot={files[1]}"]
  )
  with open(files[0], newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 2 * (2 + 2)  # Softmax is added to the chosen mixer.
  for row in rows:
    if row["mixer"] == "softmax":
      assert float(row[f"time_times_less_than_{row['implementation']}"]) == 1
    # A neighborhood of 7 x 7 does not fit a grid of 4 x 4.
    assert bool(row["note"]) == (row["mixer"] == "neighborhood" and row["tokens"] == "16")
  assert files[1].read_bytes().startswith(b"\x89PNG")
  assert "N = 49" in capsys.readouterr().out


def test_an_unknown_mixer_names_the_nearest(capsys):
  assert main([*TINY, "--mixers=performr"]) == 1
  error = capsys.readouterr().err
  assert "performr" in error and "Did you mean 'performer'" in error


def test_programs_beyond_the_memory_are_skipped(monkeypatch):
  monkeypatch.setattr(timing, "find_free_bytes", lambda: 10**5)
  setting = mixers.Setting(heads=2, head_dim=4)
  rows = mixers.measure(["fnet"], [256], setting, repeats=1, seconds=0.1)
  skipped = [row for row in rows if row.note]
  assert ("softmax", "masked") in {(row.mixer, row.implementation) for row in skipped}
  assert all("GB are free" in row.note for row in skipped)
