"""A finished sweep is shown again from its record, and any change sends it through all checks."""

import shutil

import pytest

from tests import runs
from tests.cli.sweeps import TINY
from vitx.checkpoints import workdir as wd
from vitx.config import loader
from vitx.sweeps import points


@pytest.fixture
def listed(tmp_path):
  """Returns a function that lists the points of two methods in a config file of the user's."""
  shutil.copy(runs.ROOT / "configs" / "digits.py", tmp_path / "mine.py")

  def make(rows=("softmax", "fnet"), seeds=2, more=""):
    texts = {row: f"{tmp_path / 'mine.py'}:{row},{TINY}{more}" for row in rows}
    return points.make_points(texts, seeds)

  return make


def edit(folder):
  """Changes the configs of all seeds but the first."""
  with open(folder / "mine.py", "a", encoding="utf-8") as file:
    file.write(
      "\n_load = get_config\n\n\ndef get_config(arg):\n  config = _load(arg)\n"
      "  config.batch_size += config.seed\n  return config\n"
    )


def change_defaults(monkeypatch):
  """Changes the configs without a change of the config file."""
  load = loader.load_config

  def load_other(text):
    config = load(text)
    config.batch_size += 1
    return config

  monkeypatch.setattr(points, "load_config", load_other)


@pytest.mark.parametrize(
  ("change", "expected"),
  [
    (lambda *_: None, {"shown": "table", "status": 1}),
    (lambda folder, _: shutil.rmtree(folder / "softmax_seed-1"), None),
    (lambda folder, _: (folder / "table.md").write_text("of another sweep"), None),
    (lambda folder, _: (folder / "table.md").unlink(), None),
    (lambda folder, _: edit(folder), None),
    (lambda _, monkeypatch: change_defaults(monkeypatch), None),
  ],
)
def test_a_record_counts_until_something_changes(change, expected, listed, tmp_path, monkeypatch):
  for point in listed():
    wd.write_json(tmp_path / point.name, wd.POINT, {"seed": point.seed})
  (tmp_path / "table.md").write_text("table")
  identity = points.identify(listed(), "out", None, True)
  points.record(identity, str(tmp_path), [tmp_path / "table.md"], shown="table", status=1)
  change(tmp_path, monkeypatch)
  assert points.read_record(listed(), str(tmp_path), "out", None, True) == expected


@pytest.mark.parametrize(
  "other", [dict(seeds=3), dict(seeds=1), dict(rows=("fnet", "softmax")), dict(more=",seed=3")]
)
def test_a_record_is_of_one_sweep(other, listed, tmp_path):
  """The first method is the one with which the others are compared."""
  points.record(points.identify(listed(), "out"), str(tmp_path), [], shown="")
  assert points.read_record(listed(), str(tmp_path), "out") is not None
  assert points.read_record(listed(), str(tmp_path), "elsewhere") is None
  assert points.read_record(listed(**other), str(tmp_path), "out") is None
