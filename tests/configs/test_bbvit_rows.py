"""BBViT's rows: exact counts, the named graphs, and the differences between ViT and BBViT."""

import jax
import numpy as np
import pytest

from configs import bbvit_imagenette, bbvit_tiny_imagenet
from configs.bbvit_imagenette import FLAT_ROWS, PUBLISHED, ROWS, VARIANTS, get_config
from tests.configs.test_vix_rows import (
  SOURCES,
  check_sources,
  check_step,
  count,
  count_by_layers,
  drawn,
  source_of,
)
from tests.models.vit_pytorch_weights import CARRY, Weights
from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.blocks.pre_norm import PreNormBlock
from vitx.models import model_from_config
from vitx.ops.layout import TokenLayout
from vitx.tasks.settle import complete_config, resolve

LAYOUT = TokenLayout((23, 23), prefix=1)
COUNTS = {
  **{row: 5_897_226 for row in ROWS if row.startswith("tiny")},
  "tiny_vit": 6_680_586,
  "tiny_vit_without_out": 6_680_586 - 3 * 512 * 513,
  "tiny_bbvit_with_out": 5_897_226 + 3 * 512 * 513,
  "moderate_vit": 51_724_298,
  "moderate_bbvit": 45_445_130,
  "moderate_authors_bbvit": 45_445_130,
  "tiny_cvt": 6_393_098,
  "tiny_swin": 6_202_626,
}
SMALLER = ("width", "num_heads", "mlp_dim", "token_mixer")


# Rows that differ from `tiny_bbvit` in their edges alone.
ALIKE = [row for row in ROWS if row[5:] in VARIANTS or row.startswith("tiny_authors")]


@pytest.mark.parametrize("row", all_but("tiny_cvt", of=[row for row in ROWS if row not in ALIKE]))
def test_rows_have_these_numbers_of_parameters(row):
  config = get_config(row)
  parameters = count_by_layers(config) if row in FLAT_ROWS else count(config).total
  assert parameters == COUNTS[row]


def test_other_edges_change_no_parameter():
  for row in ALIKE:
    ours, other = (get_config(name).model.to_dict() for name in ("tiny_bbvit", row))
    edges = {"variant", "plan", "query_parts", "redraw"}
    for model in (ours, other):
      model["token_mixer"] = {k: v for k, v in model["token_mixer"].items() if k not in edges}
    assert ours == other, row


def model_without(fields, config):
  return {name: value for name, value in config.model.items() if name not in fields}


def test_tiny_imagenet_has_the_same_network_but_for_patches_and_head():
  same = COUNTS["tiny_vit"] - 3 * (8**2 - 3**2) * 512 + 190 * (512 + 1)
  assert count(bbvit_tiny_imagenet.get_config("tiny_vit")).total == same
  assert bbvit_tiny_imagenet.ROWS == FLAT_ROWS
  for row in FLAT_ROWS:
    ours, other = (file.get_config(row) for file in (bbvit_imagenette, bbvit_tiny_imagenet))
    assert other.model.stem.to_dict() == {"name": "linear", "patch": 3}, row
    assert other.data.image_size == 23 * 3 and other.model.num_classes == 200, row
    assert {**ours.model, "stem": other.model.stem, "num_classes": 200} == {**other.model}, row


@pytest.mark.parametrize(
  "row",
  all_but("tiny_bbvit_with_out", of=["tiny_vit", "tiny_bbvit_with_out", "tiny_cvt", "tiny_swin"]),
)
def test_the_small_scale_has_a_fifteenth_of_the_parameters(row):
  assert count(get_config(f"{row},scale=small")).total < 0.075 * COUNTS[row]


def test_the_small_scale_has_whole_blocks_and_the_same_fields():
  for row in (row for row in ROWS if row.startswith("tiny")):
    config = get_config(f"{row},scale=small")
    assert config.data.source == "imagenette/160px-v2", row
    if row in FLAT_ROWS:
      tokens = (config.data.image_size // config.model.stem.patch) ** 2 + 1
      assert tokens == 170 and tokens % 10 == 0, row
    assert model_without(SMALLER, get_config(row)) == model_without(SMALLER, config), row


def test_published_figures_belong_to_rows():
  assert set(PUBLISHED) <= set(ROWS)
  for variant in VARIANTS:
    assert PUBLISHED[f"tiny_{variant}"] == PUBLISHED[f"tiny_authors_{variant}"]


def edges(row, head=0, layer=0):
  """Returns the edges of 530 queries (rows) to 530 keys in evaluation, bool (530, 530)."""
  fields = get_config(row).model.token_mixer.to_dict()
  mixer = MIXERS[fields.pop("name")](num_heads=8, layer=layer, **fields)
  index = np.arange(LAYOUT.length)
  return mixer.full_pattern(LAYOUT).allows(LAYOUT, index[:, None], index, head)


@pytest.mark.parametrize(
  ("row", "block_pairs"),
  [
    ("tiny_r", 53 * 4),
    ("tiny_w", 51 * 3 + 2 * 2),
    ("tiny_g", 2 * 53 + 51 * 3),
    ("tiny_rw", 51 * 6 + 2 * 5),
    ("tiny_wg", 2 * 53 + 49 * 5 + 2 * 4),
    ("tiny_rg", 2 * 53 + 51 * 6),
    ("tiny_bbvit", 2 * 53 + 49 * 8 + 2 * 7),
    ("tiny_authors_bbvit", 2 * 53 + 49 * 8 + 2 * 7),
    ("tiny_attention_free", 0),
    ("tiny_vit_without_out", 53 * 53),
  ],
)
def test_rows_have_these_numbers_of_block_pairs(row, block_pairs):
  matrix = edges(row)
  assert matrix.sum() == 100 * block_pairs
  if row.removeprefix("tiny_") in VARIANTS:
    assert matrix.diagonal().all()


def test_the_parts_of_the_edges_add_up_to_the_whole():
  assert (edges("tiny_w") | edges("tiny_g") == edges("tiny_wg")).all()
  random = [edges("tiny_r", head, layer) for head, layer in ((0, 0), (1, 0), (0, 1))]
  assert all((random[0] != other).any() for other in random[1:])


def test_the_authors_parts_are_query_blocks():
  whole = edges("tiny_authors_bbvit")
  rows = {"r": slice(0, 10), "w": slice(10, 520), "g": slice(520, 530)}
  for variant, letters in ((v, v) for v in VARIANTS):
    expected = np.zeros_like(whole)
    for letter in letters:
      expected[rows[letter]] = whole[rows[letter]]
    assert (edges(f"tiny_authors_{variant}") == expected).all()
  # This plan draws keys from the first blocks only, unlike the uniform plan.
  outside_window_and_global = np.abs(np.subtract.outer(np.arange(53), np.arange(53))) > 1
  outside_window_and_global[[0, -1]] = outside_window_and_global[:, [0, -1]] = False
  drawn = outside_window_and_global & whole[::10, ::10]
  uniform = outside_window_and_global & edges("tiny_bbvit")[::10, ::10]
  assert drawn[:, 10:].sum() == 0 and drawn.sum() == uniform.sum() == 51 * 3
  assert uniform[:, 10:].sum() > 51


def test_dropout_after_attention_may_be_zero():
  """The rate of the dropout after attention may be 0; by default, it is that of the block."""
  x, layout = np.random.default_rng(0).normal(size=(2, 4, 8)), TokenLayout((2, 2))
  x = x.astype(np.float32)

  def call(function, rate, *args, **kwargs):
    mixer = lambda name: MIXERS["softmax"](2, name=name)  # noqa: E731
    block = PreNormBlock(mixer, 8, dropout=0.5, mixer_dropout=rate)
    return getattr(block, function)(*args, x, layout, **kwargs)

  shapes = jax.eval_shape(lambda key: call("init", 0.0, key, train=False), jax.random.key(1))
  params = drawn(shapes["params"])
  params["mlp"]["down"] = jax.tree.map(np.zeros_like, params["mlp"]["down"])

  @jax.jit
  def run(params):
    extra = {"rngs": {"dropout": jax.random.key(2)}}
    cases = ((0.0, False), (0.0, True), (None, True))
    return [call("apply", rate, {"params": params}, train=train, **extra) for rate, train in cases]

  plain, without, by_default = run(params)
  np.testing.assert_allclose(without, plain, rtol=1e-5, atol=1e-6)
  assert not np.allclose(by_default, plain)


def small(row):
  """Returns a row with 26 tokens of width 16, completed without its data."""
  model = "model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=24,stem.patch=2"
  config = get_config(f"{row},{model},data.image_size=10")
  with config.unlocked():
    mixer = config.model.token_mixer
    if mixer.name == "bigbird":
      mixer.update(block=4, random=1, tile=4)
    if "dropout" in mixer:
      mixer.dropout = 0.0  # the kernelized implementation has no such dropout
  return complete_config(config)


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
def test_the_network_equals_that_of_the_authors(implementation):
  """A small version of the row computes what the authors' network does, with its weights.

  The weights are of the package that they used (golden/record_models.py).
  """
  sizes = "model.width=12,model.depth=2,model.num_heads=2,model.mlp_dim=24,stem.patch=2"
  config = get_config(f"tiny_vit,{sizes},data.image_size=8,model.num_classes=5")
  with config.unlocked():
    # The kernelized path refuses dropout of the probabilities, which is for training.
    config.model.token_mixer.update(implementation=implementation, dropout=0.0)
  weights = Weights("bbvit_vit")
  params, _ = CARRY["vit"](weights, "")
  assert not weights.unread, "weights that no parameter of ours took"
  images = weights.arrays["x"].transpose(0, 2, 3, 1)
  model = model_from_config(config.model)
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
  assert jax.tree.map(np.shape, shapes) == jax.tree.map(np.shape, params)
  logits, expected = jax.jit(model.apply)({"params": params}, images), weights.arrays["out"]
  np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def zeros_of(row):
  if row.endswith("attention_free"):
    reason = "nothing is attended"
    return {r".*token_mixer/.*": reason, r".*mixer_norm/.*": reason}
  if row in ("tiny_vit", "tiny_vit_without_out"):
    return {}
  return {r".*token_mixer/key/bias": "softmax does not see a shift of a query's logits"}


# Rows of each mixer, with a fixed graph and with a drawn one.
STEPPED = ("tiny_vit", "tiny_vit_without_out", "tiny_attention_free", "tiny_wg", "tiny_authors_rw")


@pytest.mark.slow  # compiles a network for each row
@pytest.mark.parametrize("row", STEPPED)
def test_a_step_has_the_expected_gradients(row):
  check_step(small(row), zeros_of(row))


@pytest.mark.parametrize("file", [bbvit_imagenette, bbvit_tiny_imagenet])
def test_rows_work_with_other_data_sets(file):
  for name, (classes, _, _) in SOURCES.items():
    config = resolve(file.get_config(f"tiny_vit,dataset={name}"), source_of(name))
    assert config.model.num_classes == classes
  check_sources(file.get_config, "tiny_authors_rg", ["mnist"])
