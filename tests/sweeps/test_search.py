"""Searches of values: ranges, trials that processes share, pruning and the best command."""

import contextlib
import csv
import json
import re

import optuna
import pytest

from tests.cli.conftest import quick, uncleared
from tests.cli.sweeps import TINY
from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.cli.live import Lines
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.data import sources
from vitx.sweeps import search as searching
from vitx.sweeps import sweep as trained
from vitx.sweeps.search import Search, parse_ranges
from vitx.training import phases, validation
from vitx.training.failures import PrunedError
from vitx.training.loop import Result

__all__ = ["quick", "uncleared"]
CONFIG, OVER = (
  f"digits.py:softmax,{TINY}",
  "learning_rate=log(1e-4,1e-2),token_mixer=[softmax,fnet]",
)


@pytest.fixture
def made(tmp_path):
  """A function that opens the search of one directory."""
  return lambda over=OVER, seeds=2: Search(CONFIG, over, seeds, str(tmp_path / "search"))


def show(search):
  return Lines(search._directory, "top1")


class WaitError(Exception):
  """The search waits for another process."""


def wait(_):
  raise WaitError


def record_data(workdir, fingerprint):
  wd.write_json(workdir, wd.ENVIRONMENT, {"data": {"source": "digits", "fingerprint": fingerprint}})


def end_run(workdir):
  """Writes the files of a run that has ended, and returns its result."""
  rows = [{"kind": kind, "step": 5, "top1": 0.5} for kind in ("validation", "test")]
  wd.write_json(workdir, "config.json", {})
  with open(f"{workdir}/metrics.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
  return Result(str(workdir), 5, True)


def states(search):
  return [trial.state.name for trial in search.study.trials]


def test_ranges_have_three_forms_and_lists():
  ranges = parse_ranges("a.b=log(1e-4, 1e-2),c=uniform(0,1),d=int(2,6),e=['x',{'name':'y','z':1}]")
  assert list(ranges.values()) == [
    optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True),
    optuna.distributions.FloatDistribution(0, 1),
    optuna.distributions.IntDistribution(2, 6),
    optuna.distributions.CategoricalDistribution(["'x'", "{'name':'y','z':1}"]),
  ]


@pytest.mark.parametrize(
  ("over", "words"),
  [
    ("seed=[0,1]", "seed decides nothing"),
    ("log_every=int(1,9)", "log_every decides nothing"),
    ("learning_rate=log(0,1)", "must be field="),
    ("learning_rate=log(1,x)", "must be field="),
    ("model.depth=int(1.5,3)", "must be field="),
    ("learning_rate=1e-3", "must be field="),
    ("", "must be field="),
  ],
)
def test_ranges_that_cannot_be_searched_are_refused(over, words):
  with pytest.raises(ConfigError, match=words):
    parse_ranges(over)


def test_every_trial_trains_all_seeds_and_the_best_is_named(made, quick, tmp_path):
  """In the runs of this fixture FNet is better, by 0.1, and the seed 1 by 0.01."""
  search = made()
  assert search.run(4, show(search)) and states(search) == ["COMPLETE"] * 4
  assert len(quick) == 8 and {name[-1] for name in quick} == {"0", "1"}
  best = max(search.study.trials, key=lambda trial: trial.value)
  assert best.params["token_mixer"] == "fnet" and best.value == pytest.approx(0.605)
  lines = search.summary().splitlines()
  assert re.match(rf"{best.number} .*fnet +60\.50 ± 0\.71$", lines[1])
  assert "4 trials ended, 0 were pruned or failed" in lines and "token_mixer" in lines[-2]
  assert lines[-1].startswith("vitx train --config 'digits.py:softmax,")
  assert ",token_mixer=fnet,seed=0' --workdir" in lines[-1]
  with open(search.write(tmp_path / "out"), newline="") as file:
    rows = [*csv.DictReader(file)]
  assert [row["trial"] for row in rows] == ["0", "1", "2", "3"] and rows[0]["value_1"]
  again = made()
  assert again.run(4, show(again)) and len(quick) == 8  # nothing is trained again
  assert again.run(5, show(again)) and len(quick) == 10


def test_a_combination_that_cannot_be_trained_fails_alone(made, quick, monkeypatch):
  def refuse(*_, **__):
    raise ConfigError("no")

  search = made("optimizer.b2=uniform(0.9995,0.9999)")
  monkeypatch.setattr(phases, "train", refuse)
  with pytest.raises(ConfigError, match="no"):
    search.run(2, show(search))
  assert states(search) == ["FAIL"]
  with pytest.raises(ConfigError, match="no"):
    search.run(2, show(search))
  assert states(search) == ["FAIL", "FAIL"] and search.run(2, show(search))
  (value,) = search.study.trials[0].params.values()
  assert search.points(search.study.trials[0].params)[0].config.optimizer.b2 == pytest.approx(value)


def test_trials_share_an_opened_data_set(made, quick, monkeypatch):
  search, opened, opening, train = made(), [], sources.open_dataset, phases.train

  def open_and_train(config, workdir, **_):
    sources.open_source(config.data, config.seed)
    return train(config, workdir)

  monkeypatch.setattr(sources, "open_dataset", lambda data: opened.append(data) or opening(data))
  monkeypatch.setattr(phases, "train", open_and_train)
  assert search.run(2, show(search)) and len(quick) == 4 and len(opened) == 1


def test_one_process_always_proposes_the_same_values(made, quick, tmp_path):
  search, other = made(), Search(CONFIG, OVER, 2, str(tmp_path / "other"))
  assert search.run(3, show(search)) and other.run(3, show(other))
  first, second = ([trial.params for trial in s.study.trials] for s in (search, other))
  assert first == second


def test_a_directory_holds_one_search(made):
  made()
  for change in ({"seeds": 3}, {"over": "learning_rate=log(1e-4,1e-1)"}):
    with pytest.raises(ConfigError, match="holds another search"):
      made(**change)


def test_folds_are_the_runs_of_one_trial(made, quick):
  search = made("learning_rate=log(1e-4,1e-2),data.folds=[3],data.fold=[0,1,2]", seeds=1)
  assert search.run(1, show(search))
  assert [name.split("_fold-")[1] for name in quick] == ["0_seed-0", "1_seed-0", "2_seed-0"]


def test_a_trial_of_an_ended_process_is_continued(made, quick, monkeypatch):
  killed, train = made(), phases.train

  def stop(config, workdir, **_):
    return Result(str(workdir), 4, False) if config.seed else train(config, workdir)

  monkeypatch.setattr(phases, "train", stop)
  assert not killed.run(2, show(killed)) and states(killed) == ["RUNNING"]
  monkeypatch.setattr(phases, "train", train)
  search = made()
  directory = search._directory
  with lock.hold(directory, "trial-0.lock"):  # its process is alive: another trial begins
    monkeypatch.setattr(searching.time, "sleep", wait)
    with pytest.raises(WaitError):
      search.run(2, show(search))
  assert states(search) == ["RUNNING", "COMPLETE"] and len(quick) == 3
  assert search.run(2, show(search)) and states(search) == ["COMPLETE"] * 2
  assert len(quick) == 4 and len(set(quick)) == 4


def test_a_run_below_the_median_is_pruned_after_three_evaluations(made, monkeypatch, capsys):
  seen = []

  def train(config, workdir, **_):
    """Trains for five evaluations, whose figures fall from run to run."""
    watch = validation._watch.get()
    record_data(workdir, "")
    for step in range(1, 6):
      seen.append((len(search.study.trials) - 1, config.seed, step))
      if watch:
        watch(step, step - 0.1 * len(search.study.trials))
    return end_run(workdir)

  monkeypatch.setattr(phases, "train", train)
  monkeypatch.setattr(trained.sources, "sharing", contextlib.nullcontext)
  search = made("learning_rate=log(1e-4,1e-2)")
  assert search.run(7, show(search))
  assert states(search) == ["COMPLETE"] * 5 + ["PRUNED"] * 2
  assert [step for trial, _, step in seen if trial == 6] == [1, 2, 3]
  assert "pruned at step 3: it is worse than the median" in capsys.readouterr().out
  assert "5 trials ended, 2 were pruned or failed" in search.summary()
  assert issubclass(PrunedError, RuntimeError)


def test_a_search_compares_trials_on_equal_data_alone(made, monkeypatch):
  numbers = iter("112")

  def train(config, workdir, **_):
    record_data(workdir, next(numbers))
    return end_run(workdir)

  monkeypatch.setattr(phases, "train", train)
  search = made(seeds=1)
  with pytest.raises(ConfigError, match="has changed since this search began"):
    search.run(3, show(search))
  assert states(search) == ["COMPLETE", "COMPLETE", "FAIL"]


def test_a_search_is_one_command(tmp_path, quick, capsys):
  command = ["sweep", f"--config={CONFIG}", f"--over={OVER}", "--search=3", "--seeds=1"]
  command += [f"--workdir={tmp_path / 'w'}", f"--out={tmp_path / 'o'}"]
  assert main([*command, "--parallel=2"]) == 1
  assert "start the command several times" in capsys.readouterr().err
  assert main(command) == 0
  output = capsys.readouterr().out
  assert output.count("validation top-1 %") == 4 and "trials.csv" in output
  assert (tmp_path / "o" / "w" / "trials.csv").exists()
