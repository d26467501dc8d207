"""Sweeps: their points, how processes share them, and the results that they write."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from sklearn import metrics

import vitx
from tests import runs
from tests.cli.sweeps import TINY, points
from tests.training.test_loop import same
from vitx.analysis.comparison import Method, Outcome
from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.cli import sweep
from vitx.cli.live import Live
from vitx.cli.main import main
from vitx.config import registry
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.data import sources
from vitx.inference.folds import pool_folds
from vitx.runtime.curves import find_runs, read_curves
from vitx.runtime.signals import StopRequest
from vitx.sweeps import points as listing
from vitx.sweeps import results as writing
from vitx.sweeps import sweep as trained
from vitx.sweeps.sweep import State, train_points
from vitx.training import phases
from vitx.training.failures import NonFiniteError
from vitx.training.loop import Result

pytestmark = pytest.mark.usefixtures("shared_programs")

MINE = "tests.attention.third_party:CosineAttention"


class Silent:
  """A display of a sweep that shows nothing and records the state of each point."""

  def __init__(self):
    self.states = []

  def training(self, point):
    return open(os.devnull)

  def update(self, point, state):
    self.states.append((point.name, state))


@pytest.mark.slow
def test_a_method_that_cannot_train_is_named_first(tmp_path, quick):
  wrong = points(
    "model.num_heads=[3]", config=f"digits.py:{TINY.replace('model.num_heads=2,', '')}"
  )
  with pytest.raises(ConfigError, match="num_heads-3: "):
    writing.measure_methods(wrong, {}, str(tmp_path))
  assert not quick and not list(tmp_path.iterdir())


def test_data_must_not_change_after_a_point(tmp_path, quick):
  """A finished point is not trained again, so its figure would be one of other examples."""
  (point,) = points("row=[softmax]", seeds=1)
  assert train_points([point], tmp_path, Silent())
  writing.measure_methods([point], {}, str(tmp_path))
  path = tmp_path / point.name / "environment.json"
  path.write_text(path.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
  with pytest.raises(ConfigError, match=r"data\.source='digits' has changed since .*_seed-0"):
    writing.measure_methods([point], {}, str(tmp_path))


def test_the_order_of_classes_must_not_change_after_a_fold(tmp_path, quick):
  """The folds of equal files depend on it."""
  listed = points("data.fold=[0]", seeds=1, config=f"digits.py:{TINY},data.folds=3")
  assert train_points(listed, tmp_path, Silent())
  path = tmp_path / listed[0].name / "environment.json"
  record = json.loads(path.read_text())
  record["data"]["class_names"].reverse()
  path.write_text(json.dumps(record))
  with pytest.raises(ConfigError, match="has changed since"):
    writing.measure_methods(listed, {}, str(tmp_path))


def test_a_missing_extra_is_named_before_the_training(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
  with pytest.raises(MissingExtraError, match=r"\[plot\]"):
    sweep.compare([], {}, str(tmp_path), out=str(tmp_path), name=None, plot=True)


def test_each_point_is_trained_once_and_skipped_afterwards(tmp_path, quick):
  planned, show = points(), Silent()
  assert train_points(planned, tmp_path, show)
  names = ["softmax_seed-0", "fnet_seed-0", "softmax_seed-1", "fnet_seed-1"]
  assert quick == names
  assert show.states == [(name, State.DONE) for name in names]
  assert train_points(planned, tmp_path, show) and quick == names
  assert train_points(points(seeds=3), tmp_path, show)  # more seeds of these methods
  assert quick == [*names, "softmax_seed-2", "fnet_seed-2"]
  assert not list(tmp_path.rglob("*.lock"))


def test_points_of_one_call_share_an_opened_data_set(tmp_path, monkeypatch):
  planned, opened, opening = points("row=[softmax]"), [], sources.open_dataset
  monkeypatch.setattr(sources, "open_dataset", lambda data: opened.append(data) or opening(data))

  def train(config, workdir):
    sources.open_source(config.data, config.seed)
    return Result(str(workdir), 1, True)

  monkeypatch.setattr(phases, "train", train)
  assert train_points(planned, tmp_path, Silent()) and len(opened) == 1
  assert train_points(planned, tmp_path, Silent()) and len(opened) == 2


def test_points_that_another_process_trains_are_left_to_it(tmp_path, quick, monkeypatch):
  planned, show = points(seeds=1), Silent()
  busy = tmp_path / planned[0].name
  busy.mkdir()
  other = lock.Lock(busy, lock.POINT)
  other.acquire()

  def finish_elsewhere(_):
    assert quick == ["fnet_seed-0"]
    wd.write_json(busy, wd.POINT, {"config": wd.to_plain(planned[0].config)})
    phases.train(planned[0].config, busy)
    quick.pop()
    other.release()

  monkeypatch.setattr(time, "sleep", finish_elsewhere)
  assert train_points(planned, tmp_path, show)
  assert quick == ["fnet_seed-0"]
  assert (
    show.states
    == [
      *((planned[0].name, State.BUSY), (planned[1].name, State.DONE)),
      *((planned[0].name, State.BUSY), (planned[0].name, State.DONE)),
    ][: len(show.states)]
  )


def test_a_point_waits_for_a_training_by_hand(tmp_path, quick, monkeypatch):
  (point,) = points("row=[softmax]", seeds=1)

  def refuse(*_, **__):
    raise lock.WorkdirInUseError("in use")

  monkeypatch.setattr(phases, "train", refuse)
  assert trained._train_point(point, tmp_path, Silent()) == (State.BUSY, True)


def test_a_loss_that_is_not_finite_is_a_result(tmp_path, quick, monkeypatch):
  planned, train = points(seeds=1), phases.train

  def diverge(config, workdir, **more):
    if config.model.token_mixer.name == "softmax":
      raise NonFiniteError("loss is nan at step 3")
    return train(config, workdir, **more)

  monkeypatch.setattr(phases, "train", diverge)
  assert train_points(planned, tmp_path, Silent())
  outcomes = [trained.read_outcome(point, tmp_path) for point in planned]
  assert [outcome.problem for outcome in outcomes] == ["loss is nan at step 3", ""]
  monkeypatch.setattr(phases, "train", None)  # neither point is trained again
  assert train_points(planned, tmp_path, Silent())


def test_a_stop_ends_the_sweep(tmp_path, quick, monkeypatch):
  monkeypatch.setattr(phases, "train", lambda _, workdir, **__: Result(workdir, 3, False))
  show = Silent()
  assert not train_points(points(), tmp_path, show)
  assert show.states == [("softmax_seed-0", State.STOPPED)]
  monkeypatch.setattr(writing, "measure_methods", lambda *_: ([], ("top1", "max")))
  assert sweep.compare(points(), {}, str(tmp_path), out="x", name=None, plot=False) == 75


def test_a_signal_at_the_end_of_a_point_stops_the_sweep(tmp_path, quick, monkeypatch):
  train = phases.train

  def signaled(config, workdir, **more):
    with StopRequest() as request:
      request._handle(signal.SIGTERM, None)  # after the run has last looked for a signal
    return train(config, workdir, **more)

  monkeypatch.setattr(phases, "train", signaled)
  assert not train_points(points(seeds=1), tmp_path, Silent())
  assert quick == ["softmax_seed-0"]
  assert train_points(points(seeds=1), tmp_path, Silent())  # True, since all points are done
  assert quick == ["softmax_seed-0", "fnet_seed-0"]


def test_a_run_of_phases_has_no_early_end(tmp_path, quick):
  stopped = points(
    "learning_rate=[1e-3]", 1, "sparsifiner_small.py:digits_keep_0.5,stop_after=4 steps"
  )
  with pytest.raises(ConfigError, match=r"stop_after would end a run of phases in its first phase"):
    train_points(stopped, tmp_path, Silent())
  assert not list(tmp_path.iterdir())


def test_a_workdir_of_another_sweep_or_of_no_sweep_is_refused(tmp_path, quick):
  assert train_points(points(seeds=1), tmp_path, Silent())
  other = points(seeds=1, config=f"digits.py:{runs.replace(TINY, 'batch_size=16')}")
  with pytest.raises(ConfigError, match=r"batch_size: 32 in the workdir, 16 now"):
    train_points(other, tmp_path, Silent())
  (tmp_path / "softmax_seed-0" / wd.POINT).unlink()
  with pytest.raises(ConfigError, match="is a run of its own, not a point"):
    train_points(points(seeds=1), tmp_path, Silent())


def test_without_a_terminal_a_sweep_prints_one_line_for_a_point(tmp_path, quick, capsys):
  trained_points = points(seeds=1)
  live, train = Live(trained_points, tmp_path, "top1"), phases.train
  try:
    phases.train = lambda *a, **k: (print("step 1"), train(*a, **k))[1]
    assert train_points(trained_points, tmp_path, live)
  finally:
    phases.train = train
  assert capsys.readouterr().out.splitlines() == [
    *("[0/2] training softmax_seed-0 ...", "[1/2] softmax_seed-0: test top-1 % 50.00"),
    *("[1/2] training fnet_seed-0 ...", "[2/2] fnet_seed-0: test top-1 % 60.00"),
  ]
  table = live.table().splitlines()
  assert table[1].split() == ["softmax", "1/1", "50.00"] and table[-1] == "2 of 2 points"


def test_a_terminal_shows_the_table_over_itself(tmp_path, quick):
  planned = points(seeds=1)
  live = Live(planned, tmp_path, "top1")
  written = []

  class Terminal:
    isatty, flush = staticmethod(lambda: True), staticmethod(lambda: None)
    write = staticmethod(written.append)

  live._terminal = Terminal
  assert train_points(planned, tmp_path, live)
  tables = [text for text in written if "points" in text]
  assert not tables[0].startswith("\033[4A") and tables[1].startswith("\033[4A\r\033[J")
  assert "softmax   1/1" in tables[-1]


@pytest.mark.slow
def test_a_sweep_writes_its_results(tmp_path, quick, capsys):
  command = ["sweep", f"--config=digits.py:{TINY}", "--over=row=[softmax,fnet]", "--seeds=2"]
  command += [f"--workdir={tmp_path / 'mixers'}", f"--out={tmp_path / 'out'}"]
  assert main(command) == 0
  assert {path.name for path in (tmp_path / "out").iterdir()} == {"mixers", "README.md"}
  folder = tmp_path / "out" / "mixers"
  assert {path.name for path in folder.iterdir()} == {"runs.csv", "table.md", "curves.png"}
  text = (folder / "table.md").read_text()
  assert "| fnet | 2 | 60.50 ± 0.71 | 60.50 ± 0.71 | +10.00 |  | 1 |" in text
  assert "- hours of training: 0.04 in all; softmax 0.02, fnet 0.02" in text
  assert "- hardware: 1 x cpu; 2 cores of p" in text and "fingerprint a7f58ee3" in text
  assert "4 of 4 points" in capsys.readouterr().out
  index = (tmp_path / "out" / "README.md").read_text()
  assert "| [mixers](mixers/table.md) | test top-1 %: softmax 50.50 ± 0.71, fnet 60.50" in index
  before = runs.contents(tmp_path / "out")
  assert main(command) == 0 and len(quick) == 4  # nothing to train, the same results
  assert runs.contents(tmp_path / "out") == before


def test_a_finished_sweep_is_shown_again_without_its_configs(tmp_path, quick, monkeypatch, capsys):
  method = Method("fnet", 8, 1, 1)
  monkeypatch.setattr(writing, "measure_methods", lambda *_: ([method], ("top1", "max")))
  command = ["sweep", f"--config=digits.py:{TINY}", "--over=row=[fnet]", "--seeds=3", "--no-plot"]
  command += [f"--workdir={tmp_path / 'a'}", f"--out={tmp_path / 'out'}"]
  assert main(command) == 0
  shown, loaded = capsys.readouterr().out, []
  load = listing.load_config
  monkeypatch.setattr(listing, "load_config", lambda text: loaded.append(text) or load(text))
  monkeypatch.setattr(sweep, "compare", None)
  assert main(command) == 0
  assert shown.endswith(capsys.readouterr().out) and "3 of 3 points" in shown
  assert [text.rpartition(",")[2] for text in loaded] == ["seed=0"]


def test_the_index_replaces_no_page_of_another_author(tmp_path):
  """An index lists what its folder has; a folder without a table is listed by its columns."""
  (tmp_path / "a" / "b|c").mkdir(parents=True)
  (tmp_path / "a" / "b|c" / "runs.csv").write_text("row,seconds\nx,1\ny,2\n")
  assert writing.write_index(tmp_path) == [tmp_path / "README.md"]
  line = "| [a/b\\|c](a/b%7Cc/runs.csv) | columns row, seconds | 2 |  |  |  |"
  assert (tmp_path / "README.md").read_text() == f"{writing.INDEX_HEAD}{line}\n"
  (tmp_path / "README.md").write_text("# My project")
  assert writing.write_index(tmp_path) == []
  assert (tmp_path / "README.md").read_text() == "# My project"


@pytest.mark.slow  # trains two networks
@pytest.mark.usefixtures("uncleared")
def test_a_sweep_over_folds_predicts_every_example(tmp_path, capsys):
  config = f"digits.py:softmax,{TINY},data.folds=2,token_mixer={MINE}"
  command = ["sweep", f"--config={config}", "--over=data.fold=[0,1]", "--no-plot"]
  command += [f"--workdir={tmp_path / 'folds'}", f"--out={tmp_path / 'out'}"]
  assert main(command) == 0
  runs_of = [tmp_path / "folds" / f"softmax_fold-{fold}_seed-0" for fold in range(2)]
  rows = []
  for workdir in runs_of:
    vitx.evaluate(workdir, predictions=tmp_path / "p.csv", trust_code=True)
    with open(tmp_path / "p.csv", newline="") as file:
      rows += list(csv.DictReader(file))
  assert len({row["name"] for row in rows}) == len(rows) == 1438  # the digits' train
  labels, guess = ([row[name] for row in rows] for name in ("label", "prediction"))
  text = (tmp_path / "out" / "folds" / "table.md").read_text()
  line = next(line for line in text.split("## Out of fold")[1].splitlines() if "softmax" in line)
  assert "| 1,438 |" in line and f"{metrics.accuracy_score(labels, guess):.2%} (" in line
  assert f"{metrics.f1_score(labels, guess, average='macro'):.2%} (" in line
  assert "Out of fold" in capsys.readouterr().out


def test_a_sweep_reads_the_code_that_its_command_names(tmp_path, quick):
  (point,) = points(f"token_mixer=[{MINE}]", seeds=1)
  assert train_points([point], tmp_path, Silent())
  with registry.trusting(None):
    with pytest.raises(ConfigError, match="trust_code"):
      read_curves([str(tmp_path / point.name)])
    writing.measure_methods([point], {}, str(tmp_path))
    assert read_curves([str(tmp_path / point.name)])[1] == "top1"


def test_a_sweep_without_all_folds_pools_none():
  config = SimpleNamespace(data=SimpleNamespace(folds=3))
  folds = [SimpleNamespace(name="", method="a", seed=0, fold=f, config=config) for f in range(2)]
  outcomes = [Outcome("a", 0, fold=f) for f in range(2)]
  assert pool_folds(writing.group_folds(folds, outcomes, "x")) == []
  assert pool_folds(writing.group_folds(points(), [Outcome("a", 0)] * 4, "x")) == []


def test_only_rows_have_published_figures(quick, monkeypatch):
  seen = {}
  monkeypatch.setattr(sweep, "compare", lambda p, published, *_, **__: seen.update(published) or 0)
  output = dict(out="o", name=None, plot=False, parallel=1, launch=None, slurm="", search=None)
  sweep.run("cifar10.py", "row=[resnet20,cct_2_3x2]", 1, workdir="w", **output)
  assert seen["resnet20"]["top1"] == 91.25
  seen.clear()
  sweep.run("cifar10.py", "row=[resnet20],batch_size=[8]", 1, workdir="w", **output)
  assert not seen  # the source has no such run


def test_curves_are_read_from_runs_and_sweeps(tmp_path, quick, capsys):
  assert train_points(points(), tmp_path / "sweep", Silent())
  alone = shutil.copytree(tmp_path / "sweep" / "fnet_seed-1", tmp_path / "vanilla_w96_d8")
  (alone / wd.POINT).unlink()
  paths = find_runs([tmp_path / "sweep", alone])
  assert [Path(run).name for run in paths[:2]] == ["fnet_seed-0", "fnet_seed-1"] and len(paths) == 5
  (tmp_path / "sweep" / "claimed").mkdir()
  wd.write_json(tmp_path / "sweep" / "claimed", wd.POINT, {"config": {}})  # it has not begun
  assert find_runs([tmp_path / "sweep", alone]) == paths
  curves, figure = read_curves(paths)
  methods = [curve.method for curve in curves[2:]]
  assert figure == "top1" and methods == ["softmax", "softmax", "vanilla_w96_d8"]
  assert curves[0].loss == {4: 1.0} and curves[0].figure == {4: 0.6}
  assert curves[0].per_epoch == 9 / 32  # examples of an epoch by those of a batch
  with (alone / "metrics.jsonl").open("a") as file:
    file.write(json.dumps({"kind": "test", "step": 4, "alignment_errors": [0.2, 0.1]}) + "\n")
  assert [read_curves([run])[0][0].layers for run in (paths[0], alone)] == [(), [0.2, 0.1]]
  out = f"--out={tmp_path / 'pictures'}"
  assert main(["visualize", "curves", "--workdir", str(tmp_path / "sweep"), str(alone), out]) == 0
  assert (tmp_path / "pictures" / "curves_sweep.png").exists()
  source = ["--config", "simplified_cifar10"]
  assert main(["visualize", "curves", "--workdir", str(alone), out, *source]) == 0
  assert (tmp_path / "pictures" / "curves_vanilla_w96_d8.png").exists()
  assert main(["visualize", "curves", "--workdir", str(tmp_path / "sweep"), out, *source]) == 1
  assert "training top1 of fnet, softmax" in capsys.readouterr().err


def test_curves_of_equal_names_stay_apart(tmp_path, quick):
  """The runs of two sweeps are no further seeds of one method, and no run counts twice."""
  assert train_points(points("row=[fnet]"), tmp_path / "short", Silent())
  shutil.copytree(tmp_path / "short", tmp_path / "long")
  paths = find_runs([tmp_path / "short", tmp_path / "long", tmp_path / "short" / "fnet_seed-0"])
  names = ["short/fnet", "short/fnet", "long/fnet", "long/fnet"]
  assert [curve.method for curve in read_curves(paths)[0]] == names


@pytest.mark.slow  # traces two phases several times
def test_a_point_of_several_phases_is_done_after_the_last(tmp_path, monkeypatch, uncleared):
  seconds = {"a": 3.0, "b": 4.5}

  def train(config, workdir, **_):
    assert not trained.is_done(whole)
    (Path(workdir) / "checkpoints" / "4").mkdir(parents=True)
    figures = {"step": 4, "top1": 0.5, "time": {"seconds": seconds[Path(workdir).name]}}
    rows = [json.dumps({"kind": kind, **figures}) for kind in ("validation", "test")]
    (Path(workdir) / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    return Result(str(workdir), 4, True)

  monkeypatch.setattr(phases.loop, "train", train)
  over = "phases.b={'duration': '4 steps'},phases.a={'duration': '2 steps'}"
  text = runs.replace(TINY, "schedule.warmup=1 steps", "evaluation.every=2 steps")
  (point,) = points("", 1, f"digits.py:softmax,{text},{over}")
  whole = str(tmp_path / point.name)
  assert train_points([point], tmp_path, Silent()) and trained.is_done(whole)
  outcome = trained.read_outcome(point, tmp_path)
  assert (outcome.best, outcome.validation["top1"], outcome.seconds) == (4, 0.5, 7.5)
  (methods, _) = writing.measure_methods([point], {}, str(tmp_path))
  assert methods[0].steps == 6
  shutil.rmtree(f"{whole}/b")
  assert not trained.is_done(whole)


LONGER = runs.replace(
  TINY, "duration=16 steps", "checkpoint.every=4 steps", "evaluation.every=8 steps"
)


def command(workdir, out):
  words = ["sweep", f"--config=digits.py:{LONGER}", "--over=row=[fnet]", "--seeds=2"]
  return [*words, f"--workdir={workdir}", f"--out={out}", "--name=same", "--no-plot"]


def start(workdir, out, *more):
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
  words = [sys.executable, "-m", "vitx", *command(workdir, out), *more]
  return subprocess.Popen(words, cwd=runs.ROOT, env=environment, **pipes)


def wait_for(happened, process) -> None:
  """Polls until something has happened; fails if the process ends first."""
  deadline = time.monotonic() + 300
  while not happened():
    assert process.poll() is None, process.communicate()[0][-3000:]
    assert time.monotonic() < deadline, "no progress"
    time.sleep(0.01)


def results(out) -> dict:
  """Returns the files of a sweep, without the part of the table about this run of the sweep."""
  files = {path.name: path.read_bytes() for path in Path(out, "same").iterdir()}
  files["table.md"] = files["table.md"].partition(b"## Run")[0]
  return files


def make(directory):
  directory.mkdir(parents=True)
  return directory


def progress(workdir) -> int:
  """Returns the number of rows of metrics in all points."""
  return sum(len(path.read_text().splitlines()) for path in workdir.glob("*/metrics.jsonl"))


@pytest.mark.slow  # two processes, each with an import and compilations
@pytest.mark.usefixtures("uncleared")
def test_a_killed_and_shared_sweep_gives_equal_results(tmp_path, monkeypatch, capsys):
  """A process is killed in one point; then this process ends it beside one that trains another."""
  assert main(command(tmp_path / "alone", tmp_path / "out")) == 0
  workdir, others, train = tmp_path / "sweep", [], trained._train
  with lock.hold(make(workdir / "fnet_seed-1"), lock.POINT):  # so that it ends after the kill
    killed = start(workdir, tmp_path / "killed")
    wait_for(lambda: progress(workdir), killed)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL

  def train_beside_another(*arguments):
    others.append(start(workdir, tmp_path / "other"))
    wait_for(lambda: trained.is_done(str(workdir / "fnet_seed-1")), others[0])
    return train(*arguments)

  monkeypatch.setattr(trained, "_train", train_beside_another)
  capsys.readouterr()
  assert main(command(workdir, tmp_path / "own")) == 0
  outputs = [capsys.readouterr().out, *(runs.finish(other) for other in others)]
  trained_by = [re.findall(r"training (\S+) \.\.\.", output) for output in outputs]
  assert trained_by == [["fnet_seed-0"], ["fnet_seed-1"]]
  assert results(tmp_path / "own") == results(tmp_path / "other") == results(tmp_path / "out")
  assert not (tmp_path / "killed").exists()
  for path in workdir.rglob("*.lock"):  # of the process that was killed
    with lock.hold(path.parent, path.name):
      pass


@pytest.mark.slow  # three processes, each with an import and compilations
@pytest.mark.usefixtures("uncleared")
def test_parallel_processes_stop_together_and_give_the_bits_of_one(tmp_path):
  """A signal comes when one has ended a point and the other has begun; this process ends all."""
  assert main([*command(tmp_path / "alone", tmp_path / "out"), "--seeds=3"]) == 0
  workdir, names = tmp_path / "sweep", [f"fnet_seed-{seed}" for seed in range(3)]
  both = start(workdir, tmp_path / "own", "--seeds=3", "--parallel=2")
  begun = lambda: len([*workdir.glob(f"*/{wd.POINT}")])  # noqa: E731
  wait_for(lambda: begun() > 1 and any(trained.is_done(str(workdir / x)) for x in names), both)
  both.send_signal(signal.SIGTERM)
  assert "2 processes train" in runs.finish(both, 75)
  assert main([*command(workdir, tmp_path / "own"), "--seeds=3"]) == 0
  assert results(tmp_path / "own") == results(tmp_path / "out")
  for name in names:
    same(runs.final_state(workdir / name), runs.final_state(tmp_path / "alone" / name))
