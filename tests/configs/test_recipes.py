"""vitx's own recipes have the sizes of the networks in their names, on any data set."""

import jax
import numpy as np
import pytest

from configs import cifar10, imagenet, small_data
from tests.configs.test_vix_rows import SOURCES, check_step, count, count_by_layers, source_of
from tests.slow import all_but
from vitx.analysis import cost
from vitx.data import order
from vitx.data.dataset import DatasetInfo
from vitx.data.images.settings import image_spec
from vitx.models import model_from_config
from vitx.tasks import build_task
from vitx.tasks.settle import complete_config, resolve
from vitx.training.optim.schedules import make_schedule
from vitx.training.trial import make_training_step

COUNTS = {
  (cifar10, "vit"): 591_946,
  (cifar10, "cct_2_3x2"): 283_723,
  (cifar10, "cct_4_3x2"): 482_123,
  (cifar10, "cct_7_3x1"): 3_760_139,
  (cifar10, "vit_lite_7_4"): 3_716_874,
  (cifar10, "swin"): 2_643_758,
  (cifar10, "resnet20"): 269_722,
  (cifar10, "resnet56"): 853_018,
  (cifar10, "convmixer"): 594_186,
  (cifar10, "fast"): 416_450,
  (cifar10, "fast_resnet20"): 269_722,
  (cifar10, "fast_convmixer"): 170_634,
  # Two matrices (197, 49) in each layer.
  (imagenet, "deit_s_linformer"): 22_050_664 + 12 * 2 * 197 * 49,
  # The authors' code: 9 x 296,448 in the blocks, and 12 temperatures in each layer of `l_`.
  (small_data, "cifar10_vit"): 2_692_426,
  (small_data, "cifar10_s_vit"): 2_729_770,
  (small_data, "cifar10_l_vit"): 2_692_426 + 9 * 12,
  (small_data, "cifar10_sl_vit"): 2_729_770 + 9 * 12,
  (small_data, "cifar100_vit"): 2_709_796,
  (small_data, "cifar100_s_vit"): 2_747_140,
  (small_data, "cifar100_l_vit"): 2_709_796 + 9 * 12,
  (small_data, "cifar100_sl_vit"): 2_747_140 + 9 * 12,
  (small_data, "tiny_vit"): 2_756_744,
  (small_data, "tiny_s_vit"): 2_906_120,
  (small_data, "tiny_l_vit"): 2_756_744 + 9 * 12,
  (small_data, "tiny_sl_vit"): 2_906_120 + 9 * 12,
}
COUNTS |= {
  (imagenet, row): figures["parameters"]
  for row, figures in imagenet.PUBLISHED.items()
  if "parameters" in figures
}
# Rows that differ only in their size.
LIKE = dict.fromkeys(("deit_s", "deit_b"), "deit_ti") | {"lv_vit_m": "lv_vit_s"}
LIKE |= dict.fromkeys(("deit_s_distilled", "deit_b_distilled"), "deit_ti_distilled")
# One row of each recipe, with few layers, and the rows that share the recipe.
SHALLOW = {
  (cifar10, "vit,model.depth=1"): (),
  (cifar10, "cct_2_3x2,model.depth=1"): ("cct_4_3x2", "vit_lite_7_4"),
  (cifar10, "cct_7_3x1,model.depth=1"): (),
  (cifar10, "swin,model.depth=(1,1,1)"): (),
  (cifar10, "resnet20,model.depth=8"): ("resnet56",),
  (cifar10, "convmixer,model.depth=1"): (),
  (cifar10, "fast,model.depth=1,schedule.warmup=1 epochs"): (),
  (cifar10, "fast_resnet20,model.depth=8,schedule.warmup=1 epochs"): (),
  (cifar10, "fast_convmixer,model.depth=1,schedule.warmup=1 epochs"): (),
  (imagenet, "deit_ti,model.depth=1"): imagenet.DEIT_ROWS[1:],
  (imagenet, "lv_vit_t,model.depth=1"): ("lv_vit_s", "lv_vit_m"),
  (small_data, "cifar10_sl_vit,model.depth=1"): small_data.ROWS[:3],
  (small_data, "tiny_sl_vit,model.depth=1"): small_data.ROWS[8:11],
}


def test_every_row_has_a_count():
  files = (cifar10, imagenet, small_data)
  assert set(COUNTS) == {(file, row) for file in files for row in file.ROWS}


@pytest.mark.parametrize(("file", "row"), all_but("swin", "deit_ti", of=COUNTS))
def test_rows_have_these_numbers_of_parameters(file, row):
  config = file.get_config(row)
  parameters = count(config).total if file is cifar10 else count_by_layers(config)
  assert parameters == COUNTS[file, row]
  published = file.PUBLISHED.get(row, {})
  assert round(parameters / 1e6, 2) == published.get("parameters_m", round(parameters / 1e6, 2))


@pytest.mark.parametrize(("file", "row"), all_but("vit,model.depth=1", of=SHALLOW))
def test_a_step_of_the_recipe_traces(file, row):
  config = complete_config(file.get_config(row))
  state, metrics = jax.eval_shape(*make_training_step(config))
  assert metrics["loss"].shape == () and "kernel" in state.params["head"]
  schedule = make_schedule(config.schedule, 64000, 391)
  shares = jax.jit(jax.vmap(schedule))(np.arange(0, 64000, 391))
  # timm's cosine begins at epoch 0, so that after the warm-up it has fallen a little.
  tolerance = 4e-3 if config.schedule.name == "epoch_cosine" else 2e-3
  assert shares.max() == pytest.approx(1, rel=tolerance) and shares[-1] < 0.05


@pytest.mark.parametrize("row", ["tiny_vit", "tiny_sl_vit"])
def test_rows_have_the_published_multiply_adds(row):
  """The authors' counts, by an unknown counter, exceed those of the products alone by 0.2 %."""
  config = complete_config(small_data.get_config(row))
  model = model_from_config(config.model)
  images = jax.ShapeDtypeStruct((1, 64, 64, 3), np.float32)
  variables = jax.eval_shape(model.init, jax.random.key(0), images)
  macs = cost.flops(model.apply, variables, images) / 2e6
  assert macs == pytest.approx(small_data.PUBLISHED[row]["multiply_adds_m"], rel=2e-3)


def test_recipes_are_shared():
  for (file, text), others in SHALLOW.items():
    recipe = file.get_config(text.split(",")[0]).to_dict()
    for row in others:
      assert file.get_config(row).to_dict() | {"model": recipe["model"]} == recipe, row


@pytest.mark.parametrize(("row", "decoded"), [("deit_ti", 256), ("lv_vit_t", 248)])
def test_images_of_imagenet_are_cropped_once_on_the_host(row, decoded):
  """A training crop has the model's size; an evaluation image has timm's size of resized images."""
  names = tuple(map(str, range(1000)))
  info = DatasetInfo("imagenet2012", image_spec(3), class_names=names)
  task = build_task(resolve(imagenet.get_config(row), info))
  assert task.train_spec["image"].shape == (224, 224, 3)
  assert task.element_spec["image"].shape == (decoded, decoded, 3)
  example = {"image": np.zeros((300, 400, 3), np.uint8), "label": 0}
  for train, spec in ((True, task.train_spec), (False, task.element_spec)):
    bits = order.generator(0, order.TRANSFORM) if train else None
    assert task.transform(train=train)(example, bits)["image"].shape == spec["image"].shape
  images = jax.ShapeDtypeStruct((2, *task.element_spec["image"].shape), np.uint8)
  assert jax.eval_shape(task.preprocess, images).shape == (2, 224, 224, 3)


def test_rows_work_with_other_data_sets():
  for file, row in COUNTS:
    for name in ("mnist", "imagenette/320px-v2"):
      config = resolve(file.get_config(f"{row},dataset={name}"), source_of(name))
      assert config.model.num_classes == SOURCES[name][0], row


def test_swin_works_with_eight_by_eight_pixels():
  assert count(complete_config(cifar10.get_config("swin,data.image_size=8"))).total > 0


DEIT = (
  "model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=8,stem.patch=2,model.dtype=float32"
)
LV = f"{DEIT},stem.channels=(4,4,4),stem.strides=(1,1,1)"
# One row of each network, of a small size.
SMALL = {
  "vit": "model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=8,stem.channels=(4,4)",
  "swin": "model.width=8,model.depth=(1,2),model.num_heads=2",
  "resnet20": "model.width=4,model.depth=8",
  "convmixer": "model.width=8,model.depth=2",
  "deit_ti_distilled": DEIT,
  "lv_vit_s": LV,
  "cifar10_sl_vit": DEIT,
}
SHIFT = {r".*token_mixer/key/bias": "softmax does not see a shift of a query's logits"}
ZEROS = dict.fromkeys(("vit", "swin", "deit_ti_distilled"), SHIFT)


def test_rows_are_alike_but_for_their_size():
  sizes = {"width", "depth", "num_heads", "mlp_dim"}
  for row, other in LIKE.items():
    a, b = (imagenet.get_config(name).model.to_dict() for name in (row, other))
    assert {field for field in a if a[field] != b[field]} <= sizes, row


@pytest.mark.slow  # compiles a network for each row
@pytest.mark.parametrize("row", SMALL)
def test_a_step_has_the_expected_gradients(row):
  (file,) = (file for file in (cifar10, imagenet, small_data) if row in file.ROWS)
  size = 16 if row == "swin" else 8
  config = complete_config(file.get_config(f"{row},{SMALL[row]},data.image_size={size}"))
  check_step(config, ZEROS.get(row, {}), whole=row == "resnet20")


def test_a_text_of_a_user_has_other_splits():
  from configs.density_text import get_config

  assert get_config("dense").data.splits.test == "validation+test"
  assert get_config("dense,dataset=bytes:book.txt").data.splits.test == ""
  assert get_config("dense,data.splits.test=test").data.splits.test == "test"
