"""Missing and damaged workdirs are refused by path, before anything is compiled."""

import json
import shutil

import pytest

from tests import runs
from tests.cli.refusal import elsewhere, refuse

__all__ = ["elsewhere"]

TRAIN = ["train", "--config", "configs/digits.py:" + runs.TINY]


def test_a_training_needs_a_place(elsewhere, capsys):
  refuse(capsys, elsewhere, [*TRAIN, "--workdir", ""], "workdir='' is empty; name a directory")
  refuse(capsys, elsewhere, [*TRAIN, "--workdir", "/proc/x"], "/proc/x")


def test_an_evaluation_needs_a_workdir(elsewhere, capsys):
  refuse(capsys, elsewhere, ["evaluate", "--workdir", "nowhere"], "nowhere/config.json is missing")


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff\xfe\x00"])
@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_damaged_file_is_named_by_its_path(content, name, run_copy, capsys):
  if content is None:
    (run_copy / name).unlink()
  else:
    (run_copy / name).write_bytes(content)
  for command in (TRAIN, ["evaluate"]):
    refuse(capsys, run_copy, [*command, "--workdir", str(run_copy)], name, str(run_copy))


def test_a_training_refuses_lost_metrics(run_copy, capsys):
  path = run_copy / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(lines[0])
  refuse(capsys, path, [*TRAIN, "--workdir", str(run_copy)], str(path), "has 1 rows")


def test_changed_data_are_noticed_before_anything_is_written(run_copy, capsys):
  path = run_copy / "environment.json"
  record = json.loads(path.read_text())
  record["data"]["fingerprint"] = "0" * 32
  path.write_text(json.dumps(record))
  part = "data.source='digits' has changed since this run began: fingerprint 000"
  refuse(capsys, run_copy, [*TRAIN, "--workdir", str(run_copy)], part)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_checkpoints_that_are_all_damaged_are_named(command, run_copy, capsys):
  place = run_copy / "checkpoints"
  for path in place.rglob("*"):
    if path.is_file():
      path.write_bytes(b"")
  arguments = TRAIN if command == "train" else [command]
  refuse(capsys, place, [*arguments, "--workdir", str(run_copy)], str(place), "corrupt")


def test_a_run_without_checkpoints_loads_nothing(run_copy, capsys):
  shutil.rmtree(run_copy / "checkpoints")
  arguments = ["evaluate", "--workdir", str(run_copy)]
  refuse(capsys, run_copy, arguments, f"workdir='{run_copy}' has no checkpoint yet")


@pytest.mark.parametrize(
  ("arguments", "part"),
  [
    ("evaluate --checkpoint 7", "checkpoint='7' is unknown"),
    ("evaluate --split tset", "split='tset' is unknown. Did you mean 'test'?"),
    ("evaluate --batch_size 0", "batch_size=0 is out of range"),
    ("evaluate --task label_smoothing=3", "label_smoothing=3"),
    ("predict nowhere.png", "image 'nowhere.png' cannot be read"),
    ("predict text.png", "text.png cannot be read as an image of the formats BMP, GIF,"),
    ("predict text.png more.png", "2 examples cannot be read:\n  text.png"),
    ("predict text.png --top_k 0", "argument --top_k: '0' is not a positive integer"),
    ("export --out text.png", "out='text.png': text.png exists already; name another"),
    ("export --out p --platforms gpu", "platforms='gpu' is unknown"),
    ("evaluate --predictions RUN/metrics.jsonl", "metrics.jsonl' belongs to the run in "),
    ("predict text.png --csv RUN/log.txt", "csv='RUN/log.txt' belongs to the run in "),
  ],
)
def test_a_wrong_argument_is_named(arguments, part, finished_run, elsewhere, capsys):
  for name in ("text.png", "more.png", "x.npz"):
    (elsewhere / name).write_text("text")
  (elsewhere / "RUN").symlink_to(finished_run[0])
  refuse(capsys, elsewhere, [*arguments.split(), "--workdir", str(finished_run[0])], part)
