"""What follows from a config and its source."""

import pytest

from tests import runs
from tests.training.test_loop import resolved
from vitx.analysis.implementations import implementations
from vitx.models import model_from_config
from vitx.ops.implementation import choosing_by
from vitx.ops.rule import FAMILIES, Rule
from vitx.training.setup import make_experiment


@pytest.mark.parametrize(
  ("overrides", "seed"),
  [
    ("token_mixer=erdos_renyi", 0),
    ("token_mixer=erdos_renyi,seed=3", 3),
    ("token_mixer=erdos_renyi,seed=3,graph_seed=5", 5),
    ("token_mixer=bigbird,graph_seed=5,token_mixer.seed=7", 7),
    ("token_mixer=softmax,graph_seed=5", None),
  ],
)
def test_the_graph_seed_reaches_mixers_that_draw_a_graph(overrides, seed):
  assert resolved(overrides).model.token_mixer.get("seed") == seed


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_implementations_are_found_in_the_whole_network(implementation):
  mixer = f"token_mixer=performer,token_mixer.implementation={implementation},model.depth=2"
  found = implementations(model_from_config(resolved(mixer).model), (1, 8, 8, 1))
  assert found == dict.fromkeys(("block_0/token_mixer", "block_1/token_mixer"), implementation)


def test_implementations_are_those_of_the_examples_that_a_device_has_at_once():
  """Two devices; 24 examples a step, in micro-batches or not, of 4 heads."""
  bounds = {"dense": ((1000, 32),)}
  rule = Rule("any", "a test", dict.fromkeys(FAMILIES, ()) | bounds)
  picked = []
  for steps in (1, 2):
    text = f"token_mixer=softmax,model.num_heads=4,batch_size=24,grad_accum_steps={steps}"
    with choosing_by(rule):
      picked += make_experiment(runs.tiny(text)).implementations().values()
  assert picked == ["kernelized", "masked"]


def test_auto_never_holds_the_matrix_of_many_tokens():
  model = model_from_config(resolved("token_mixer=softmax,posemb=none").model)
  found = implementations(model, (1, 256, 256, 1))  # 4,096 tokens
  assert set(found.values()) == {"kernelized"}
