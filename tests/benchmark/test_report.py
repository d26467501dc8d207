"""Ratios, crossovers and files from rows made by hand."""

import csv

from vitx.benchmark import report
from vitx.benchmark.mixers import MixerCost
from vitx.benchmark.timing import Times


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


def test_crossovers_begin_a_lasting_lead():
  assert report.find_crossover(ROWS, "sparse", "kernelized") == 256
  assert report.find_crossover(ROWS, "sparse", "masked") == 256
  assert report.find_crossover(ROWS, "softmax", "masked") == 64
  assert report.find_crossover(ROWS, "mlp", "kernelized") == 64  # A skipped row does not count.
  assert report.find_crossover(ROWS, "mlp", "masked") is None
  beaten_again = [*ROWS[:7], row(256, "sparse", "kernelized", 100)]
  assert report.find_crossover(beaten_again, "sparse", "kernelized") is None


def test_the_csv_file_has_every_row(tmp_path):
  path = tmp_path / "rows.csv"
  report.write_csv(path, ROWS)
  with open(path, newline="", encoding="utf-8") as file:
    read = list(csv.DictReader(file))
  assert list(read[0])[:4] == ["tokens", "mixer", "implementation", "picked"]
  assert len(read) == len(ROWS)
  assert read[7]["mixer"] == "sparse" and float(read[7]["time_times_less_than_masked"]) == 8
  assert read[7]["temporary_bytes"] == "1000000" and read[7]["milliseconds"] == ""
