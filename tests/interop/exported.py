"""Small networks with drawn weights, exported as `vitx convert` does.

`python -m tests.interop.exported` writes tests/golden/exported_*.safetensors and the calls that
make the networks in timm; tests/golden/record_exports.py then has timm load and run them.
"""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
from ml_collections import ConfigDict

from vitx.checkpoints.tree import name_arrays
from vitx.config import default_config
from vitx.config.fields import read_settings
from vitx.inference.convert import describe
from vitx.interop.export import write_safetensors
from vitx.interop.foreign_names import to_theirs
from vitx.models import create_model, initialize

GOLDEN = Path(__file__).parents[1] / "golden"
CALLS = GOLDEN / "exported.json"
SIDE, CHANNELS = 8, 1
_VIT = dict(
  name="vit", width=12, depth=2, num_heads=3, mlp_dim=20, stem=dict(name="linear", patch=4)
)
MODELS = {
  "vit": _VIT
  | dict(
    norm=dict(name="layer", epsilon=1e-3),
    block=dict(name="pre_norm", activation="gelu_tanh"),
    token_mixer=dict(name="softmax", use_bias=False),
  ),
  "layer_scale": _VIT | dict(block=dict(name="pre_norm", activation="relu", layer_scale=1.0)),
  "registers": _VIT | dict(extra_tokens=3, posemb=dict(name="learned", prefix=False)),
  "dinov3": _VIT
  | dict(
    width=24,
    extra_tokens=4,
    norm=dict(name="layer", epsilon=1e-5),
    posemb=dict(name="rope", kind="centered", base=100.0),
    block=dict(name="pre_norm", layer_scale=1.0),
    token_mixer=dict(name="softmax", key_bias=False),
  ),
  "siglip": _VIT
  | dict(
    block=dict(name="pre_norm", activation="gelu_tanh"),
    pool=dict(name="map", num_heads=3, mlp_dim=20, activation="gelu_tanh"),
  ),
  "distilled": _VIT | dict(name="distilled_vit"),
  "mlp_mixer": _VIT | dict(token_mixer="mlp_mixing", posemb="none", pool="mean"),
  "convmixer": dict(name="convmixer", width=6, depth=2, patch=2, kernel=3),
}


@functools.cache
def make(name):
  """Returns a network, its variables, and its description for the export to timm."""
  config = default_config()
  with config.unlocked():
    config.model = ConfigDict(MODELS[name] | dict(num_classes=5))
    config.data.image_size, config.data.channels = SIDE, CHANNELS
  network = describe(SimpleNamespace(settings=read_settings(config)))
  model = create_model(**config.model)
  images = np.zeros((1, SIDE, SIDE, CHANNELS), np.float32)
  shapes = jax.eval_shape(lambda key: initialize(model, key, images), jax.random.key(0))
  random = np.random.default_rng(len(name))

  def draw(path, leaf):
    value = 0.4 * random.normal(size=leaf.shape)
    last = path[-1].key
    value = np.abs(value) + 0.5 if last == "var" else value + (last == "scale")
    return value.astype(np.float32)

  return model, jax.tree_util.tree_map_with_path(draw, dict(shapes)), network


def images():
  """Returns the input of the networks, float32 (2, height, width, channels)."""
  return np.random.default_rng(1).normal(size=(2, SIDE, SIDE, CHANNELS)).astype(np.float32)


def main():
  calls = {}
  for name in MODELS:
    _, variables, network = make(name)
    arrays = to_theirs(name_arrays(variables), network.family)
    write_safetensors(GOLDEN / f"exported_{name}.safetensors", arrays)
    calls[name] = network.code
  CALLS.write_text(json.dumps(calls, indent=2) + "\n")


if __name__ == "__main__":
  main()
