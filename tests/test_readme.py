"""The README's Python runs as it stands there."""

import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def directory(finished_run, tmp_path_factory):
  """Where a reader stands after the first command: a trained run, and an image."""
  directory = tmp_path_factory.mktemp("readme")
  shutil.copytree(finished_run[0], directory / "runs" / "digits")
  Image.new("L", (8, 8), 128).save(directory / "scan.png")
  return directory


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_runs(number, directory, monkeypatch):
  monkeypatch.chdir(directory)
  exec(compile(BLOCKS[number], f"README.md, Python block {number}", "exec"), {"__name__": "readme"})


def test_the_mixer_shown_is_the_one_tested():
  assert (ROOT / "tests" / "attention" / "third_party.py").read_text() in README
