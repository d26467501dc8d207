"""Fixtures of data sets, for the commands that prepare and read them, and of quick trainings."""

import functools
import json
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from tests.cli import density_models
from tests.data.conftest import digits_dir, draw, make_data
from vitx.cli.main import main
from vitx.inference import opening
from vitx.runtime import sharing
from vitx.sweeps import sweep as trained
from vitx.training import phases
from vitx.training.loop import Result

__all__ = ["digits_dir", "draw", "make_data"]


@functools.cache
def resolve(text):
  """Returns a run's config, given as JSON, as its workdir has it, and the data's fingerprint."""
  experiment = phases.check(ConfigDict(json.loads(text)), "")[0]
  return trained.wd.to_plain(experiment.settings), experiment.source.info.fingerprint


@pytest.fixture
def uncleared(monkeypatch):
  """Keeps a sweep from clearing caches and collecting garbage, since nothing is compiled."""
  monkeypatch.setattr(sharing, "release", lambda: None)


@pytest.fixture
def quick(monkeypatch, uncleared):
  """Replaces training by writing the files of a trained run; the fixture lists the runs."""
  ran = []

  def train(config, workdir, **_):
    ran.append(Path(workdir).name)
    value = 0.5 + 0.1 * (config.model.token_mixer.name == "fnet") + 0.01 * config.seed
    figures = {"step": 4, "top1": value, "top5": 1.0, "examples": 9}
    rows = [{"kind": kind, **figures} for kind in ("validation", "test")]
    rows.insert(0, {"kind": "train", "step": 4, "loss": 1.0})
    shared = json.dumps(trained.wd.to_plain(config) | {"seed": 0}, sort_keys=True)
    resolved, fingerprint = resolve(shared)
    data = {"source": "digits", "fingerprint": fingerprint, "examples": {"train": 9}}
    data["class_names"] = [*"0123456789"]
    environment = {"data": data, "devices": ["cpu"], "processor": "p", "cores": 2}
    environment |= {"python": "3", "versions": {"jax": "0"}, "commit": "c"}
    trained.wd.write_json(workdir, "environment.json", environment)
    trained.wd.write_json(workdir, "config.json", resolved | {"seed": config.seed})
    (Path(workdir) / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return Result(str(workdir), 8, True, figures)

  monkeypatch.setattr(phases, "train", train)
  monkeypatch.setattr(trained, "_read_seconds", lambda _: 36.0)
  return ran


@pytest.fixture(scope="session")
def digits():
  """An untrained density model of images."""
  return density_models.make()


@pytest.fixture(scope="session")
def text():
  """An untrained density model of bytes."""
  return density_models.text()


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
  """Returns a function that runs a command on a given model.

  The function returns the status, the output and the errors.
  """

  def run(loaded, name, *arguments):
    monkeypatch.setattr(opening.repository, "load", lambda *_, **__: loaded)
    status = main([name, "--workdir", str(tmp_path), *map(str, arguments)])
    return status, *capsys.readouterr()

  return run
