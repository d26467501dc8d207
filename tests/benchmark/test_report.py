"""Ratios, crossovers and files from rows made by hand."""

import csv

from vitx.analysis.figures.style import make_canvas
from vitx.benchmark import report
from vitx.benchmark.mixers import MixerCost, Setting
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


def test_the_table_names_skipped_and_shortened_rows():
  short = MixerCost(64, "slow", "masked", False, Times(9.0, 1), 1, 1)
  text = report.format_rows([*ROWS, short], Setting())
  assert text.count("sparse ") == 5 and "skipped: needs 9 GB" in text and " ms" not in text
  assert "timed fewer than 3 times because of --seconds: slow masked (1)" in text


def test_the_plot_marks_the_start_of_a_lead(tmp_path, monkeypatch):
  figure = make_canvas(14, 7)
  monkeypatch.setattr(report, "make_canvas", lambda *_: figure)
  report.write_plot(tmp_path / "rows.png", ROWS)
  collections = figure.axes[0].collections
  marks = [place for collection in collections for place in collection.get_offsets().tolist()]
  # Softmax leads its masked path from N = 64 on, mlp leads softmax there, and sparse leads both at
  # N = 256. The unit is the time of kernelized softmax at N = 64.
  assert sorted(marks) == [[64, 0.5], [64, 1], [256, 4], [256, 4]]
  assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
