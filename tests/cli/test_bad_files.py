"""Configs that fail, unwritable places, and processes that cannot meet are refused at once.

Each error is one line.
"""

import pytest

from tests import runs
from tests.cli.refusal import elsewhere, refuse

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
