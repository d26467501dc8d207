"""vitx's networks, filled with the weights that tests/golden/record_*.py recorded."""

import functools
from pathlib import Path

import jax
import numpy as np

from vitx.checkpoints.store import CheckpointStore
from vitx.interop.init_from import Fit, initial_variables
from vitx.models import create_model, initialize
from vitx.ops.layout import TokenLayout
from vitx.training import restore
from vitx.training.experiment import make_experiment

GOLDEN = Path(__file__).parents[1] / "golden"
SIZE = dict(num_classes=5, width=12, depth=2, num_heads=3, mlp_dim=48)
LINEAR = dict(name="linear", patch=8)
DINOV2 = dict(
  num_classes=12,  # the file has no head, so these are the features, see `fill`
  stem=dict(name="linear", patch=14),
  block=dict(name="pre_norm", layer_scale=1e-5),
)
DINOV3 = dict(
  num_classes=24,
  width=24,
  mlp_dim=96,
  stem=LINEAR,
  extra_tokens=4,
  norm=dict(name="layer", epsilon=1e-5),
  posemb=dict(name="rope", kind="centered", base=100.0),
  block=dict(name="pre_norm", layer_scale=1e-5),
  token_mixer=dict(name="softmax", key_bias=False),
)
SIGLIP = dict(
  num_classes=24,
  width=24,
  mlp_dim=96,
  stem=LINEAR,
  block=dict(name="pre_norm", activation="gelu_tanh"),
  pool=dict(name="map", num_heads=3, activation="gelu_tanh"),
)
REGISTERS = DINOV2 | dict(extra_tokens=4, posemb=dict(name="learned", prefix=False))
NETWORKS = {
  "timm_vit": ("vit", dict(stem=LINEAR)),
  "timm_distilled": ("distilled_vit", dict(stem=LINEAR)),
  "lv_vit": (
    "lv_vit",
    dict(
      mlp_dim=36,
      stem=dict(name="normalized", channels=(4, 4, 4), patch=4),
      norm=dict(name="layer", epsilon=1e-5),
      token_mixer=dict(name="softmax", use_bias=False),
    ),
  ),
  "augreg": ("vit", dict(stem=LINEAR, block=dict(name="pre_norm", activation="gelu_tanh"))),
  "timm_dinov2": ("vit", DINOV2),
  "timm_registers": ("vit", REGISTERS),
  "dinov2_registers": ("vit", REGISTERS),
  "transformers_vit": ("vit", dict(stem=LINEAR)),
  "transformers_deit": ("distilled_vit", dict(stem=LINEAR)),
  "transformers_dinov2": ("vit", REGISTERS),
  "transformers_dinov3": ("vit", DINOV3),
  "transformers_siglip": ("vit", SIGLIP),
  "timm_mixer": (
    "vit",
    dict(stem=LINEAR, posemb="none", pool="mean", token_mixer=dict(name="mlp_mixing", hidden=6)),
  ),
  "timm_convmixer": ("convmixer", dict(kernel=3, patch=8)),
}
FILES = {name: str(GOLDEN / f"{name}.safetensors") for name in NETWORKS}
FILES["augreg"] = str(GOLDEN / "augreg_weights.npz")
OUTPUTS = {
  name: GOLDEN / f"{'registers' if 'registers' in name else name}.npz" for name in NETWORKS
}
_PREFIX = {"timm_distilled": 2, "timm_registers": 5, "dinov2_registers": 5, "timm_mixer": 0}
_PREFIX |= {"transformers_deit": 2, "transformers_dinov2": 5, "transformers_dinov3": 5}
_PREFIX["transformers_siglip"] = 0
LAYOUTS = {name: TokenLayout((3, 3), _PREFIX.get(name, 1)) for name in NETWORKS}
LAYOUTS["timm_convmixer"] = None
FRESH = 0.25  # the value of all new variables, so that no initialization is compiled
OF_14 = ("timm_dinov2", "timm_registers", "dinov2_registers", "transformers_dinov2")
TOWERS = ("transformers_dinov3", "transformers_siglip")
HEADLESS = (*OF_14, *TOWERS)


def make(name, side=None, **fields):
  """Returns a network, and its variables, which are all `FRESH`."""
  kind, settings = NETWORKS[name]
  settings = {**SIZE, **settings, **fields}
  if kind == "convmixer":
    settings = {key: settings[key] for key in settings if key not in ("num_heads", "mlp_dim")}
  model = create_model(kind, **settings)
  shapes = shapes_of(model, side or (42 if name in OF_14 else 24))
  return model, jax.tree.map(lambda x: np.full(x.shape, FRESH, x.dtype), dict(shapes))


@functools.cache
def shapes_of(model, side, channels=3):
  """Returns the shapes of a network's variables; equal networks are traced only once."""
  images = np.zeros((1, *np.broadcast_to(side, 2), channels), np.float32)
  return jax.eval_shape(lambda key: initialize(model, key, images), jax.random.key(0))


@functools.partial(jax.jit, static_argnums=0)
def run(model, variables, images):
  """Returns the logits of a network; equal networks are compiled only once."""
  return model.apply(variables, images)


def fill(name, side=None, layout=None, allowed=(), **fields):
  """Returns a network and the variables of a recorded file.

  If the file has no head, the head of the network is the identity.
  """
  model, variables = make(name, side, **fields)
  fit = Fit(allowed, model, layout or LAYOUTS[name])
  variables = initial_variables(FILES[name], variables, fit)
  if name in HEADLESS:
    classes = model.num_classes
    head = {"kernel": np.eye(model.width, classes), "bias": np.zeros(classes)}
    variables["params"]["head"] = head
  return model, variables


def begin(config, workdir):
  """Calls `restore.begin` for a new run, as training does; nothing is compiled.

  All new variables are `FRESH`.
  """
  experiment = make_experiment(config)
  restore.check_beginning(experiment, str(workdir), writes=True)
  state = jax.tree.map(lambda x: np.full(x.shape, FRESH, x.dtype), experiment.named_shapes())
  with CheckpointStore(Path(workdir) / "checkpoints") as store:
    return restore.begin(experiment, str(workdir), store, lambda: lambda: state)


def golden(name):
  """Returns images (B, height, width, 3), and the outputs that the file's own code gave."""
  with np.load(OUTPUTS[name]) as file:
    return file["images"], file["logits"]
