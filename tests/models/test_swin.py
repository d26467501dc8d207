"""Swin: the published count, another implementation's outputs, and the merging of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vitx
from tests.models.vit_pytorch_weights import Weights
from tests.slow import all_but
from vitx.analysis.counting import count_parameters
from vitx.blocks.patch_merging import PatchMerging
from vitx.ops.layout import TokenLayout

SMALL = {"width": 8, "depth": (2, 2), "num_heads": (2, 4), "mlp_ratio": 2}
SMALL |= {"stem": {"name": "linear", "patch": 2}}
WINDOWS = {"name": "shifted_window", "size": 3, "relative_bias": "window"}


@pytest.mark.slow
def test_swin_t_has_the_published_number_of_parameters():
  model = vitx.create_model("swin", num_classes=1000)
  assert count_parameters(model, (1, 224, 224, 3)).total == 28_288_354


def block(w, name, heads):
  prefix = f"{name}.attention.self"
  mixer = {part: w.inward(w[f"{prefix}.{part}.weight"], heads) for part in THREE}
  for part in THREE:
    mixer[part]["bias"] = w[f"{prefix}.{part}.bias"].reshape(heads, -1)
  mixer["out"] = w.outward(f"{name}.attention.output.dense", heads)
  mixer["relative_bias_0"] = w[f"{prefix}.relative_position_bias_table"].T.reshape(heads, 5, 5)
  return {
    "mixer_norm": w.norm(f"{name}.layernorm_before"),
    "token_mixer": mixer,
    "mlp_norm": w.norm(f"{name}.layernorm_after"),
    "mlp": {"up": w.dense(f"{name}.intermediate.dense"), "down": w.dense(f"{name}.output.dense")},
  }


def carried(w):
  """Returns the weights of Hugging Face's network as parameters of ours."""
  params = {
    "stem": {"embed": w.conv("swin.embeddings.patch_embeddings.projection")},
    "stem_norm": w.norm("swin.embeddings.norm"),
    "norm": w.norm("swin.layernorm"),
    "head": w.dense("classifier"),
  }
  for stage, heads in enumerate((2, 4)):
    layer = f"swin.encoder.layers.{stage}"
    for number in range(2):
      params[f"stage_{stage}_block_{number}"] = block(w, f"{layer}.blocks.{number}", heads)
  merge = "swin.encoder.layers.0.downsample"
  params["stage_1_merge"] = {
    "norm": w.norm(f"{merge}.norm"),
    "reduce": w.dense(f"{merge}.reduction"),
  }
  return params


THREE = ("query", "key", "value")


@pytest.mark.parametrize(
  "implementation", ["masked", pytest.param("kernelized", marks=pytest.mark.slow)]
)
def test_swin_equals_transformers(implementation):
  w = Weights("swin")
  mixer = WINDOWS | {"implementation": implementation}
  model = vitx.create_model("swin", num_classes=5, **SMALL, token_mixer=mixer)
  images = jnp.asarray(w.arrays["x"].transpose(0, 2, 3, 1))
  params = carried(w)
  shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), images))["params"]
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)
  logits, out = jax.jit(model.apply)({"params": params}, images), w.arrays["out"]
  np.testing.assert_allclose(logits, out, rtol=0, atol=1e-5 * np.abs(out).max())


def merge(grid, width):
  """Returns the parameters of `PatchMerging`, and a function of them and tokens (B, N, C)."""
  module, layout = PatchMerging(), TokenLayout(grid)
  x = jnp.zeros((1, layout.length, width))
  params = jax.jit(lambda key: module.init(key, x, layout))(jax.random.key(1))
  return params, lambda params, x: module.apply(params, x, layout)


def test_merging_reads_exactly_the_four_neighbors():
  x = np.random.default_rng(0).normal(size=(1, 20, 3)).astype(np.float32)
  params, apply = merge((4, 5), 3)

  def read(x):
    merged, layout = apply(params, x)
    assert merged.shape == (1, 6, 6) and layout == TokenLayout((2, 3))
    return merged

  slopes = jax.jit(jax.jacobian(read))(x)
  felt = np.abs(slopes).sum((0, 2, 3, 5)) > 0  # (6, 20)
  for to in range(6):
    for token in range(20):
      row, column = divmod(token, 5)
      assert felt[to, token] == ((row // 2, column // 2) == divmod(to, 3))


def test_an_odd_grid_is_padded_with_zeros_at_its_end():
  x = np.random.default_rng(0).normal(size=(2, 3, 3, 4)).astype(np.float32)
  padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
  (params, odd), (_, even) = merge((3, 3), 4), merge((4, 4), 4)
  run = jax.jit(lambda p: (odd(p, x.reshape(2, 9, 4))[0], even(p, padded.reshape(2, 16, 4))[0]))
  np.testing.assert_array_equal(*run(params))


def logits(size=12, **fields):
  model = vitx.create_model("swin", num_classes=5, **{**SMALL, "token_mixer": WINDOWS, **fields})
  images = np.zeros((2, size, size, 3), np.float32)
  return jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), images)[0])


@pytest.mark.parametrize(
  "mixer", all_but("performer", "levit", of=("performer", "fnet", "axial", "levit", "cvt"))
)
def test_swin_works_with_other_mixers(mixer):
  assert logits(token_mixer=mixer).shape == (2, 5)


@pytest.mark.parametrize("size", all_but(2, 10, of=(2, 6, 10, 16)))
def test_swin_pads_grids_that_windows_do_not_divide(size):
  assert logits(size, depth=(2, 2, 2), num_heads=2).shape == (2, 5)


def test_swin_works_with_positions():
  assert logits(posemb="learned").shape == logits(posemb="rope").shape == (2, 5)
