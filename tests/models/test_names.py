"""The names of parameters: their layers, kinds and blocks, and the names in a network."""

import jax
import numpy as np
import pytest

from vitx.models import create_model, names


@pytest.mark.parametrize(
  ("name", "layer"),
  [
    ("stem/embed/kernel", 0),
    ("posemb/table", 0),
    ("cls", 0),
    ("extra", 0),
    ("start", 0),
    ("block_0/token_mixer/query/kernel", 1),
    ("block_11/mlp/up/bias", 12),
    ("norm/scale", 13),
    ("head/kernel", 13),
    ("head_hidden/kernel", 13),
    ("stage_0_block_0/mlp/up/bias", 13),
  ],
)
def test_a_parameter_belongs_to_this_layer(name, layer):
  assert names.layer_of(name, 12) == layer


def test_blocks_are_counted():
  assert names.count_blocks(["stem/block_7", "block_0/a", "block_11/b", "block_3/c"]) == 12
  assert names.count_blocks(["stem/kernel", "stage_0_block_0/a"]) == 0


@pytest.mark.parametrize(
  ("name", "table", "head"),
  [
    ("posemb/table", True, False),
    ("posemb", True, False),
    ("head/kernel", False, True),
    ("head_hidden/kernel", False, False),
    ("block_0/token_mixer/relative_bias_0", False, False),
  ],
)
def test_a_name_tells_the_kind_of_a_parameter(name, table, head):
  assert names.is_position_table(name) == table
  assert names.is_head(name) == head


def test_a_network_has_these_names():
  """The parameters of a network have exactly these names at their top level."""
  fields = {"width": 8, "depth": 3, "num_heads": 2, "mlp_dim": 8, "head_hidden": 8}
  model = create_model("vit", num_classes=3, extra_tokens=2, **fields)
  shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 8, 8, 3)))["params"]
  paths, _ = jax.tree.flatten_with_path(shapes)
  parameters = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
  assert names.count_blocks(parameters) == 3
  layers = {name.split("/")[0]: names.layer_of(name, 3) for name in parameters}
  assert layers == {
    **{"stem": 0, "posemb": 0, "cls": 0, "extra": 0, "block_0": 1, "block_1": 2, "block_2": 3},
    **{"norm": 4, "head_hidden": 4, "head": 4},
  }
  assert [name for name in parameters if names.is_position_table(name)] == ["posemb/table"]
  layerless = [name for name in parameters if names.has_no_layer(name)]
  assert sorted(layerless) == ["cls", "extra", "posemb/table"]
