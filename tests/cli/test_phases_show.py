"""Each part of a command that may take long shows its progress."""

import numpy as np
import pytest
from PIL import Image

from tests import runs
from tests.cli.test_convert import SHORT
from vitx.cli.main import main
from vitx.training import loop
from vitx.training.record import progress


@pytest.fixture(autouse=True)
def soon(monkeypatch):
  """Shows progress at once, and not after two seconds."""
  monkeypatch.setattr(progress, "SOON", 0.0)


def test_evaluation(finished_run, capsys):
  assert main(["evaluate", "--workdir", str(finished_run[0])]) == 0
  shown = capsys.readouterr().err
  assert "evaluating: " in shown and "/12 [" in shown  # batches


def test_prediction(finished_run, capsys, tmp_path):
  paths = [tmp_path / f"{i}.png" for i in range(3)]
  for path in paths:
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
  assert main(["predict", "--workdir", str(finished_run[0]), *map(str, paths)]) == 0
  shown = capsys.readouterr().err
  assert "predicting: " in shown and "/3 [" in shown


@pytest.mark.slow  # compiles and trains
def test_training(capsys, tmp_path):
  loop.train(runs.tiny(*SHORT), tmp_path)
  out, err = capsys.readouterr()
  assert "compiling ..." in out and "compiling: " in out
  assert "evaluating validation: " in err and "evaluating test: " in err
