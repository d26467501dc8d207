"""Published weights that are read in a wrong way give other outputs, although all shapes fit."""

import jax
import numpy as np
import pytest

from configs import imagenet
from tests.interop.exported import GOLDEN, images, make
from tests.interop.published import fill, golden, run
from vitx.blocks.stems import NormalizedStem
from vitx.models import create_model

TOLERANCE = 2e-5  # as a share of the largest logit; correct weights have less error


def error(model, variables, name):
  """Returns the largest error of the logits, as a share of the largest recorded logit."""
  pixels, expected = golden(name)
  logits = run(model, variables, pixels)
  return np.abs(logits - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
  ("name", "block"),
  [
    ("timm_vit", dict(name="pre_norm", activation="gelu_tanh")),
    ("augreg", dict(name="pre_norm", activation="gelu")),
  ],
)
def test_the_exact_gelu_and_its_approximation_differ(name, block):
  assert error(*fill(name, block=block), name) > 2 * TOLERANCE


def test_the_epsilon_of_the_normalization_matters():
  """timm made the recorded network with an epsilon of 1e-3; its default gives other outputs."""
  model, variables, _ = make("vit")
  with np.load(GOLDEN / "exported.npz") as file:
    expected = file["vit"]
  right, wrong = (
    np.abs(run(other, variables, images()) - expected).max() / np.abs(expected).max()
    for other in (model, model.clone(norm=create_model("vit", num_classes=5).norm))
  )
  assert right < TOLERANCE and wrong > 10 * TOLERANCE


@pytest.mark.parametrize("row", imagenet.ROWS)
def test_rows_have_the_epsilon_of_their_code(row):
  config = imagenet.get_config(row)
  assert config.model.norm.epsilon == (1e-5 if row.startswith("lv") else 1e-6)


def swapped(variables, first, second):
  """Returns the variables with two projections exchanged in every block."""
  params = dict(variables["params"])
  for name in ("block_0", "block_1"):
    mixer = params[name]["token_mixer"]
    exchanged = {first: mixer[second], second: mixer[first]}
    params[name] = params[name] | {"token_mixer": mixer | exchanged}
  return variables | {"params": params}


def interleaved(variables):
  """Returns the variables with each head's channels taken from all heads in turn."""
  params = dict(variables["params"])
  for name in ("block_0", "block_1"):
    mixer = dict(params[name]["token_mixer"])
    for part in ("query", "key", "value"):
      mixer[part] = jax.tree.map(
        lambda x: np.swapaxes(np.reshape(x, (*x.shape[:-2], *x.shape[:-3:-1])), -1, -2), mixer[part]
      )
    params[name] = params[name] | {"token_mixer": mixer}
  return variables | {"params": params}


def test_the_layout_of_queries_keys_and_values_matters():
  model, variables = fill("timm_vit")
  assert error(model, variables, "timm_vit") < TOLERANCE
  assert error(model, swapped(variables, "key", "value"), "timm_vit") > 100 * TOLERANCE
  # Queries and keys exchanged transpose the logits.
  assert error(model, swapped(variables, "query", "key"), "timm_vit") > 100 * TOLERANCE
  assert error(model, interleaved(variables), "timm_vit") > 100 * TOLERANCE


def test_the_stem_is_padded_on_both_sides():
  """PyTorch pads 3 and 3; "SAME" at stride 2 pads 2 and 3."""
  stem = NormalizedStem(8, channels=(4, 4, 4), patch=4)

  @jax.jit
  def convolved(key, x):
    """Returns the output of the stem's first convolution, and its outputs with two paddings."""
    variables = stem.init(key, x)
    _, seen = stem.apply(variables, x, capture_intermediates=True, mutable=["intermediates"])
    kernel = variables["params"]["conv_0"]["kernel"]
    dimensions = ("NHWC", "HWIO", "NHWC")
    return seen["intermediates"]["conv_0"]["__call__"][0], *(
      jax.lax.conv_general_dilated(x, kernel, (2, 2), padding, dimension_numbers=dimensions)
      for padding in (((3, 3), (3, 3)), "SAME")
    )

  x = np.random.default_rng(0).normal(size=(1, 24, 24, 3)).astype(np.float32)
  output, right, wrong = convolved(jax.random.key(1), x)
  np.testing.assert_allclose(output, right, atol=1e-5)
  assert np.abs(output - wrong).max() > 0.1


@pytest.mark.parametrize(
  "order",
  [
    [0, *(1 + np.arange(9).reshape(3, 3).T.reshape(-1))],  # column by column
    [*range(1, 10), 0],  # the class token last
  ],
)
def test_the_order_of_the_tokens_matters(order):
  model, variables = fill("timm_vit")
  params = variables["params"]
  table = {"table": params["posemb"]["table"][:, np.asarray(order)]}
  moved = variables | {"params": params | {"posemb": table}}
  assert error(model, moved, "timm_vit") > 100 * TOLERANCE


def test_registers_follow_the_class_token():
  """Registers have no positions: they may exchange places, but not with the class token."""
  model, variables = fill("timm_registers")
  params = variables["params"]
  turned = params | {"extra": params["extra"][:, ::-1]}
  assert error(model, variables | {"params": turned}, "timm_registers") < TOLERANCE
  exchanged = params | {
    "cls": params["extra"][:, :1],
    "extra": np.concatenate([params["cls"], params["extra"][:, 1:]], axis=1),
  }
  assert error(model, variables | {"params": exchanged}, "timm_registers") > 100 * TOLERANCE
