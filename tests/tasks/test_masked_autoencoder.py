"""Masked autoencoding: published losses, masks, what a visible token depends on, refusals."""

import dataclasses
import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.drawn import draw_variables
from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.config.errors import ConfigError
from vitx.layers.posemb import sine_cosine_table
from vitx.models import create_model
from vitx.models.masked_autoencoder import count_visible, from_patches, make_autoencoder, to_patches
from vitx.models.vit import ViT
from vitx.ops.layout import TokenLayout
from vitx.tasks import build_task
from vitx.tasks.base import init_variables
from vitx.tasks.settle import complete_config

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "mae.npz")
SMALL = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 16}
DECODER = {**SMALL, "mask_ratio": 0.75, "posemb": "sincos"}
LINEAR = {"name": "linear", "patch": 4}


def network(name="vit", shape=(16, 16, 1), *, decoder=(), **fields):
  body = create_model(name, num_classes=1, **{**SMALL, "stem": LINEAR, **fields})
  return make_autoencoder(body, shape, **{**DECODER, **dict(decoder)})


def published(name, heads):
  """Returns the parameters of a block of the recorded network, in vitx's form."""
  block = {key.removeprefix(name): value for key, value in GOLDEN.items() if key.startswith(name)}

  def linear(key):
    return {"kernel": block[f"{key}.weight"].T, "bias": block[f"{key}.bias"]}

  def norm(key):
    return {"scale": block[f"{key}.weight"], "bias": block[f"{key}.bias"]}

  def project(key):
    flat = linear(f"attention.{key}_proj")
    width = len(flat["bias"])
    shape = (width, heads, width // heads)
    return {"kernel": flat["kernel"].reshape(shape), "bias": flat["bias"].reshape(shape[1:])}

  out = linear("attention.o_proj")
  width = len(out["bias"])
  out["kernel"] = out["kernel"].reshape(heads, width // heads, width)
  mixer = {name: project(name[0]) for name in ("query", "key", "value")}
  return {
    "mixer_norm": norm("layernorm_before"),
    "token_mixer": {**mixer, "out": out},
    "mlp_norm": norm("layernorm_after"),
    "mlp": {"up": linear("mlp.fc1"), "down": linear("mlp.fc2")},
  }


def published_params():
  pair = lambda key, one: {one: GOLDEN[f"{key}.weight"].T, "bias": GOLDEN[f"{key}.bias"]}  # noqa: E731
  patches = "vit.embeddings.patch_embeddings.projection"
  kernel = {"kernel": GOLDEN[f"{patches}.weight"].transpose(2, 3, 1, 0)}
  blocks = {f"block_{i}": published(f"vit.layers.{i}.", 3) for i in range(2)}
  inner = {f"block_{i}": published(f"decoder.decoder_layers.{i}.", 2) for i in range(2)}
  return {
    "stem": {"embed": {**kernel, "bias": GOLDEN[f"{patches}.bias"]}},
    "cls": GOLDEN["vit.embeddings.cls_token"],
    "posemb": {"table": GOLDEN["vit.embeddings.position_embeddings"]},
    **blocks,
    "norm": pair("vit.layernorm", "scale"),
    "decoder": {
      "embed": pair("decoder.decoder_embed", "kernel"),
      "mask_token": GOLDEN["decoder.mask_token"],
      "posemb": {"table": GOLDEN["decoder.decoder_pos_embed"]},
      **inner,
      "norm": pair("decoder.decoder_norm", "scale"),
      "pixels": pair("decoder.decoder_pred", "kernel"),
    },
  }


def make_task(*overrides):
  """Returns the task for gray digits of 16 x 16 pixels in patches of 4 x 4."""
  return build_task(
    runs.tiny(
      "task=masked_autoencoder,task.decoder_width=8,task.decoder_depth=1,task.decoder_heads=2",
      "augment.mixup=0.0,model.width=8,model.num_classes=1,data.image_size=16,data.decode_size=16",
      "data.channels=1,data.mean=(0.5,),data.std=(0.25,)",
      *overrides,
    )
  )


def test_the_loss_equals_that_of_transformers():
  """The code of `ViTMAEForPreTraining` had equal weights, images and masks."""
  task = make_task(
    "task.decoder_posemb=learned,task.decoder_depth=2",
    "stem.patch=6,model.width=12,model.depth=2,model.num_heads=3,model.mlp_dim=48,pool=cls",
    "data.image_size=24,data.decode_size=24,data.channels=3",
    "data.mean=(0.0,0.0,0.0),data.std=(1.0,1.0,1.0)",
  )
  images, masked = GOLDEN["images"], GOLDEN["masked"]
  params = published_params()
  shapes = jax.eval_shape(task.model.init, jax.random.key(0), images)["params"]
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)

  @jax.jit
  def run(params):
    predicted = task.model.apply({"params": params}, images, masked)
    pair = [dataclasses.replace(task, normalize_pixels=normalized) for normalized in (True, False)]
    return predicted, [jnp.mean(one.errors(predicted, images, masked)) for one in pair]

  predicted, losses = run(params)
  np.testing.assert_allclose(predicted, GOLDEN["predicted"], atol=2e-5)
  expected = [GOLDEN["loss_normalized"], GOLDEN["loss_plain"]]
  np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_fixed_positions_equal_those_of_transformers():
  """transformers puts the columns into the first half of the channels, and vitx the rows."""
  stored = GOLDEN["decoder_positions"][0]
  swapped = np.roll(stored, 4, axis=1)
  np.testing.assert_allclose(sine_cosine_table(TokenLayout((4, 4), 1), 8), swapped, atol=1e-6)


STEMS = {
  "linear": {"stem": LINEAR},
  "conv": {"stem": {"name": "conv", "channels": (4, 8), "strides": (2, 2)}},
  "cct": {"stem": {"name": "cct", "channels": (4,)}},
  "registers": {"stem": LINEAR, "pool": "cls", "extra_tokens": 2},
}


@pytest.mark.parametrize("stem", all_but("linear", of=STEMS))
def test_no_prediction_depends_on_a_masked_pixel(stem):
  """Convolutions overlap, so masked pixels must be hidden before the stem."""
  model = network(**STEMS[stem])
  random = np.random.default_rng(0)
  images, other = random.normal(size=(2, 2, 16, 16, 1)).astype(np.float32)
  masked = np.stack([random.permutation(16) >= 4 for _ in range(2)])
  hidden = np.repeat(np.repeat(masked.reshape(2, 4, 4), 4, 1), 4, 2)[..., None]
  variables = draw_variables(model.init, images)
  run = jax.jit(model.apply)
  output = run(variables, images, masked)
  np.testing.assert_array_equal(run(variables, np.where(hidden, other, images), masked), output)
  changed = np.abs(run(variables, np.where(hidden, images, other), masked) - output)
  assert changed.max() > 1e-3 and output.shape == (2, 16, 16)


def test_visible_tokens_keep_their_positions():
  """Changed positions of some patches change the tokens only of the image that shows them."""
  model = network(posemb="learned", pool="mean")
  images = np.ones((2, 16, 16, 1), np.float32)
  masked = np.ones((2, 16), bool)
  masked[0, :4] = masked[1, 8:12] = False
  variables = draw_variables(model.init, images)
  table = np.zeros_like(variables["params"]["posemb"]["table"])
  run = jax.jit(lambda table: tokens_of(model, with_table(variables, table), images, masked))
  same = lambda a, b: np.allclose(a, b, atol=1e-5)  # noqa: E731
  plain = run(table)
  assert plain.shape == (2, 4, 8)  # the encoder sees the visible patches alone
  assert same(plain[0], plain[1])
  table = table.copy()
  table[:, :4, 0] = 1.0  # the positions of the first image's visible patches
  moved = run(table)
  assert same(moved[1], plain[1]) and not same(moved[0], plain[0])


def with_table(variables, table):
  return {"params": variables["params"] | {"posemb": {"table": table}}}


def tokens_of(model, variables, images, masked):
  """Returns the tokens after the encoder's only block."""
  sown = model.apply(variables, images, masked, mutable=["intermediates"])[1]
  (tokens,) = sown["intermediates"]["tokens"]
  return tokens


@pytest.mark.parametrize(("ratio", "visible"), [(0.75, 4), (0.9, 1), (0.01, 15)])
def test_masks_have_one_size_and_differ(ratio, visible):
  task = make_task(f"task.mask_ratio={ratio}")
  keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 200)
  masks = np.asarray(jax.jit(task.draw_masks)(keys))
  np.testing.assert_array_equal((~masks).sum(axis=1), visible)
  assert len(np.unique(masks, axis=0)) >= 15
  share = masks.mean(axis=0)  # each patch is masked equally often
  assert np.abs(share - (16 - visible) / 16).max() < 0.12


@pytest.mark.parametrize(("ratio", "grid", "visible"), [(0.8, (5, 5), 5), (0.9, (2, 5), 1)])
def test_a_whole_number_of_visible_patches_is_exact(ratio, grid, visible):
  """In floats, 1 - 0.8 is a little less than 0.2, and 1 - 0.9 a little less than 0.1."""
  assert count_visible(math.prod(grid), ratio) == visible


def test_a_mask_of_training_follows_from_the_key_and_the_index():
  task, key = make_task(), jax.random.key(3, impl="threefry2x32")
  image = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 1), np.uint8)
  draw = jax.jit(lambda key, index: task.draw({"image": image, "index": index}, key))
  images, masks = draw(key, np.arange(4, dtype=np.int32))
  other_images, other_masks = draw(key, np.array([3, 2, 1, 0], np.int32))
  np.testing.assert_array_equal(other_masks, masks[::-1])
  assert not np.array_equal(
    draw(jax.random.fold_in(key, 1), np.arange(4, dtype=np.int32))[1], masks
  )
  assert images.shape == other_images.shape == (4, 16, 16, 1)


def test_a_mask_of_evaluation_follows_from_the_image_alone():
  task = make_task()
  image = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 1), np.uint8)
  image[5] = image[0]
  image[5, 0, 0] ^= 1  # one bit of one pixel
  batch = {"image": image, "mask": np.array([True] * 5 + [False])}
  variables = draw_variables(partial(init_variables, task))
  evaluate = jax.jit(lambda batch: task.evaluate(variables["params"], {}, {}, batch))
  result = evaluate(batch)
  losses = np.asarray(result["rows"]["loss"])
  assert result["sums"]["count"] == 5
  np.testing.assert_allclose(result["sums"]["loss"], losses[:5].sum(), rtol=1e-6)
  backward = evaluate({"image": image[::-1], "mask": batch["mask"]})["rows"]["loss"]
  np.testing.assert_allclose(backward[::-1], losses, rtol=1e-6)
  masks = np.asarray(jax.jit(task.masks_of)(image))
  assert len(np.unique(masks, axis=0)) == 6
  figures = task.summarize(jax.device_get(result["sums"]))
  assert figures == {"examples": 5, "loss": pytest.approx(losses[:5].mean())}


@pytest.mark.parametrize("normalized", all_but(True, of=(True, False)))
def test_a_reconstruction_shows_visible_pixels_and_predicted_ones(normalized, monkeypatch):
  """A perfect prediction gives the image, and a prediction of zeros a patch of one gray level.

  This is the patch's own mean if the pixels are normalized, and 0.5 otherwise.
  """
  task = make_task(f"task.normalize_pixels={normalized}")
  batch = {"image": np.random.default_rng(0).integers(0, 256, (2, 16, 16, 1), np.uint8)}
  images = task.model_inputs(batch)
  target = to_patches(images, (4, 4))
  np.testing.assert_array_equal(from_patches(target, (4, 4), (16, 16, 1)), images)
  mean, std = task._moments(target)

  def respond(predicted):
    monkeypatch.setattr(type(task.model), "apply", lambda self, *arguments, **options: predicted)
    return task.respond({}, {}, batch)

  perfect = respond((target - mean) / std)
  np.testing.assert_allclose(perfect["loss"], 0, atol=1e-6)
  np.testing.assert_allclose(perfect["reconstruction"], perfect["image"], atol=1e-5)
  np.testing.assert_allclose(perfect["image"], batch["image"] / 255, atol=1e-5)
  blank = respond(jnp.zeros_like(target))
  masked = np.asarray(blank["masked"])
  assert masked.mean() == 0.75
  shown = np.asarray(blank["reconstruction"])
  np.testing.assert_array_equal(shown[~masked], np.asarray(blank["image"])[~masked])
  flat = np.asarray(task._to_pixels(from_patches(mean + 0 * target, (4, 4), (16, 16, 1))))
  np.testing.assert_allclose(shown[masked], flat[masked] if normalized else 0.5, atol=1e-5)


SEQUENCES = ("cct", "distilled_vit", "levit", "lv_vit", "vit")


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_body_of_one_sequence_is_used_without_its_head(name):
  images = np.zeros((1, 16, 16, 1), np.float32)
  model = network(name, token_mixer="softmax")
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)
  body = create_model(name, num_classes=1, stem=LINEAR, token_mixer="softmax", **SMALL)
  alone = jax.eval_shape(body.init, jax.random.key(0), images)
  heads = {"head", "head_distillation", "head_patches", "pool"}
  assert shapes["params"].keys() - {"decoder"} == alone["params"].keys() - heads


def test_a_body_of_feature_maps_is_refused():
  message = f"visible patches alone, which .* does not allow; .* one of {', '.join(SEQUENCES)}\\."
  with pytest.raises(ConfigError, match=message):
    make_autoencoder(create_model("resnet", num_classes=1, depth=8), (16, 16, 1), **DECODER)


class Own(ViT):
  """A body with its own `encode`, which the autoencoder would not call."""

  def encode(self, images, *, mask, train):
    return super().encode(images, mask=mask, train=train)


FITTING = ("linear_transformer", "locality", "performer", "shaped", "softmax", "xcit")
NEEDED = {
  "linformer": {"slots": 4},
  "nystromformer": {"landmarks": 4},
  "pattern": {"edges": "window"},
  "watts_strogatz": {"neighbors": 4},
}


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_every_mixer_is_used_or_refused(name):
  mixer = {"name": name, **NEEDED.get(name, {})}
  if name in FITTING:
    model, images = network(token_mixer=mixer), np.zeros((1, 16, 16, 1), np.float32)
    masked = np.arange(16)[None] >= 4
    shapes = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), images, masked))
    assert shapes[0].shape == (1, 16, 16)
    return
  with pytest.raises(ConfigError, match=f"does not allow; .* one of {', '.join(FITTING)}\\."):
    network(token_mixer=mixer)


REFUSED = (
  ({"name": f"{__name__}:Own"}, r"Own does not allow"),
  (
    {"token_reduction": {"name": "evit", "layers": (0,)}, "pool": "cls"},
    r"model\.token_reduction removes tokens that the decoder",
  ),
  ({"stem": {"name": "linear", "patch": 16}}, r"leaves 0 of 1 patches visible"),
)


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_an_impossible_encoder_is_refused(fields, message):
  images, masked = np.zeros((1, 16, 16, 1), np.float32), np.arange(16)[None] >= 4
  with pytest.raises(ConfigError, match=message):
    jax.eval_shape(network(**fields).init, jax.random.key(0), images, masked)


@pytest.mark.parametrize("classes", [1, 10])
def test_a_plan_of_a_stored_config_opens_no_data(classes):
  """The config of a run on labeled images states their number of classes."""
  config = runs.tiny(
    f"task=masked_autoencoder,data.source=folder:nowhere,model.num_classes={classes}",
    "data.image_size=16,data.decode_size=16,data.channels=1,augment.mixup=0.0",
  )
  complete = complete_config(config)
  assert complete.model.num_classes == classes and complete.data.image_size == 16


PLACED = (
  ({"token_mixer": {"name": "performer", "local_heads": 1}}, r"token_mixer\.local_heads=1"),
  ({"token_mixer": {"name": "locality", "edges": "neighborhood"}}, r"edges='neighborhood'"),
  ({"token_mixer": {"name": "softmax", "relative_bias": "axial"}}, r"relative_bias='axial'"),
  ({"posemb": "rope"}, r"rotary='sequence'"),
)


@pytest.mark.parametrize(("fields", "field"), PLACED)
def test_a_mixer_that_needs_places_is_refused(fields, field):
  """The visible tokens are a sequence with gaps, in which neighbors are not near."""
  model, masked = network(**fields), np.arange(16)[None] >= 4
  with pytest.raises(ConfigError, match=f"{field} needs the places"):
    jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 16, 16, 1), np.float32), masked)
