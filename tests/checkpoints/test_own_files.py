"""Links and special files in a workdir make no command write outside it."""

import json
import math
import os
import re
import shutil

import numpy as np
import pytest
from absl import logging

from tests import runs
from vitx.checkpoints import lock, outputs, unevaluated
from vitx.checkpoints.errors import CheckpointError
from vitx.checkpoints.store import CheckpointStore
from vitx.checkpoints.workdir import find_run, read_config, write_json
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.sweeps.sweep import FAILED, POINT, _claim
from vitx.training import phases
from vitx.training.record.console import keep_log
from vitx.training.record.log import MetricsLog

SECRET = "what a stranger's link leads to\n"


@pytest.fixture
def victim(tmp_path):
  """A file outside every workdir, which must stay as it is."""
  path = tmp_path / "victim"
  path.write_text(SECRET)
  yield path
  assert path.read_text() == SECRET and not (tmp_path / "new").exists()


@pytest.fixture
def workdir(tmp_path):
  """A workdir that is a link, made by its user."""
  (tmp_path / "disk").mkdir()
  (tmp_path / "run").symlink_to("disk")
  return tmp_path / "run"


def write_rows(workdir):
  log = MetricsLog(workdir, write=True, keep=0)
  log.append({"kind": "train", "step": 1})
  log.flush()


def write_json_files(workdir):
  for name in ("config.json", "environment.json", "phases.json", POINT, FAILED, "tracking.json"):
    write_json(workdir, name, {"a": 1})
  write_json(workdir, "config.json", {"a": 2})


def take_lock(workdir):
  with lock.hold(workdir):
    assert (workdir / lock.TRAIN).is_file()


def save(workdir):
  with CheckpointStore(workdir / "checkpoints") as store:
    store.save(1, {"a": np.zeros(3, np.float32)}, {})


def save_unevaluated(workdir):
  unevaluated.save(workdir, 1, {"a": np.zeros(3, np.float32)}, {})
  unevaluated.remove(workdir)


def write_log(workdir):
  with keep_log(workdir, write=True):
    pass


# Functions that write, and the names of files in whose place there may be a link.
REFUSED = [
  (write_rows, "metrics.jsonl"),
  (write_log, "log.txt"),
  (take_lock, "train.lock"),
  (save, "checkpoints"),
]
REPLACED = [
  *((write_json_files, name) for name in ("config.json", "environment.json", "phases.json")),
  *((write_json_files, f".{name}.partial") for name in ("config.json", POINT, FAILED)),
  *((write_json_files, name) for name in ("tracking.json", POINT, FAILED)),
  (save, "checkpoints/1.orbax-checkpoint-tmp"),
  (save, "checkpoints/deleted-7"),
  (save, "checkpoints/1"),
  (save_unevaluated, "checkpoints/unevaluated"),
]


@pytest.mark.parametrize("target", ["victim", "new", "folder"])
@pytest.mark.parametrize(
  ("write", "name"), [*REFUSED, *REPLACED], ids=lambda each: getattr(each, "__name__", each)
)
def test_nothing_is_written_through_a_link(write, name, target, workdir, victim, tmp_path):
  """The link leads to a file, to a path that does not exist, or to a folder."""
  (tmp_path / "folder").mkdir()
  (tmp_path / "folder" / "kept").write_text(SECRET)
  (workdir / name).parent.mkdir(exist_ok=True)
  (workdir / name).symlink_to(tmp_path / target)
  if (write, name) in REFUSED:
    with pytest.raises((ConfigError, CheckpointError), match=name):
      write(workdir)
  else:
    write(workdir)
    assert not (workdir / name).is_symlink()
  assert [path.name for path in (tmp_path / "folder").iterdir()] == ["kept"]
  write_json_files(workdir)
  assert read_config(workdir).a == 2


@pytest.mark.parametrize("kind", ["link", "file", "pipe", "lost"])
def test_a_checkpoint_of_a_strange_kind_ends_no_later_start(kind, workdir, tmp_path, caplog):
  save(workdir)
  place = workdir / "checkpoints" / "2"
  if kind == "link":
    shutil.copytree(workdir / "checkpoints" / "1", tmp_path / "theirs")
    place.symlink_to(tmp_path / "theirs")
  elif kind == "lost":
    place.symlink_to("nowhere")
  else:
    (os.mkfifo if kind == "pipe" else os.mknod)(place)
  with CheckpointStore(workdir / "checkpoints", read_only=True) as store:
    assert store.steps() == [1] and store.restore_latest().step == 1
  assert f"{place} is no checkpoint" in caplog.text and os.path.lexists(place)
  with CheckpointStore(workdir / "checkpoints") as store:
    assert store.restore_latest().step == 1
    store.save(2, {"a": np.ones(3, np.float32)}, {})
  with CheckpointStore(workdir / "checkpoints") as store:
    assert store.steps() == [1, 2]
  assert kind != "link" or len(list((tmp_path / "theirs").iterdir())) > 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
def test_what_is_no_file_is_neither_read_nor_waited_for(make, workdir):
  for name in ("config.json", "metrics.jsonl", "log.txt"):
    make(workdir / name)
  for use in (read_config, write_rows):
    with pytest.raises(ConfigError, match="is no file"):
      use(workdir)
  if make is os.mkfifo:  # a log in a directory fails like a full disk, and ends no run
    with pytest.raises(ConfigError, match=r"log\.txt.* is no file"):
      write_log(workdir)


def test_a_link_may_be_read(workdir, tmp_path):
  """Links may be read, since the cache of a hub consists of links to its files."""
  (tmp_path / "blob").write_text('{"seed": 3}')
  (workdir / "config.json").symlink_to(tmp_path / "blob")
  assert read_config(workdir).seed == 3


def test_a_partial_file_that_is_another_name_of_a_file_is_not_emptied(workdir, victim):
  os.link(victim, workdir / ".config.json.partial")
  write_json(workdir, "config.json", {})


def test_a_lock_file_names_no_other_file(workdir, tmp_path):
  holder = lock.Holder.here()
  (workdir / "train.lock.x").mkdir()
  for change in ({"token": "x/../../../new"}, {"pid": "1"}, {"host": ["a"]}):
    told = {**holder.__dict__, "pid": 1, "began": "1", **change}
    (workdir / "train.lock").write_text(json.dumps(told))
    os.utime(workdir / "train.lock", (0, 0))
    take_lock(workdir)
  assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("names", [["../theirs"], ["/etc"], ["a/b"], [""], [3], "ab", {"a": 1}])
def test_phases_lie_in_their_workdir(names, workdir):
  write_json(workdir, "phases.json", {"phases": names})
  with pytest.raises(ConfigError, match=r"phases\.json is damaged"):
    find_run(workdir)


def test_a_phase_or_a_point_that_is_a_link_is_refused(workdir, tmp_path):
  (tmp_path / "folder").mkdir()
  for name in ("phase1", "softmax_seed-0"):
    (workdir / name).symlink_to(tmp_path / "folder")
  config = runs.tiny("phases.phase1={'seed': 1}", "data.memory=never")
  with pytest.raises(ConfigError, match=r"phase1' is a link"):
    phases.train(config, workdir)
  with pytest.raises(ConfigError, match=r"softmax_seed-0' is a link"):
    _claim(None, str(workdir / "softmax_seed-0"), None)
  assert not list((tmp_path / "folder").iterdir())


def test_a_run_goes_on_beside_links(run_copy, victim, capsys, monkeypatch):
  monkeypatch.setattr(logging, "_warn_preinit_stderr", True)  # as in a process of its own
  for name in (".config.json.partial", ".environment.json.partial"):
    (run_copy / name).symlink_to(victim)
  (run_copy / "checkpoints" / "900").symlink_to(run_copy / "checkpoints" / "40")
  arguments = ["train", "--config", f"digits:{runs.TINY}", "--workdir", str(run_copy)]
  assert main(arguments) == 0
  printed = capsys.readouterr().err
  assert "checkpoints/900 is no checkpoint but a link" in printed and "flag" not in printed


OUTPUTS = {
  "predictions": ["evaluate", "--limit", "1", "--predictions", "run/PLACE"],
  "json": ["evaluate", "--limit", "1", "--json", "run/PLACE"],
  "csv": ["predict", "x.png", "--csv", "run/PLACE"],
  "figure": ["visualize", "attention", "--out", "run/PLACE"],
  "below": ["visualize", "attention", "--out", "run/PLACE/figures"],
  "weights": ["convert", "run", "--out", "run/PLACE/x.safetensors"],
  "deep": ["predict", "x.png", "--csv", "run/PLACE/p.csv"],
  "page": ["evaluate", "--limit", "1", "--report", "run/PLACE"],
  "picture": ["visualize", "posemb", "--out", "run/PLACE"],
}


@pytest.mark.parametrize("command", OUTPUTS)
def test_nothing_is_put_out_through_a_link_in_a_workdir(
  command, finished_run, victim, tmp_path, monkeypatch, capsys
):
  """A link inside a workdir is refused, though the user has named it as the output.

  A workdir that is a link, and a link outside of workdirs, are followed.
  """
  monkeypatch.chdir(tmp_path)
  shutil.copytree(finished_run[0], "disk")
  (tmp_path / "run").symlink_to("disk")
  link = {"deep": "theirs/p.csv", "page": "theirs/index.html", "picture": "theirs/posemb_disk.png"}
  link = tmp_path / "run" / link.get(command, "theirs")
  link.parent.mkdir(exist_ok=True)
  link.symlink_to("../victim" if link.name == "theirs" else "../../victim")
  words = OUTPUTS[command] + ["--workdir", "run"] * (command != "weights")
  assert main([word.replace("PLACE", "theirs") for word in words]) == 1
  where = rf"run/{link.relative_to(tmp_path / 'run')}' is a link to '.*/victim'"
  assert re.search(where, capsys.readouterr().err)
  if command == "predictions":
    (tmp_path / "mine.csv").symlink_to(tmp_path / "other.csv")
    assert main([word.replace("run/PLACE", "mine.csv") for word in words]) == 0
    assert main([word.replace("PLACE", "p.csv") for word in words]) == 0
    assert (tmp_path / "other.csv").read_text() == (tmp_path / "disk" / "p.csv").read_text()


def test_nothing_is_put_out_through_a_link_in_a_repository(workdir, victim):
  (workdir / "vitx.json").write_text("{}")
  (workdir / "p.csv").symlink_to(victim)
  with pytest.raises(ConfigError, match=r"p\.csv' is a link"):
    outputs.check_file(workdir / "p.csv", "csv")


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "wandb"])
def test_a_link_is_told_before_anything_is_compiled(name, run_copy, victim):
  if (run_copy / name).exists():
    (run_copy / name).rename(run_copy.parent / "moved")
  (run_copy / name).symlink_to(run_copy.parent / "moved")
  before = runs.snapshot(run_copy)
  with pytest.raises(ConfigError, match=rf"{name}' is a link to"):
    phases.train(runs.tiny(), run_copy)
  assert runs.snapshot(run_copy) == before


def test_a_json_file_has_no_number_that_json_lacks(tmp_path):
  outputs.write_json(tmp_path / "a.json", {"nll": [math.nan, math.inf, 0.5]})
  assert (tmp_path / "a.json").read_text() == json.dumps(
    {"nll": [None, None, 0.5]}, indent=2
  ) + "\n"
