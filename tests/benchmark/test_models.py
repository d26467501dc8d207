"""Training steps side by side: ratios, their goals, and a process of its own for memory."""

import sys

import pytest

from vitx.analysis import cost
from vitx.benchmark import models, peers
from vitx.cli import benchmark
from vitx.cli.configs import load_config
from vitx.cli.main import main
from vitx.cli.summary import complete_config
from vitx.errors import MissingExtraError
from vitx.training import trial


def test_every_peer_has_a_row_of_ours_and_every_goal_a_peer():
  from configs import vix_cifar10

  assert {models.row_of(name) for name in peers.PEERS} <= set(vix_cifar10.ROWS)
  assert set(models.GOALS) <= set(peers.PEERS)


def test_ratios_are_of_steps_that_take_turns():
  order = []
  ours = {"vit": lambda: order.append("ours")}
  theirs = {"vit/fused": lambda: order.append("theirs")}
  found = models.compare(ours, theirs, runs=2, repeats=2, seconds=1.0, say=lambda text: None)
  assert list(found) == ["vit/fused"] and len(found["vit/fused"]) == 2
  assert order.index("theirs") < len(order) - 1 - order[::-1].index("ours")


def test_goals_are_judged_from_their_side():
  text = models.format_ratios({"a": [0.5, 0.9], "b": [2.0]}, {"a": 0.8}, most=True)
  assert text.splitlines()[0].split() == [
    *("a", "0.50", "0.90", "median", "0.70", "<=", "0.8:", "1", "of", "2")
  ]
  assert "median 2.00" in text and "<=" not in text.splitlines()[1]
  assert ">= 0.8: 1 of 2" in models.format_ratios({"a": [0.5, 0.9]}, {"a": 0.8}, most=False)


def take(name):
  held = bytearray(int(name))
  return lambda: held.__setitem__(slice(None, None, 4096), b"x" * len(held[::4096]))


@pytest.mark.slow(reason="two processes of their own")
def test_peak_memory_is_above_what_was_imported():
  small, large = (models.peak_bytes(int, take, size) for size in ("1000000", "100000000"))
  assert 90e6 < large - small < 140e6


@pytest.mark.slow(reason="compiles a training step")
def test_share_of_a_product(monkeypatch, capsys):
  make = benchmark._make_dispatch
  smaller = ",batch_size=8,model.depth=1"
  monkeypatch.setattr(benchmark, "_make_dispatch", lambda name: make(name + smaller))
  assert main(["benchmark", "models", "--rows", "digits:bigbird", "--runs", "1"]) == 0
  line = capsys.readouterr().out.splitlines()[1].split()
  assert line[0] == "digits:bigbird" and 0 < float(line[1]) < 1.5


@pytest.mark.slow  # compiles a dispatch and a step
def test_a_dispatch_goes_on_from_its_own_state():
  sizes = "batch_size=4,model.depth=1,model.width=8,model.num_heads=1,model.mlp_dim=8"
  config = complete_config(load_config(f"digits:softmax,steps_per_dispatch=3,{sizes}"))
  dispatch, steps, flops = trial.make_dispatch(config)
  assert steps == 3
  dispatch()
  dispatch()
  train, state, batch = trial.make_training_step(config)
  assert flops == 3 * cost.flops(train, state, batch) > 0


def test_what_is_missing_or_unknown_is_one_line(monkeypatch, capsys):
  assert main(["benchmark", "models", "--rows", "vit"]) == 1
  assert "rows='vit'" in capsys.readouterr().err
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(MissingExtraError, match='extra "peers"'):
    peers.import_torch()
