"""Ratios, crossovers and files from rows made by hand."""

import csv

import pytest

from vitx.benchmark import report
from vitx.benchmark.mixers import MixerCost, Setting
from vitx.benchmark.timing import Times
from vitx.config.errors import ConfigError


def row(n, mixer, implementation, seconds, megabytes=1, **more):
  picked = implementation == "kernelized"
  times = Times(seconds, 3)
  return MixerCost(n, mixer, implementation, picked, times, megabytes * 10**6, 10**9, **more)


ROWS = [
  *(row(n, "softmax", "masked", 4 * s, 8) for n, s in ((64, 1), (256, 16))),
  *(row(n, "softmax", "kernelized", 2 * s, 2) for n, s in ((64, 1), (256, 16))),
  *(row(n, "sparse", "masked", 5 * s, 8) for n, s in ((64, 1), (256, 16))),
  row(64, "sparse", "kernelized", 6),
  row(256, "sparse", "kernelized", 8),
  row(64, "mlp", "auto", 1),
  MixerCost(256, "mlp", "auto", False, note="skipped: needs 9 GB"),
]


def test_ratios_say_how_many_times_less():
  sparse = ROWS[7]
  assert report.compute_ratio(ROWS, sparse, "time", "masked") == 8
  assert report.compute_ratio(ROWS, sparse, "time", "kernelized") == 4
  assert report.compute_ratio(ROWS, sparse, "memory", "masked") == 8
  assert report.compute_ratio(ROWS, sparse, "flops", "masked") == 1
  assert report.compute_ratio(ROWS, ROWS[-1], "time", "masked") is None


def test_a_baseline_is_once_itself():
  for own in (r for r in ROWS if r.mixer == "softmax"):
    for quantity in report.QUANTITIES:
      assert report.compute_ratio(ROWS, own, quantity, own.implementation) == 1


def test_crossovers():
  assert report.find_crossover(ROWS, "sparse", "kernelized") == 256
  assert report.find_crossover(ROWS, "sparse", "masked") == 256
  assert report.find_crossover(ROWS, "softmax", "masked") == 64
  assert report.find_crossover(ROWS, "mlp", "kernelized") == 64  # A skipped row does not count.
  assert report.find_crossover(ROWS, "mlp", "masked") is None
  beaten_again = [*ROWS[:7], row(256, "sparse", "kernelized", 100)]
  assert report.find_crossover(beaten_again, "sparse", "kernelized") is None


def test_the_table_has_every_row_and_no_absolute_time():
  text = report.format_rows(ROWS, Setting())
  assert text.count("sparse ") == 5 and "skipped: needs 9 GB" in text
  assert "N = 64" in text and "N = 256" in text
  assert " ms" not in text


def test_the_table_says_what_was_cut_short():
  short = MixerCost(64, "slow", "masked", False, Times(9.0, 1), 1, 1)
  assert "slow masked (1)" in report.format_rows([*ROWS, short], Setting())
  assert "--seconds" not in report.format_rows(ROWS, Setting())


def test_csv(tmp_path):
  path = tmp_path / "rows.csv"
  report.write_csv(path, ROWS)
  with open(path, newline="", encoding="utf-8") as file:
    read = list(csv.DictReader(file))
  assert list(read[0])[:4] == ["tokens", "mixer", "implementation", "picked"]
  assert len(read) == len(ROWS)
  assert read[7]["mixer"] == "sparse" and float(read[7]["time_times_less_than_masked"]) == 8
  assert read[7]["temporary_bytes"] == "1000000" and read[7]["milliseconds"] == ""
  assert read[-1]["note"] and read[-1]["time_times_less_than_masked"] == ""
  with pytest.raises(OSError, match="no"):
    report.write_csv(tmp_path / "no" / "rows.csv", ROWS)


def test_plot(tmp_path):
  path = tmp_path / "rows.png"
  report.write_plot(path, ROWS)
  assert path.read_bytes().startswith(b"\x89PNG")
  with pytest.raises(ConfigError, match="cannot be written"):
    report.write_plot(tmp_path / "rows.nonsense", ROWS)
