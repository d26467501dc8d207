"""No cell of text becomes a formula in a spreadsheet, and each cell is read back unchanged."""

import csv
import os

import pytest

from vitx.analysis import csv_files

FORMULAS = ("=1+1", "+x", "-x", "@SUM(A1)", "\tx", "\rx", "\n=x", "＝x", "＠x", '=HYPERLINK("x")')
NUMBERS = ("-1.5", "+3", "-1e-05", "-inf", -1.5, 0, None, 7)
PLAIN = ("cat", "", "a-b", "'quoted'", "it's", " x", "’=", "http://x/?a=b")


@pytest.mark.parametrize("cell", [*FORMULAS, "-1.5 x", "'=x", "''@x"], ids=repr)
def test_a_text_that_would_be_computed_has_an_apostrophe(cell, tmp_path):
  csv_files.write(tmp_path / "a.csv", [["name", cell], [cell, 1]])
  with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
    assert list(csv.reader(file)) == [["name", f"'{cell}"], [f"'{cell}", "1"]]
  assert csv_files.read(tmp_path / "a.csv") == [{"name": cell, cell: "1"}]


@pytest.mark.parametrize("cell", [*NUMBERS, *PLAIN], ids=repr)
def test_a_number_or_a_plain_text_stays(cell, tmp_path):
  csv_files.write_records(tmp_path / "a.csv", [{"name": 1, "x": cell}])
  with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
    assert list(csv.DictReader(file)) == [{"name": "1", "x": "" if cell is None else str(cell)}]
  assert csv_files.read(tmp_path / "a.csv")[0]["x"] == ("" if cell is None else str(cell))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full disk")
@pytest.mark.parametrize("write", [csv_files.write, csv_files.write_records])
def test_a_full_disk_is_told_with_the_file(write):
  rows = [["a"]] if write is csv_files.write else [{"a": 1}]
  with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
    write("/dev/full", rows)
