"""`vitx reproduce` trains rows beside the published figures of their source."""

import csv
import re

import pytest

import vitx
from tests import runs
from tests.cli.sweeps import TINY
from vitx.cli import sweep
from vitx.cli.main import main
from vitx.sweeps.points import SEED
from vitx.tasks.settle import complete_config
from vitx.training import experiment, phases, trial
from vitx.training.trial import count_training_flops

OWN = '''
"""Two digits models beside figures that nobody printed."""

from vitx.configs.digits import get_config

ROWS = ("softmax", "fnet")
PUBLISHED = {
  "softmax": {"top1": 80.5, "parameters": 3, "train_top1": {1: 11.0, 40: 99.0}},
  "fnet": {"top1": 70},
}
'''

UNTIMED = ",".join(part for part in TINY.split(",") if not part.startswith("duration="))


def caught(monkeypatch, *arguments) -> dict:
  """Returns the duration of each row that a command would train, by the row's name.

  The dict also has the `workdir`, the `published` figures, and the `count` of runs.
  """
  call = {}

  def compare(points, published, workdir, **_):
    call.update({p.method: p.config.duration for p in points}, workdir=workdir)
    call["published"], call["count"] = published, len(points)
    return 0

  monkeypatch.setattr(sweep, "compare", compare)
  assert main(["reproduce", *arguments]) == 0
  return call


def test_reproduce_trains_rows_over_three_seeds(monkeypatch):
  call = caught(monkeypatch, "--config=cifar10.py", "--rows=vit,resnet20", "--duration=2 epochs")
  assert call["vit"] == call["resnet20"] == "2 epochs" and call["count"] == 6
  assert call["workdir"] == "runs/reproduce_cifar10" and call["published"]["resnet20"]
  assert caught(monkeypatch, "--config=cifar10.py:batch_size=64", "--seeds=1")["count"] == 12


def test_rows_on_other_data_have_no_published_figures(monkeypatch):
  for text, published in (("cifar10.py", {"resnet20"}), ("cifar10.py:dataset=mnist", set())):
    call = caught(monkeypatch, f"--config={text}", "--rows=resnet20", "--seeds=1")
    assert set(call["published"]) == published


@pytest.mark.slow  # traces several steps
def test_a_budget_is_spent_by_the_seeds_and_the_batch_of_the_runs(monkeypatch):
  """Every run has a seed of its own, and few examples halve its batch."""
  halved, order = "min_steps_per_epoch=40", []
  monkeypatch.setattr(phases, "use_cores", lambda configs: order.append(len([*configs])))
  measure = experiment.make_experiment
  monkeypatch.setattr(
    experiment, "make_experiment", lambda *a, **k: order.append(a) or measure(*a, **k)
  )
  text = runs.replace(TINY, f"graph_seed={SEED}").replace("duration=8 steps,", "")
  text = text.removeprefix("softmax,").replace("batch_size=32", f"batch_size=64,{halved}")
  command = [f"--config=digits.py:{text}", "--rows=softmax", "--seeds=2"]
  call = caught(monkeypatch, *command, "--budget=1GFLOP")
  assert order[0] == 1 and len(order) == 2  # before JAX starts
  once = text.replace(f",{halved}", "").replace("batch_size=64", "batch_size=32")
  config = vitx.load_config(f"digits.py:softmax,{once.replace(SEED, '0')}")
  steps = int(1e9 // count_training_flops(complete_config(config)))
  assert call["softmax"] == f"{steps} steps" and call["count"] == 2


def test_a_budget_replaces_the_duration_of_a_row(monkeypatch):
  monkeypatch.setattr(trial, "count_training_flops", lambda config: 1e9)
  text = runs.replace(UNTIMED, "schedule.warmup=8000 steps", "stop_after=9000 steps")
  command = [f"--config=digits.py:{text}", "--rows=fnet", "--seeds=1", "--budget=9.5TFLOP"]
  assert caught(monkeypatch, *command)["fnet"] == "9500 steps"


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--budget=1FLOP"], "budget=1: one step of fnet has .* FLOP"),
    (["--config.duration=9", "--duration=8"], "is set already"),
  ],
)
def test_a_length_that_cannot_be_is_refused(arguments, message, capsys):
  assert main(["reproduce", "--config=digits.py:model.depth=1", "--rows=fnet", *arguments]) == 1
  assert re.search(message, capsys.readouterr().err)


@pytest.mark.slow  # counts the operations of two networks, several times
def test_rows_of_an_own_file_have_published_figures(tmp_path, monkeypatch, quick):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "own.py").write_text(OWN)
  assert main(["reproduce", f"--config=own.py:{TINY}", "--seeds=1"]) == 0
  table = (tmp_path / "results" / "reproduce_own" / "table.md").read_text()
  compared, _, printed_alone = table.partition("| as printed ")
  lines = {line.split(" | ")[0]: line.split(" | ") for line in compared.splitlines()}
  assert lines["| softmax"][1:3] == ["1", "80.5"] and lines["| fnet"][1:3] == ["1", "70"]
  assert printed_alone.startswith("| top1 | parameters | train_top1 |")
  assert "| softmax | 80.5 | 3 | 99 at 40 |" in printed_alone
  with open(tmp_path / "results" / "reproduce_own" / "runs.csv") as file:
    points = {row["method"]: float(row["test_top1"]) for row in csv.DictReader(file)}
  assert set(points) == {"softmax", "fnet"}
  assert f"{100 * points['fnet']:.2f}" in lines["| fnet"]
  assert (tmp_path / "results" / "reproduce_own" / "curves.png").read_bytes().startswith(b"\x89PNG")
  assert (tmp_path / "runs" / "reproduce_own" / "fnet_seed-0" / "metrics.jsonl").exists()
  assert quick == ["softmax_seed-0", "fnet_seed-0"]
