"""Tables of a network's modules, whose counts add up to those of the network."""

import math

import pytest

from configs import cifar10, density_digits, vix_cifar10
from tests.configs.test_vix_rows import count
from tests.slow import all_but
from vitx.analysis.implementations import implementations
from vitx.analysis.tabulate import list_layers
from vitx.models import model_from_config
from vitx.tasks import build_task
from vitx.tasks.settle import complete_config


@pytest.mark.parametrize(
  "row", all_but("mlp_mixer", of=("hybrid_vin", "cvt", "rope_vil", "mlp_mixer"))
)
def test_layers_add_up_to_the_count(row):
  config = vix_cifar10.get_config(row)
  layers = list_layers(model_from_config(config.model), (1, 32, 32, 3))
  assert layers[0].path == () and layers[0].parameters == count(config).total
  paths = [layer.path for layer in layers]
  assert len(set(paths)) == len(paths)
  for layer in layers:
    below = [x for x in layers if x.path[:-1] == layer.path and x.path]
    direct = sum(map(math.prod, layer.shapes.values()))
    assert layer.parameters == direct + sum(x.parameters for x in below), layer.path
    assert layer.output[0] == 1


def test_a_loop_over_layers_does_not_change_the_table():
  def look(cycle):
    text = f"dense,model.width=8,model.num_heads=1,model.mlp_dim=8,model.layer_cycle={cycle}"
    task = build_task(complete_config(density_digits.get_config(text)))
    return [find(task.model, task.input_spec) for find in (list_layers, implementations)]

  assert look(1) == look(0)


def test_rematerialization_does_not_change_the_table():
  def list_by_path(remat):
    model = model_from_config(cifar10.get_config(f"vit,model.remat={remat}").model)
    return {layer.path: layer for layer in list_layers(model, (1, 32, 32, 3))}

  assert list_by_path(True) == list_by_path(False)
