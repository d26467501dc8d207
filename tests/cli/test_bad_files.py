"""Configs that fail, unwritable places, and processes that cannot meet are refused at once.

Each error is one line.
"""

import pytest

from tests import runs
from tests.cli.refusal import elsewhere, refuse
from vitx.checkpoints.workdir import check_file
from vitx.config.errors import ConfigError

__all__ = ["elsewhere"]

TINY = "configs/digits.py:" + runs.TINY
TRAIN = ["train", "--config", TINY, "--workdir", "run"]


# Commands that write at their end. Their inputs do not exist, but the output is checked first.
@pytest.mark.parametrize(
  ("command", "part"),
  [
    ("evaluate --workdir nowhere --json no_folder/x", "json"),
    ("export --workdir nowhere --out a_folder", "out"),
    ("compress nowhere.txt --workdir nowhere --out no_folder/x", "out"),
    ("sample --workdir nowhere --out some.txt/below", "out"),
    ("sweep --config digits:softmax --workdir runs --out some.txt", "out"),
  ],
)
def test_an_unwritable_place_is_refused_first(command, part, elsewhere, capsys):
  (elsewhere / "some.txt").write_text("some text")
  (elsewhere / "a_folder").mkdir()
  refuse(capsys, elsewhere, command.split(), part)


@pytest.mark.parametrize("sign", ["environment.json", "phases.json", "vitx.json", "point.json"])
def test_an_output_replaces_no_file_of_a_run(sign, tmp_path):
  (tmp_path / "run" / "checkpoints" / "8").mkdir(parents=True)
  (tmp_path / "run" / sign).write_text("{}")
  (tmp_path / "link").symlink_to(tmp_path / "run" / "config.json")
  lost = ["config.json", "metrics.jsonl", "failed.json", "checkpoints/x", "checkpoints/8/x", sign]
  for path in [*(tmp_path / "run" / name for name in lost), tmp_path / "link"]:
    with pytest.raises(ConfigError, match=r"json='.*' belongs to the run in .*run; name another"):
      check_file(path, "json")
  for path in ("run/figures.json", "run/checkpoints.csv", "config.json"):
    check_file(tmp_path / path, "json")
