"""Training steps side by side: their ratios and goals."""

import sys

import pytest

from tests.benchmarks import console, peers, steps
from vitx.analysis.counting import count_parameters
from vitx.benchmark import timing
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.config.loader import load_config
from vitx.models import model_from_config
from vitx.training.trial import complete_config


def test_every_peer_has_a_row_of_ours_and_every_goal_a_peer():
  from configs import vix_cifar10

  found = {}
  for row in vix_cifar10.ROWS:
    found |= peers.pair_row(row, f"{peers.CONFIG.replace(':', f':{row},')}")
  assert list(found) == ["vit/eager", "vit/fused", "vip", "vil", "vin", "fnet"]
  assert set(peers.GOALS) <= set(found)
  assert list(dict.fromkeys(row for row, _ in found.values())) == list(peers.ROWS)


@pytest.mark.parametrize(
  "override",
  [
    "posemb=rope",
    "pool=mean",
    "model.block=parallel",
    "model.norm=none",
    "model.dtype=bfloat16",
    "stem=conv",
    "data.image_size=(32,16)",
  ],
)
def test_a_network_unlike_theirs_has_no_peer(override):
  assert peers.find_peers(complete_config(load_config("vix_cifar10:vip")))
  assert not peers.find_peers(complete_config(load_config(f"vix_cifar10:vip,{override}")))


SMALL = (
  "stride=4,batch_size=4,model.depth=1,model.width=32,model.num_heads=2,model.mlp_dim=48,"
  "data.image_size=16"
)


# The packages of the peers warn when they are imported.
of_others = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def installed():
  """Skips a test if the extra `peers` is not installed."""
  try:
    peers.import_torch()
  except MissingExtraError as error:
    pytest.skip(str(error))


@of_others
@pytest.mark.parametrize("row", ["vit", "vip", "vil", "vin", "fnet"])
def test_peers_have_the_sizes_of_the_row(row, installed):
  config = complete_config(load_config(f"vix_cifar10:{row},{SMALL}"))
  torch = peers.import_torch()
  for network in (peers.make_network(torch, config, peer) for peer in peers.find_peers(config)):
    found = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert found["pos_embedding"][-2:] == (17, 32) and found["mlp_head.weight"] == (10, 32)
    ours = count_parameters(model_from_config(config.model), (1, 16, 16, 3)).total
    # One side has more biases, norms and projections; all matrix products are equal.
    assert abs(sum(p.numel() for p in network.parameters()) / ours - 1) < 0.1
  for peer in peers.find_peers(config):
    step = peers.make_step(config, peer)
    step()
    step()


@of_others
@pytest.mark.slow(reason="compiles two training steps and runs PyTorch's")
def test_rows_of_a_config_beside_their_peers(capsys, installed):
  effort = {"runs": 2, "repeats": 1, "seconds": 60.0, "say": lambda text: None}
  peers.measure(f"vix_cifar10:{SMALL}", ["vit", "fnet"], False, effort)
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  ratios = {line[0]: [float(x) for x in line[1:3]] for line in lines[1:4]}
  assert list(ratios) == ["vit/eager", "vit/fused", "fnet"]
  assert all(0 < ratio < 100 for pair in ratios.values() for ratio in pair)


def test_ratios_are_of_steps_that_take_turns():
  order = []
  pairs = {"vit/fused": (lambda: order.append("ours"), lambda: order.append("theirs"))}
  found = steps.compare(pairs, runs=2, repeats=2, seconds=1.0, say=lambda text: None)
  assert list(found) == ["vit/fused"] and len(found["vit/fused"]) == 2
  assert order.index("theirs") < len(order) - 1 - order[::-1].index("ours")


def test_goals_are_judged_from_their_side():
  text = console.format_ratios({"a": [0.5, 0.9], "b": [2.0]}, {"a": 0.8}, most=True)
  assert text.splitlines()[0].split() == [
    *("a", "0.50", "0.90", "median", "0.70", "<=", "0.8:", "1", "of", "2")
  ]
  assert "median 2.00" in text and "<=" not in text.splitlines()[1]
  assert ">= 0.8: 1 of 2" in console.format_ratios({"a": [0.5, 0.9]}, {"a": 0.8}, most=False)


def test_share_of_a_product(monkeypatch, capsys):
  """The step has as many operations as the matrix product, and takes a quarter of its time."""
  monkeypatch.setattr(steps, "make_dispatch", lambda config: (int, 3, 2 * steps.PRODUCT**3))
  times = {0: timing.Times(2.0, 1), 1: timing.Times(0.5, 1)}
  monkeypatch.setattr(steps, "interleave", lambda pair, **_: times)
  steps.measure(["digits:bigbird"], {"runs": 1, "say": lambda text: None})
  assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["digits:bigbird", "4.00"]


def test_times_against_another_row_are_of_one_step(monkeypatch, capsys):
  """A dispatch of two steps takes as long as one of eight, so a step takes four times as long."""
  counts = {"softmax": 8, "linear_transformer": 2}
  make = lambda config: (int, counts[config.model.token_mixer.name], 1)  # noqa: E731
  monkeypatch.setattr(steps, "make_dispatch", make)
  times = {0: timing.Times(0.5, 1), 1: timing.Times(0.5, 1)}
  monkeypatch.setattr(steps, "interleave", lambda pair, **_: times)
  effort = {"runs": 1, "say": lambda text: None}
  steps.measure_against(["digits:linear_transformer"], "digits:softmax", effort)
  assert capsys.readouterr().out.splitlines()[1].split()[1] == "4.00"


def test_what_is_missing_is_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  with pytest.raises(MissingExtraError, match='extra "peers"'):
    peers.import_torch()


@pytest.mark.parametrize(
  ("rows", "part"),
  [
    (["vit", "cct"], "no peer has the structure of cct; a peer is a vit"),
    (["vt"], "rows='vt' is no row"),
  ],
)
def test_rows_without_a_peer(rows, part):
  with pytest.raises(ConfigError, match=part):
    peers.measure(None, rows, False, {"say": print})


@pytest.mark.slow  # compiles a dispatch
def test_a_dispatch_goes_on_from_its_own_state(monkeypatch):
  monkeypatch.setattr(steps.trial, "count_training_flops", lambda config: 7)
  sizes = "batch_size=4,model.depth=1,model.width=8,model.num_heads=1,model.mlp_dim=8"
  dispatch, count, flops = steps.make_dispatch(
    load_config(f"digits:softmax,steps_per_dispatch=3,{sizes}")
  )
  assert (count, flops) == (3, 21)
  dispatch()
  dispatch()
