"""Every mean, deviation, interval and p-value of results/*.md follows from the CSV beside it."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

RESULTS = Path(__file__).resolve().parents[1] / "results"
TABLES = [path for path in sorted(RESULTS.glob("*.md")) if path.with_suffix(".csv").exists()]
NUMBER = r"([+-]?[0-9.]+)"


def read_table(path: Path) -> list[dict[str, str]]:
  """Returns the rows of a page's first table by column; the first column is called ""."""
  lines = [line for line in path.read_text().split("\n\n")[1].splitlines() if line[:1] == "|"]
  head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
  return [dict(zip(head, row, strict=True)) for row in rows]


def read_runs(path: Path, column: str) -> dict[str, dict[int, float]]:
  """Returns a column of the CSV by method and seed; failed runs are left out."""
  found: dict[str, dict[int, float]] = {}
  for row in csv.DictReader(path.with_suffix(".csv").read_text().splitlines()):
    own = found.setdefault(row["method"], {})
    if not row["problem"]:
      own[int(row["seed"])] = float(row[column])
  return found


def cell(values: list[float], scale: float, digits: int) -> str:
  spread = f" ± {np.std(values, ddof=1) * scale:.{digits}f}" if len(values) > 1 else ""
  return f"{np.mean(values) * scale:.{digits}f}{spread}"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_follows_from_its_runs(path):
  rows = read_table(path)
  named = next(name.removeprefix("test ") for name in rows[0] if name.startswith("test "))
  figure, scale, digits = {"top-1 %": ("top1", 100, 2), "bits": ("bits", 1, 4)}[named]
  minus = next(name for name in rows[0] if name.startswith("minus "))
  validation, test = (read_runs(path, f"{role}_{figure}") for role in ("validation", "test"))
  base = test[rows[0][""]]
  p_values = {}
  for row in rows:
    own = test[row[""]]
    assert row["seeds"] == str(len(own))
    assert row[f"test {named}"] == cell(list(own.values()), scale, digits)
    assert row[f"validation {named}"] == cell(list(validation[row[""]].values()), scale, digits)
    if row is rows[0]:
      continue
    seeds = [seed for seed in own if seed in base]
    pairs = [own[seed] for seed in seeds], [base[seed] for seed in seeds]
    values = [float(text) for text in re.findall(NUMBER, row[minus])]
    wanted = [np.mean(pairs[0]) - np.mean(pairs[1])]
    if len(seeds) > 1:
      found = stats.ttest_rel(*pairs)
      wanted += list(found.confidence_interval(0.95))
      p_values[row[""]] = found.pvalue
    np.testing.assert_allclose(values, np.array(wanted) * scale, atol=0.51 * 10**-digits)
  smallest, last = sorted(p_values, key=p_values.__getitem__), 0.0
  for place, name in enumerate(smallest):  # Holm's: each times the number of those left
    last = min(max(last, p_values[name] * (len(smallest) - place)), 1.0)
    row = next(row for row in rows if row[""] == name)
    assert float(row["p"]) == pytest.approx(last, rel=5e-3)


def test_there_are_tables():
  assert len(TABLES) >= 6
