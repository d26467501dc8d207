"""`vitx benchmark models --config`: what rows cost, from the arguments to the files."""

import csv
import json
import types

import jax
import pytest

from vitx.analysis import cost
from vitx.benchmark import rates as rates_of
from vitx.benchmark.rates import Rate
from vitx.benchmark.timing import TooLargeError
from vitx.cli import row_costs
from vitx.cli.main import main
from vitx.cli.summary import count_forward_flops
from vitx.config.loader import load_config
from vitx.training import trial
from vitx.training.trial import complete_config

TINY = "model.depth=1,model.width=8,model.num_heads=1,model.mlp_dim=8,stem=linear,stem.patch=4"
CONFIG = f"digits:softmax,{TINY}"


@pytest.fixture
def made_up(monkeypatch):
  """Nothing is compiled: rows cost what is said here, by their mixers."""
  costs = {"softmax": (9.0, 2.0), "performer": (4.0, 3.0), "fnet": (1.0, 1.0)}

  def count(config):
    train, flops = costs[config.model.token_mixer.name]
    return {"parameters": 12_345, "train_mb": train, "gflops": flops}

  monkeypatch.setattr(row_costs, "count", count)


def run(*arguments):
  assert main(["benchmark", "models", *arguments]) == 0


def read(path):
  with open(path, newline="", encoding="utf-8") as file:
    return {row["row"]: row for row in csv.DictReader(file)}


def cells(out):
  """Returns the printed rows by name, each by column."""
  head, _, *lines = [line[2:-2].split(" | ") for line in out.splitlines() if line.startswith("|")]
  return {line[0]: dict(zip(head, line, strict=True)) for line in lines}


@pytest.mark.slow(reason="compiles a step of training and three of inference")
def test_a_row_is_counted_and_compiled():
  config = complete_config(load_config(CONFIG))
  row = row_costs.count(config)
  assert tuple(row) == row_costs.COUNTED
  assert row["gflops_products"] == count_forward_flops(config) / 1e9 < row["gflops"]
  parts = ("parameters", "optimizer", "activations")
  assert row["train_mb"] == pytest.approx(sum(row[f"train_{part}_mb"] for part in parts))
  assert row["train_parameters_mb"] == 4 * row["parameters"] / 1e6
  # Two moments of Adam and the average of the parameters, and a few counters.
  assert 3 <= row["train_optimizer_mb"] / row["train_parameters_mb"] < 3.1
  assert row["inference_1_mb"] < row["inference_32_mb"] < row["inference_128_mb"]


def test_training_is_compiled_at_one_batch_without_micro_batches(monkeypatch):
  seen = []
  monkeypatch.setattr(trial, "split_training_bytes", lambda config: seen.append(config))
  monkeypatch.setattr(trial, "measure_inference_bytes", lambda config, batch: None)
  row = row_costs.count(complete_config(load_config(f"{CONFIG},batch_size=30,grad_accum_steps=3")))
  assert [(each.batch_size, each.grad_accum_steps) for each in seen] == [(64, 1)]
  assert set(row) == {"parameters", "gflops_products", "gflops"}  # the compiler does not say more


@pytest.mark.usefixtures("made_up")
def test_table_files_and_front(tmp_path, capsys):
  files = ["--csv", str(tmp_path / "rows.csv"), "--json", str(tmp_path / "rows.json")]
  plot = ["--pareto", "train_mb,published_top1", "--out", str(tmp_path)]
  run("--config", "vix_cifar10", "--rows", "vit,vip,fnet", *files, *plot)
  shown = cells(capsys.readouterr().out)
  head = list(shown["vit"])
  assert head[:3] == ["row", "parameters", "published_parameters"]
  assert head[head.index("size_mb") + 1] == "published_size_mb"
  assert "inference_1_mb" not in head  # nothing is known of it
  assert shown["vit"]["size_mb"] == shown["vit"]["published_size_mb"] == "209.39"
  # 58.23 at 4, 50.87 at 1; vit has 56.81 at 9.
  assert [row["front"] for row in shown.values()] == ["", "yes", "yes"]
  written, listed = read(tmp_path / "rows.csv"), json.loads((tmp_path / "rows.json").read_text())
  assert list(written) == [row["row"] for row in listed["rows"]] == ["vit", "vip", "fnet"]
  assert float(written["vip"]["published_top1"]) == listed["rows"][1]["published_top1"] == 58.23
  assert written["vip"]["front"] == "True" and "cpu" in listed["device"]
  picture = tmp_path / "pareto_vix_cifar10_train_mb_published_top1.png"
  assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("made_up")
def test_which_rows(tmp_path, capsys):
  run("--config", "vix_cifar10:fnet,model.depth=1")
  assert list(cells(capsys.readouterr().out)) == ["fnet"]
  (tmp_path / "own.py").write_text("from vitx.configs.digits import get_config\n")
  run("--config", f"{tmp_path}/own.py:token_mixer=fnet")
  assert list(cells(capsys.readouterr().out)) == ["own"]


@pytest.mark.usefixtures("made_up")
def test_rates_stand_in_the_table(monkeypatch, capsys):
  told = []
  monkeypatch.setattr(
    row_costs, "measure_peaks", lambda texts, say: {"vip": {"train_peak_mb": 7.0}}
  )

  def find_rates(makers, **effort):
    told.append(effort)
    return {name: Rate(8, 100.0) for name in makers if name != "vit"}  # which fits no memory

  monkeypatch.setattr(row_costs, "find_rates", find_rates)
  run("--config", "vix_cifar10", "--rows", "vit,vip", "--time", "--repeats", "2", "--seconds", "3")
  shown = cells(capsys.readouterr().out)
  assert [shown[row]["train_per_s"] for row in shown] == ["", "100.0"]
  assert [shown[row]["train_peak_mb"] for row in shown] == ["", "7.000"]
  assert shown["vip"]["inference_batch"] == "8"
  assert all((effort["repeats"], effort["seconds"]) == (2, 3.0) for effort in told)


class Here:
  """Runs in this process what a pool would run in another."""

  def __init__(self, *_, **__):
    pass

  def __enter__(self):
    return self

  def __exit__(self, *_):
    pass

  def submit(self, function, text):
    return types.SimpleNamespace(result=lambda: function(text))


def test_a_device_that_does_not_tell_its_peak_is_asked_once(monkeypatch):
  told = []
  monkeypatch.setattr(row_costs, "ProcessPoolExecutor", Here)
  texts = {"one": CONFIG, "two": CONFIG}
  assert row_costs.measure_peaks(texts, told.append) == {} and len(told) == 1


def test_a_row_that_does_not_fit_has_no_peak(monkeypatch):
  def measure_peak(text):
    if text == "large":
      raise TooLargeError("needs 9 GB")
    return 3_000_000

  told = []
  monkeypatch.setattr(row_costs, "ProcessPoolExecutor", Here)
  monkeypatch.setattr(row_costs, "measure_peak", measure_peak)
  found = row_costs.measure_peaks({"one": "large", "two": "small"}, told.append)
  assert found == {"two": {"train_peak_mb": 3.0}}
  assert "one: a step of 64 needs 9 GB" in told


class Device:
  """One that tells its peak."""

  def memory_stats(self):
    return {"peak_bytes_in_use": 5_000_000, "bytes_limit": 10**12, "bytes_in_use": 0}


@pytest.mark.slow(reason="compiles and runs steps of training and inference")
def test_peak_and_rates_are_measured(monkeypatch):
  config = complete_config(load_config(CONFIG))
  monkeypatch.setattr(rates_of, "GROWTH", 1e9)  # a batch of two is the last
  rates = row_costs.measure_rates({"a": config}, repeats=1, seconds=0.1, say=lambda text: None)
  assert rates["a"]["train_per_s"] > 0 and rates["a"]["inference_per_s"] > 0
  assert rates["a"]["train_batch"] in (1, 2) and rates["a"]["inference_batch"] in (1, 2)
  assert row_costs.measure_peak(CONFIG) is None  # a CPU
  monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
  assert row_costs.measure_peak(CONFIG) == 5_000_000


def test_a_step_goes_on_from_its_own_state():
  config = complete_config(load_config(f"{CONFIG},batch_size=2"))
  step, needed = trial.prepare_training(config, lambda: trial.begin(config))
  step()
  step()  # the first state was donated: it would be refused
  _, state, _ = trial.make_training_step(config)
  assert needed > cost.tree_bytes(state)
