"""metrics.jsonl keeps its rows, and resuming drops later rows and a torn last line."""

import json

import pytest

from vitx.checkpoints import metrics


def rows(n, start=0):
  return [{"kind": "train", "step": i} for i in range(start, n)]


def write(workdir, count, *, keep=0, appendable=True):
  """Writes rows to a log; without `appendable`, files cannot grow, as in an object store."""
  log = metrics.MetricsLog(workdir, write=True, keep=keep)
  log._appendable = appendable
  for row in rows(count, keep):
    log.append(row)
    log.flush()
  return log


@pytest.mark.parametrize("appendable", [True, False])
def test_a_cut_log_goes_on(tmp_path, appendable):
  write(tmp_path, 5, appendable=appendable)
  assert metrics.read_metrics(tmp_path) == rows(5)
  again = write(tmp_path, 6, keep=3, appendable=appendable)
  assert again.rows == 6 and again.dropped == rows(5, 3)
  assert metrics.read_metrics(tmp_path) == rows(6)


def test_a_part_that_holds_several_rows_is_cut_inside(tmp_path):
  log = metrics.MetricsLog(tmp_path, write=True, keep=0)
  log._appendable = False
  for row in rows(4):
    log.append(row)
  log.flush()
  assert [p.name for p in tmp_path.iterdir()] == ["metrics-00000000.jsonl"]
  write(tmp_path, 3, keep=2, appendable=False)
  assert metrics.read_metrics(tmp_path) == rows(3)


def test_a_torn_last_line_is_dropped(tmp_path):
  write(tmp_path, 3)
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write('{"kind": "tra')
  assert metrics.read_metrics(tmp_path) == rows(3)
  write(tmp_path, 4, keep=3)
  assert metrics.read_metrics(tmp_path) == rows(4)


def test_missing_rows_are_reported(tmp_path):
  write(tmp_path, 2)
  with pytest.raises(ValueError, match=r"2 rows.*counts 5"):
    metrics.MetricsLog(tmp_path, write=True, keep=5)


def test_the_row_of_test_is_found_without_reading_the_others(tmp_path):
  write(tmp_path, 2)
  assert metrics.read_test_row(tmp_path) is None
  row = {"kind": "test", "step": 2, "top1": 0.5}
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write(f'{{"kind": "test_seen", "step": 1}}\nnot read\n{json.dumps(row)}\n')
  assert metrics.read_test_row(tmp_path) == row


def test_other_processes_count_and_do_not_write(tmp_path):
  log = metrics.MetricsLog(tmp_path, write=False, keep=0)
  log.append(rows(1)[0])
  log.flush()
  assert log.rows == 1 and not list(tmp_path.iterdir())
