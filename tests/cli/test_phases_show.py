"""Each part of a command that may take long shows its progress."""

import pytest

from tests import runs
from tests.cli.test_convert import SHORT
from vitx.cli.main import main
from vitx.runtime import progress
from vitx.training import loop


@pytest.fixture(autouse=True)
def soon(monkeypatch):
  """Shows progress at once, and not after two seconds."""
  monkeypatch.setattr(progress, "SOON", 0.0)


def test_an_evaluation_shows_its_progress(finished_run, capsys):
  assert main(["evaluate", "--workdir", str(finished_run[0])]) == 0
  shown = capsys.readouterr().err
  assert "evaluating: " in shown and "/12 [" in shown  # batches


@pytest.mark.slow  # compiles and trains
def test_a_training_shows_its_progress(capsys, tmp_path):
  loop.train(runs.tiny(*SHORT), tmp_path)
  out, err = capsys.readouterr()
  assert "compiling ..." in out and "compiling: " in out
  assert "evaluating validation: " in err and "evaluating test: " in err
