"""Training steps side by side: their ratios and goals."""

import numpy as np
import pytest

from tests.benchmarks import peers
from vitx.analysis.counting import count_parameters
from vitx.config.loader import load_config
from vitx.models import model_from_config
from vitx.ops import TokenLayout, attention
from vitx.ops.patterns import Global, Neighborhood
from vitx.tasks.settle import complete_config


def test_every_peer_has_a_row_of_ours_and_every_goal_a_peer():
  from configs import vix_cifar10

  pairs = {}
  for row in vix_cifar10.ROWS:
    pairs |= peers.pair_row(row, f"{peers.CONFIG.replace(':', f':{row},')}")
  assert list(pairs) == ["vit/eager", "vit/fused", "vip", "vil", "vin", "fnet"]
  assert set(peers.GOALS) <= set(pairs)
  assert list(dict.fromkeys(row for row, _ in pairs.values())) == list(peers.ROWS)


@pytest.mark.parametrize("override", ["posemb=rope", "pool=mean", "model.dtype=bfloat16"])
def test_a_different_network_has_no_peer(override):
  assert peers.find_peers(complete_config(load_config("vix_cifar10:vip")))
  assert not peers.find_peers(complete_config(load_config(f"vix_cifar10:vip,{override}")))


SMALL = (
  "stride=4,batch_size=4,model.depth=1,model.width=32,model.num_heads=2,model.mlp_dim=48,"
  "data.image_size=16"
)


# The packages of the peers warn when they are imported.
of_others = pytest.mark.filterwarnings("ignore")


@of_others
@pytest.mark.parametrize("row", ["vit", "vip", "vil", "vin", "fnet"])
def test_peers_have_the_sizes_of_the_row(row):
  torch = pytest.importorskip("torch")
  config = complete_config(load_config(f"vix_cifar10:{row},{SMALL}"))
  for network in (peers.make_network(torch, config, peer) for peer in peers.find_peers(config)):
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert shapes["pos_embedding"][-2:] == (17, 32) and shapes["mlp_head.weight"] == (10, 32)
    ours = count_parameters(model_from_config(config.model), (1, 16, 16, 3)).total
    # One side has more biases, norms and projections; all matrix products are equal.
    assert abs(sum(p.numel() for p in network.parameters()) / ours - 1) < 0.1
  for peer in peers.find_peers(config):
    step = peers.make_step(config, peer)
    step()
    step()


@of_others
def test_flex_attention_has_the_edges_of_our_neighborhood():
  torch = pytest.importorskip("torch")
  fields = {"head_dim": 8, "tokens": 65, "size": 5}
  module = peers.PEERS["neighborhood"]["FlexAttention"](torch, 16, 2, fields)
  x = torch.randn(2, 65, 16)
  with torch.no_grad():
    parts = module.to_qkv(x).reshape(2, 65, 3, 2, 8).numpy()
    theirs = module(x).numpy()
    layout = TokenLayout((8, 8), prefix=1)
    pattern = Neighborhood(5) | Global(prefix=True)
    out = attention(*np.moveaxis(parts, 2, 0), pattern, layout)
    ours = module.to_out(torch.tensor(np.asarray(out).reshape(2, 65, 16))).numpy()
  np.testing.assert_allclose(ours, theirs, atol=1e-6)


@of_others
@pytest.mark.slow(reason="compiles two training steps and runs PyTorch's")
def test_rows_of_a_config_run_beside_their_peers(capsys):
  pytest.importorskip("torch")
  effort = {"runs": 2, "repeats": 1, "seconds": 60.0, "say": lambda text: None}
  peers.measure(f"vix_cifar10:{SMALL}", ["vit", "fnet"], False, effort)
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  ratios = {line[0]: [float(x) for x in line[1:3]] for line in lines[1:4]}
  assert list(ratios) == ["vit/eager", "vit/fused", "fnet"]
  assert all(0 < ratio < 100 for pair in ratios.values() for ratio in pair)
