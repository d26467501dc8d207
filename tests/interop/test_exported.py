"""Exported weights, which timm has loaded and run (golden/record_exports.py)."""

import json
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from configs import cifar10, finetune, imagenet, vix_cifar10
from tests.interop.exported import CALLS, GOLDEN, MODELS, images, make
from tests.interop.published import run
from tests.slow import all_but
from vitx.checkpoints.tree import name_arrays, name_leaves
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.config.fields import read_settings
from vitx.inference.convert import describe
from vitx.interop import foreign
from vitx.interop.export import write_safetensors
from vitx.interop.foreign_names import to_ours, to_theirs
from vitx.interop.init_from import Fit, initial_variables
from vitx.ops.layout import TokenLayout

CALLED = json.loads(CALLS.read_text())


def path(name):
  return str(GOLDEN / f"exported_{name}.safetensors")


@pytest.mark.parametrize("name", all_but("vit", "mlp_mixer", of=MODELS))
def test_exports_equal_the_files_that_timm_ran(name):
  model, variables, network = make(name)
  assert network.code == CALLED[name]
  arrays, recorded = (
    to_theirs(name_arrays(variables), network.family),
    foreign.read_arrays(path(name)),
  )
  jax.tree.map(np.testing.assert_array_equal, arrays, recorded[0])
  again, unused = to_ours(recorded[0], 3)
  assert unused == []
  jax.tree.map(np.testing.assert_array_equal, again, dict(name_arrays(variables)))
  with np.load(GOLDEN / "exported.npz") as golden:
    np.testing.assert_array_equal(golden["images"], images())
    expected = golden[name]
  logits = run(model, variables, images())
  np.testing.assert_allclose(logits, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_rectangular_grid_keeps_its_shape(tmp_path, is_stated):
  """The file may say that its four patches are four rows of one; otherwise the network does."""
  _, variables, _ = make("vit")
  file = str(tmp_path / "a.safetensors")
  layout = TokenLayout((4, 1), 1)
  write_safetensors(file, to_theirs(name_arrays(variables), "timm"), layout if is_stated else None)
  filled = initial_variables(file, variables, Fit(layout=layout))
  jax.tree.map(np.testing.assert_array_equal, filled, variables)


def test_a_variable_without_a_name_is_refused():
  _, variables, _ = make("layer_scale")
  with pytest.raises(
    ConfigError, match=r"'vit_pytorch' have no place for params/block_0/mixer_scale"
  ):
    to_theirs(name_leaves(variables), "vit_pytorch")


def test_only_safetensors_are_written(tmp_path, monkeypatch):
  with pytest.raises(ConfigError, match=r"out='weights\.npz' must end in \.safetensors"):
    write_safetensors("weights.npz", {})
  monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
  with pytest.raises(MissingExtraError, match=r'"\.\[foreign\]"'):
    write_safetensors(tmp_path / "a.safetensors", {})


def network(module, text):
  config = module.get_config(text)
  with config.unlocked():
    config.data.channels = 3
    config.data.image_size = config.data.image_size or 32
    config.model.num_classes = 10
  return describe(SimpleNamespace(settings=read_settings(config)))


@pytest.mark.parametrize("row", [row for row in imagenet.ROWS if "linformer" not in row])
def test_rows_of_imagenet_have_names(row):
  theirs = network(imagenet, row)
  family = "lv_vit" if "lv" in row else "distilled" if "distilled" in row else "timm"
  assert theirs.family == family and ("img_size=224" in theirs.code) == (family != "lv_vit")


@pytest.mark.parametrize("row", finetune.ROWS)
def test_rows_of_finetune_have_names(row):
  """Every row has names for the export.

  The pool of SigLIP 2's rows has the sizes of the blocks, which `pool=map` takes from the width.
  """
  families = {"dinov2_reg": "registers", "dinov3": "timm_dinov3", "siglip2": "siglip"}
  assert network(finetune, row).family == families.get(row.rpartition("_")[0], "timm")


@pytest.mark.parametrize(
  ("module", "text", "message"),
  [
    (imagenet, "deit_s_linformer", "token_mixer='linformer'.*'softmax'"),
    (imagenet, "deit_ti,token_mixer.rotary=axial", "token_mixer.rotary='axial'.*'none'"),
    (imagenet, "deit_ti,token_mixer.head_dim=32", "token_mixer.head_dim=32"),
    (imagenet, "deit_ti,model.token_reduction=evit", "token_reduction='evit'.*'none'"),
    (imagenet, "deit_ti,posemb=rope", "posemb.kind='sequence'.*'centered'"),
    (imagenet, "deit_ti,token_mixer.key_bias=False", "token_mixer.key_bias=False.*True"),
    (finetune, "dinov3_s,posemb.kind=axial", "posemb.kind='axial'.*'centered'"),
    (finetune, "dinov3_s,token_mixer.use_bias=False", "token_mixer.use_bias=False.*True"),
    (finetune, "dinov3_s,token_mixer.key_bias=True", "token_mixer.key_bias=True.*False"),
    (finetune, "dinov3_s,model.block.activation=gelu_tanh", "block.activation='gelu_tanh'.*'gelu'"),
    (finetune, "siglip2_b,pool.num_heads=6", "num_heads=12.*pool has 6"),
    (finetune, "siglip2_b,pool.mlp_dim=768", "mlp_dim=3072.*pool has 768"),
    (finetune, "siglip2_b,pool.activation=gelu", "block.activation='gelu_tanh'.*pool has 'gelu'"),
    (finetune, "siglip2_b,model.norm.epsilon=1e-5", "norm.epsilon=1e-05.*1e-06"),
    (imagenet, "deit_ti,pool=mean", "pool='mean'.*'cls'"),
    (imagenet, "deit_ti,model.block.branch_divisor=2.0", r"block.branch_divisor=2\.0.*1\.0"),
    (imagenet, "deit_ti,stem.stride=8", "stem.stride=8.*None"),
    (imagenet, "deit_ti_distilled,model.extra_tokens=2", "extra_tokens=2.*0"),
    (vix_cifar10, "mlp_mixer,pool=cls", "pool='cls'.*'mean'"),
    (cifar10, "resnet20", "name='resnet' has no equivalent in timm"),
  ],
)
def test_networks_unlike_timms_are_refused(module, text, message):
  with pytest.raises(ConfigError, match=rf"model\..*{message}"):
    network(module, text)


def test_a_stated_head_dim_is_accepted():
  assert network(imagenet, "deit_ti,token_mixer.head_dim=64").family == "timm"
