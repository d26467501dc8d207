"""Missing and damaged workdirs are refused by path, before anything is compiled."""

import functools
import json
import shutil
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from tests import runs
from tests.cli.refusal import elsewhere, refuse
from vitx.checkpoints.workdir import to_plain
from vitx.training import experiment, loop

__all__ = ["elsewhere"]

TRAIN = ["train", "--config", "configs/digits.py:" + runs.TINY]
READERS = {
  "evaluate": ["evaluate"],
  "predict": ["predict", "x.png"],
  "export": ["export", "--out", "program"],
  "visualize": ["visualize", "attention_past", "--out", "out"],
  "sample": ["sample"],
  "compress": ["compress", "x.png"],
}

# The name of a workdir, and the texts that the message of a training must contain.
PLACES = [
  ("", "workdir='' is empty; name a directory"),
  (" ", "workdir=' ' is empty"),
  ("s3://bucket/x", "workdir='s3://bucket/x' cannot be reached (Install s3fs"),
  ("zz://bucket/x", "workdir='zz://bucket/x' cannot be reached"),
  ("/dev/null", "workdir='/dev/null' cannot be written", "Name a directory that you may write"),
  ("/proc/x", "workdir='/proc/x' cannot be written"),
  ("/proc/self/environ/x", "cannot be written"),
]


@pytest.mark.parametrize("case", PLACES, ids=lambda case: case[0])
def test_no_place_to_train_in(case, elsewhere, capsys):
  place, *parts = case
  refuse(capsys, elsewhere, [*TRAIN, "--workdir", place], *parts)


@pytest.mark.parametrize("place", ["", "nowhere", "s3://bucket/x", "/dev/null", "file.txt"])
@pytest.mark.parametrize("command", READERS)
def test_no_workdir_to_read(command, place, elsewhere, capsys):
  (elsewhere / "file.txt").write_text("text")
  refuse(capsys, elsewhere, [*READERS[command], "--workdir", place], f"workdir={place!r}")


def test_a_store_without_its_extra(elsewhere, capsys, monkeypatch):
  def exists(path):  # as if the package, which may be installed, were absent
    if str(path).startswith("gs://"):
      raise ImportError("Please install gcsfs to access Google Storage")
    return Path(path).exists()

  monkeypatch.setattr("etils.epath.gpath.PosixGPath.exists", exists)
  for command in (TRAIN, ["evaluate"]):
    arguments = [*command, "--workdir", "gs://bucket/x"]
    refuse(capsys, elsewhere, arguments, "workdir='gs://bucket/x' needs the extra \"gcs\"")


def cut(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def fill(content):
  return lambda path: path.write_bytes(content)


DAMAGES = {
  "cut": cut,
  "none": lambda path: path.unlink(),
  "empty": fill(b""),
  "{}": fill(b"{}"),
  "[]": fill(b"[]"),
  "binary": fill(b"\xff\xfe\x00"),
}


@functools.cache
def make_experiment(config, **more):
  return experiment.make_experiment(ConfigDict(json.loads(config)), **more)


@pytest.fixture(autouse=True)
def trace_once(monkeypatch):
  """Traces the step of the run once, and not for each fault of its workdir."""
  monkeypatch.setattr(
    loop,
    "make_experiment",
    lambda config, **more: make_experiment(json.dumps(to_plain(config), sort_keys=True), **more),
  )


@pytest.mark.parametrize(
  ("command", "damage"),
  [
    *((command, damage) for command in ("train", "evaluate") for damage in DAMAGES),
    # These commands load the workdir as the evaluation does.
    *(("predict", "cut"), ("predict", "none"), ("export", "cut"), ("export", "none")),
  ],
)
@pytest.mark.parametrize("name", ["config.json", "environment.json"])
def test_a_damaged_file_is_named_by_its_path(command, damage, name, run_copy, capsys):
  DAMAGES[damage](run_copy / name)
  arguments = TRAIN if command == "train" else READERS[command]
  refuse(capsys, run_copy, [*arguments, "--workdir", str(run_copy)], name, str(run_copy))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_damaged_phases_are_named_by_their_path(content, run_copy, capsys):
  (run_copy / "phases.json").write_text(content)
  refuse(
    capsys, run_copy, ["evaluate", "--workdir", str(run_copy)], f"{run_copy}/phases.json is damaged"
  )


def test_lost_metrics_are_told(run_copy, capsys):
  path = run_copy / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  for content, part in ((b"\xff\xfe\n", "is damaged"), (lines[0].encode(), "has 1 rows")):
    path.write_bytes(content)
    arguments = [*TRAIN, "--workdir", str(run_copy)]
    refuse(capsys, run_copy / "metrics.jsonl", arguments, str(path), part)


def test_data_that_changed_are_told_before_anything_is_written(run_copy, capsys):
  path = run_copy / "environment.json"
  told = json.loads(path.read_text())
  told["data"]["fingerprint"] = "0" * 32
  path.write_text(json.dumps(told))
  part = "data.source='digits' has changed since this run began: fingerprint 000"
  refuse(capsys, run_copy, [*TRAIN, "--workdir", str(run_copy)], part)


@pytest.mark.parametrize("command", ["train", "evaluate", "predict", "export"])
def test_checkpoints_that_are_all_damaged(command, run_copy, capsys):
  for step in (run_copy / "checkpoints").iterdir():
    for path in step.rglob("*"):
      if path.is_file():
        path.write_bytes(b"")
  arguments = TRAIN if command == "train" else READERS[command]
  place = run_copy / "checkpoints"
  refuse(capsys, place, [*arguments, "--workdir", str(run_copy)], str(place), "corrupt")


@pytest.mark.parametrize(
  ("arguments", "part"),
  [
    (["--checkpoint", "7"], "checkpoint='7' does not exist in workdir='"),
    (["--checkpoint", "bst"], "choose best, latest or one of the steps"),
    (["--checkpoint", "-1"], "checkpoint='-1' does not exist"),
    (["--weights", "emma"], "weights='emma' is unknown. Did you mean 'ema'?"),
    (["--split", "tset"], "split='tset' is unknown. Did you mean 'test'?"),
    (["--source", "digit"], "Did you mean 'digits'?"),
    (["--source", "folder:nowhere"], "nowhere is not a directory"),
    (["--batch_size", "0"], "batch_size=0 is out of range"),
    (["--task", "lable=1"], "lable"),
    (["--task", "label_smoothing=3"], "label_smoothing=3"),
    (["--limit", "0"], "limit"),
    (["--limit", "many"], "argument --limit: invalid"),
    (["--task", "x"], "must have the form field=value"),
  ],
)
def test_what_cannot_be_evaluated(arguments, part, finished_run, elsewhere, capsys):
  workdir = str(finished_run[0])
  refuse(capsys, elsewhere, ["evaluate", "--workdir", workdir, *arguments], part)


@pytest.mark.parametrize(
  "case",
  [
    (["nowhere.png"], "image 'nowhere.png' cannot be read"),
    (["folder"], "folder 'folder' has no file to predict; put .bmp, .gif,"),
    (["notes"], "folder 'notes' has no file to predict"),
    (["text.png", "--csv", ""], "csv='' is a folder; name a file"),
    (["text.png"], "text.png cannot be read as an image (its format is none of BMP, GIF,"),
    (["text.png", "more.png"], "2 examples cannot be read:\n  text.png", "more.png"),
    (["x.npz"], "x.npz"),
    (["text.png", "--top_k", "0"], "top_k=0 is out of range; it must be an integer in [1, 10]"),
    (["text.png", "--checkpoint", "3"], "checkpoint='3' does not exist"),
  ],
)
def test_what_cannot_be_predicted(case, finished_run, elsewhere, capsys):
  arguments, *parts = case
  for name in ("folder", "notes"):
    (elsewhere / name).mkdir()
  for name in ("text.png", "more.png", "x.npz", "notes/notes.txt"):
    (elsewhere / name).write_text("text")
  workdir = str(finished_run[0])
  refuse(capsys, elsewhere, ["predict", *arguments, "--workdir", workdir], *parts)


@pytest.mark.parametrize(
  ("arguments", "part"),
  [
    (["--checkpoint", "3"], "checkpoint='3' does not exist in workdir='"),
    (["--out", "there"], "out='there': there exists already; name another"),
    (["--out", "described"], "described.json exists already"),
    (["--platforms", "gpu"], "platforms='gpu' must be some of cpu, cuda, tpu, each once"),
    (["--platforms", "cpu,rocm"], "platforms='cpu,rocm' must be some of"),
    (["--platforms", "cpu,cpu"], "platforms='cpu,cpu' must be some of"),
    (["--platforms", ""], "platforms='' must be some of"),
    (["--batch", "0"], "argument --batch: '0' must be a positive integer, or the word symbolic"),
    (["--batch", "all"], "argument --batch: 'all' must be a positive integer"),
    (["--batch", "9999999"], "batch=9999999 is out of range"),
    (["--implementation", "auto"], "implementation='auto' is unknown"),
    (["--implementation", "kernelized"], "give its size, such as batch=8, or use"),
  ],
)
def test_what_cannot_be_exported(arguments, part, finished_run, elsewhere, capsys):
  for name in ("there", "described.json"):
    (elsewhere / name).write_text("text")
  workdir = str(finished_run[0])
  words = ["export", "--workdir", workdir, "--out", "program", *arguments]
  refuse(capsys, elsewhere, words, part)


@pytest.mark.parametrize(
  ("override", "part"),
  [
    ("model.width=32", "model.width: 16 in the workdir, 32 now"),
    ("seed=7", "seed: 0 in the workdir, 7 now"),
    ("duration=80 steps", "duration: '40 steps' in the workdir, '80 steps' now"),
  ],
)
def test_another_config_than_the_runs(override, part, run_copy, capsys):
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  refuse(capsys, run_copy, ["train", "--config", config, "--workdir", str(run_copy)], part)


def test_a_run_without_checkpoints(run_copy, capsys):
  shutil.rmtree(run_copy / "checkpoints")
  for command in ("evaluate", "predict"):
    arguments = [*READERS[command], "--workdir", str(run_copy)]
    refuse(capsys, run_copy, arguments, f"workdir='{run_copy}' has no checkpoint yet")
  config = "configs/digits.py:" + runs.replace(runs.TINY, f"init_from={run_copy}")
  arguments = ["train", "--config", config, "--workdir", str(run_copy.parent / "new")]
  refuse(capsys, run_copy.parent, arguments, f"init_from='{run_copy}' has no checkpoint yet")


def test_a_run_of_another_width_begins_no_run(run_copy, capsys):
  """The shapes follow from the other run's config, so nothing is compiled before the error."""
  config = "configs/digits.py:" + runs.replace(runs.TINY, f"init_from={run_copy},model.width=32")
  arguments = ["train", "--config", config, "--workdir", str(run_copy.parent / "new")]
  part = f"init_from='{run_copy}' does not fit this network: the source has 16 channels, the config"
  refuse(capsys, run_copy.parent, arguments, part)


@pytest.mark.parametrize(
  ("change", "part"),
  [
    ({"model": 3}, "model=3 must be a group of fields"),
    ({"task": None}, "task=None must be a group of fields"),
    ({"data": []}, "data=() must be a group of fields"),
    ({"model": {"name": "vitt"}}, "lacks the field 'num_classes'"),
    ({"model": {"name": "vitt", "num_classes": 10}}, "model.name='vitt' is unknown"),
    *(({name: "gone"}, f"lacks the field {name!r}") for name in ("evaluation", "augment", "task")),
    ({"batch_size": "gone"}, "lacks the field 'batch_size'"),
    ({"data_seed": "gone"}, "lacks the field 'data_seed'"),
    ({"batch_size": "many"}, "config.json is damaged (batch_size is no integer)"),
    ({"evaluation": {"weights": 3}}, "config.json is damaged (evaluation.weights is no list)"),
    ({"data": {"mean": 3, "std": [1], "channels": 1, "image_size": 8}}, "does not fit"),
  ],
)
def test_an_edited_config(change, part, run_copy, capsys):
  path = run_copy / "config.json"
  stored = json.loads(path.read_text())
  path.write_text(json.dumps({k: v for k, v in (stored | change).items() if v != "gone"}))
  refuse(capsys, run_copy, ["evaluate", "--workdir", str(run_copy)], part)


@pytest.mark.parametrize(
  ("field", "value"), [("decode_size", []), ("decode_size", -1), ("mean", [[]])]
)
def test_a_value_that_fails_where_it_is_used(field, value, run_copy, capsys):
  path = run_copy / "config.json"
  stored = json.loads(path.read_text())
  stored["data"][field] = value
  path.write_text(json.dumps(stored))
  refuse(capsys, run_copy, ["evaluate", "--workdir", str(run_copy)], "config.json of workdir=")


# Records that are JSON with wrong contents.
RECORDS = [
  ("phases.json", {"phases": "ab"}, "phases is no list"),
  ("phases.json", {"phases": [1]}, "an entry of phases is no text"),
  ("phases.json", {"phase": []}, "it lacks phases"),
  ("environment.json", {"data": {"fingerprint": 3}}, "data.fingerprint is no text"),
  (
    "environment.json",
    {"data": {"fingerprint": "", "class_names": "abc"}},
    "class_names is no list",
  ),
  ("environment.json", {"data": []}, "data is no object"),
  ("environment.json", {"command": 5}, "command is no list"),
]


@pytest.mark.parametrize("command", ["evaluate", "predict", "train"])
@pytest.mark.parametrize(("name", "content", "part"), RECORDS)
def test_a_record_that_holds_something_else(command, name, content, part, run_copy, capsys):
  if (command, name) == ("train", "phases.json"):
    pytest.skip("a run without phases reads none")
  (run_copy / name).write_text(json.dumps(content))
  arguments = TRAIN if command == "train" else READERS[command]
  damaged = f"{run_copy}/{name} is damaged ("
  refuse(capsys, run_copy, [*arguments, "--workdir", str(run_copy)], damaged, part, "Restore it")


def test_records_so_deep_that_nobody_wrote_them(run_copy, capsys):
  (run_copy / "phases.json").write_text("[" * 100_000)
  arguments = ["evaluate", "--workdir", str(run_copy)]
  refuse(capsys, run_copy, arguments, f"{run_copy}/phases.json is damaged")


ROWS = [
  '{"kind": "train"',
  "[]",
  "{}",
  '{"kind": 3, "step": 1}',
  '{"kind": "train", "step": "x"}',
  "",
]


@pytest.mark.parametrize(
  ("command", "content"), [("train", ROWS[0]), *(("curves", content) for content in ROWS)]
)
def test_a_damaged_middle_row_of_the_metrics(command, content, run_copy, capsys):
  path = run_copy / "metrics.jsonl"
  lines = path.read_text().splitlines()
  lines[2] = content
  path.write_text("\n".join(lines) + "\n")
  given = {"train": TRAIN, "curves": ["visualize", "curves", "--out", str(run_copy / "out")]}[
    command
  ]
  before = {name: (run_copy / name).read_bytes() for name in ("metrics.jsonl", "config.json")}
  kept = run_copy / "checkpoints"  # a resumed training writes other files
  refuse(
    capsys, kept, [*given, "--workdir", str(run_copy)], f"line 3 of {path} is damaged", "Restore it"
  )
  assert before == {name: (run_copy / name).read_bytes() for name in before}


def test_a_row_that_lacks_its_figure(run_copy, capsys):
  path = run_copy / "metrics.jsonl"
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  for row in rows:
    row.pop("top1" if row["kind"] == "validation" else "", None)
  path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  arguments = ["visualize", "curves", "--out", str(run_copy / "out"), "--workdir", str(run_copy)]
  refuse(capsys, run_copy, arguments, str(run_copy), "kind 'validation' at step 10 lacks top1")
