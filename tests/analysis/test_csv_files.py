"""CSV files have each cell as it is, and an error in writing names the file."""

import csv
import os

import pytest

from vitx.analysis import csv_files
from vitx.data.splits import read_excluded


@pytest.mark.parametrize("cell", ["=1+1", "-x", "+3", "-1e-05", "'quoted'", "a,b\n", None, 7])
def test_a_cell_is_written_unchanged(cell, tmp_path):
  csv_files.write_records(tmp_path / "a.csv", [{"name": 1, "x": cell}, {"name": 2}])
  csv_files.write(tmp_path / "b.csv", [["name", "x"], [1, cell], [2, None]])
  assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
  with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
    text = "" if cell is None else str(cell)
    assert list(csv.DictReader(file)) == [{"name": "1", "x": text}, {"name": "2", "x": ""}]


def test_a_file_name_that_is_no_utf_8_keeps_its_bytes(tmp_path):
  name = os.fsdecode(b"Gr\xfcn.jpg")
  csv_files.write(tmp_path / "a.csv", [["name"], [name]])
  csv_files.write_records(tmp_path / "b.csv", [{"name": name}])
  for file_name in ("a.csv", "b.csv"):
    assert (tmp_path / file_name).read_bytes() == b"name\r\nGr\xfcn.jpg\r\n"
  with csv_files.open_file(tmp_path / "a.csv") as file:
    assert [row["name"] for row in csv.DictReader(file)] == [name]
  assert read_excluded(str(tmp_path / "a.csv")) == [name]
