"""A directory that somebody else made runs none of their code, unless it is trusted."""

import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

import vitx
from tests import runs
from vitx.cli.main import main
from vitx.errors import ConfigError
from vitx.training import loop

OWN = """
import pathlib
from vitx.attention.softmax import SoftmaxAttention
pathlib.Path("imported").touch()
class Mixer(SoftmaxAttention):
  pass
"""


@pytest.fixture
def workdir(finished_run, tmp_path, monkeypatch):
  """A workdir whose config names code that lies in the current folder."""
  shutil.copytree(finished_run[0], tmp_path / "run")
  config = json.loads((tmp_path / "run" / "config.json").read_text())
  config["model"]["token_mixer"] = {"name": "own_mixer:Mixer"}
  (tmp_path / "run" / "config.json").write_text(json.dumps(config))
  (tmp_path / "own_mixer.py").write_text(OWN)
  Image.new("L", (8, 8), 128).save(tmp_path / "scan.png")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  yield tmp_path / "run"
  sys.modules.pop("own_mixer", None)


def commands(workdir):
  tiny = runs.replace(runs.TINY, "duration=6 steps", f"init_from='{workdir}'")
  train = ["train", "--config", f"digits:{tiny}", "--workdir", "new"]
  return {
    "evaluate": ["evaluate", "--workdir", str(workdir)],
    "predict": ["predict", "--workdir", str(workdir), "scan.png"],
    "train": train,
    "dry_run": [*train, "--dry_run"],
  }


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "predict", "train", "dry_run"])
def test_commands(command, workdir, monkeypatch, capsys):
  monkeypatch.setattr(loop, "_run", lambda *_: loop.Result("new", 6, True))  # as good as trained
  arguments = commands(workdir)[command]
  assert main(arguments) == 1
  error = capsys.readouterr().err
  assert "own_mixer:Mixer" in error and "--trust_code" in error
  assert not (workdir.parent / "imported").exists() and not (workdir.parent / "new").exists()
  assert main([*arguments, "--trust_code"]) == 0
  assert (workdir.parent / "imported").exists()


def test_functions(workdir):
  images = np.zeros((1, 8, 8, 1), np.uint8)
  for function, *arguments in (
    (vitx.load, workdir),
    (vitx.evaluate, workdir),
    (vitx.predict, workdir, images),
  ):
    with pytest.raises(ConfigError, match="trust_code=True"):
      function(*arguments)
  assert not (workdir.parent / "imported").exists()
  sys.path.append(str(workdir.parent))
  assert len(vitx.predict(workdir, images, trust_code=True).classes) == 1
