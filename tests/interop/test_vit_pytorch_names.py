"""State dicts of vit-pytorch, with its own attention and with that of other packages."""

import jax
import numpy as np
import pytest

from tests.attention.golden import close, load
from tests.interop.published import shapes_of
from tests.slow import all_but
from vitx.checkpoints.tree import name_leaves, nest
from vitx.config.errors import ConfigError
from vitx.interop import foreign_names
from vitx.interop.export import write_safetensors
from vitx.interop.foreign import guess_layout
from vitx.interop.init_from import Fit, initial_variables
from vitx.interop.transfer import transfer
from vitx.models import create_model
from vitx.ops.layout import TokenLayout

EPSILON = dict(name="layer", epsilon=1e-5)
SOFTMAX = dict(name="softmax", use_bias=False)


def network(**fields):
  settings = dict(width=12, depth=2, num_heads=2, norm=EPSILON, stem=dict(name="linear", patch=2))
  return create_model("vit", num_classes=5, **(settings | fields))


def fill(model, theirs, side=8):
  """Returns the arrays of a state dict as our variables; each of them must fit."""
  ours, unused = foreign_names.to_ours(theirs, model.num_heads)
  assert unused == []
  blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), dict(shapes_of(model, side)))
  source = nest(ours)
  target = {name: x for name, x in blank.items() if name != "features"}
  _, report = transfer(target, {name: x for name, x in source.items() if name in target})
  assert not (report.skipped or report.new or report.unused or report.resized or report.head)
  return source


@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("vit", dict(mlp_dim=20, token_mixer=SOFTMAX | dict(head_dim=4))),
    # BBViT and the ViT beside it, which differ in attention, pool by the mean of all tokens.
    ("bbvit_vit", dict(mlp_dim=24, token_mixer=SOFTMAX, pool="mean_of_all", pool_first=True)),
  ],
)
def test_outputs_are_those_of_vit_pytorch(name, fields):
  g = load(f"model_{name}")
  images, out = g.pop("x").transpose(0, 2, 3, 1), g.pop("out")
  model = network(**fields)
  variables = fill(model, g)
  close(jax.jit(model.apply)(variables, images), out)
  assert foreign_names.find_family(g) == "vit_pytorch"
  assert guess_layout(variables).grid == (4, 4)


def test_there_and_back_is_the_identity():
  g = load("model_vit")
  theirs = {name: x for name, x in g.items() if name not in ("x", "out")}
  ours, _ = foreign_names.to_ours(theirs, 2)
  back = foreign_names.to_theirs(ours, "vit_pytorch")
  jax.tree.map(np.testing.assert_array_equal, back, theirs)


MIXERS = {
  "performer_softmax": dict(name="performer", features=5),
  "linformer_shared": dict(
    name="linformer", slots=5, share_kv=True, one_kv_head=True, use_bias=False
  ),
  "linformer_separate": dict(name="linformer", slots=5, use_bias=False),
  "nystrom_padded": dict(name="nystromformer", landmarks=4, kernel_size=5, use_bias=False),
  "big_bird": dict(name="bigbird", block=4, random=2, out_projection=False),
}
INPUTS = ("x", "out", "mask", "masked_out", "drawn", "edges", "cotangent")


@pytest.mark.parametrize("name", all_but("linformer_shared", "big_bird", of=MIXERS))
def test_attention_of_other_packages_is_read(name):
  """The recorded mixer is put into both blocks of a ViT; each of its arrays has a place."""
  arrays = {
    key: x for key, x in load(name).items() if key not in INPUTS and not key.startswith("grad.")
  }
  tokens = 9 if "linformer" in name else 17
  model = network(
    width=16,
    num_heads=4,
    mlp_dim=8,
    token_mixer=MIXERS[name],
    pool="mean" if tokens == 9 else "cls",
  )
  side = 6 if tokens == 9 else 8
  theirs = shell(tokens, "cls" if tokens == 17 else "mean", arrays)
  variables = fill(model, theirs, side)
  if name == "performer_softmax":
    projection = variables["features"]["block_1"]["token_mixer"]["projection"]
    np.testing.assert_array_equal(projection, arrays["fast_attention.projection_matrix"])
  leaves = name_leaves(variables)
  for part, module in (("query", "to_q"), ("out", "to_out")):
    if f"{module}.weight" in arrays:
      kernel = leaves[f"params/block_0/token_mixer/{part}/kernel"]
      turned = kernel.reshape(16, -1).T
      np.testing.assert_array_equal(turned, arrays[f"{module}.weight"])


def shell(tokens, pool, mixer=None, width=16, hidden=8):
  """Returns a state dict of vit-pytorch with two blocks, each with the arrays of a mixer."""
  shapes = {
    "pos_embedding": (1, tokens, width),
    "to_patch_embedding.1.weight": (width, 12),
    "to_patch_embedding.1.bias": (width,),
    "mlp_head.0.weight": (width,),
    "mlp_head.0.bias": (width,),
    "mlp_head.1.weight": (5, width),
    "mlp_head.1.bias": (5,),
  }
  if pool == "cls":
    shapes["cls_token"] = (1, 1, width)
  for block in range(2):
    layer = f"transformer.layers.{block}"
    for norm in (f"{layer}.0.norm", f"{layer}.1.norm"):
      shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    shapes |= {f"{layer}.1.fn.net.0.weight": (hidden, width), f"{layer}.1.fn.net.0.bias": (hidden,)}
    shapes |= {f"{layer}.1.fn.net.3.weight": (width, hidden), f"{layer}.1.fn.net.3.bias": (width,)}
  arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
  for block in range(2):
    arrays |= {f"transformer.layers.{block}.0.fn.{key}": x for key, x in (mixer or {}).items()}
  return arrays


def test_fixed_features_of_performer_are_taken_over(tmp_path):
  """VisionXformer saves fixed features as a buffer; the other state of the features stays new."""
  arrays = {key: x for key, x in load("performer_softmax").items() if key not in INPUTS}
  theirs = shell(17, "cls", arrays)
  write_safetensors(tmp_path / "vip.safetensors", theirs)
  model = network(width=16, num_heads=4, mlp_dim=8, token_mixer=MIXERS["performer_softmax"])
  blank = jax.tree.map(lambda x: np.full(x.shape, 7, x.dtype), dict(shapes_of(model, 8)))
  source = str(tmp_path / "vip.safetensors")
  state = initial_variables(source, blank, Fit(layout=TokenLayout((4, 4), 1)))
  features = state["features"]["block_1"]["token_mixer"]
  np.testing.assert_array_equal(features["projection"], arrays["fast_attention.projection_matrix"])
  np.testing.assert_array_equal(features["seed"], [7, 7])


@pytest.mark.parametrize(("columns", "channels", "side"), [(3, 3, 1), (12, 3, 2), (16, 1, 4)])
def test_patches_run_their_channels_fastest(columns, channels, side):
  theirs = shell(17, "cls")
  weight = np.arange(16 * columns, dtype=np.float32).reshape(16, columns)
  theirs["to_patch_embedding.1.weight"] = weight
  kernel = foreign_names.to_ours(theirs, 4)[0]["params/stem/embed/kernel"]
  assert kernel.shape == (side, side, channels, 16)
  np.testing.assert_array_equal(kernel[-1, 0, :, 5], weight[5].reshape(side, side, channels)[-1, 0])


def test_patches_without_a_square_are_refused():
  theirs = shell(17, "cls") | {"to_patch_embedding.1.weight": np.ones((16, 10), np.float32)}
  with pytest.raises(ConfigError, match=r"to_patch_embedding\.1\.weight of the shape \[16, 10\]"):
    foreign_names.to_ours(theirs, 4)
