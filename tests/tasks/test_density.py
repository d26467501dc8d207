"""Density models: bits against the formula, windows scored once, gray levels, refusals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import runs
from tests.data.test_windows import make as documents
from tests.drawn import draw_variables
from vitx.config.errors import ConfigError
from vitx.configs.density_digits import get_config as digits
from vitx.configs.density_text import get_config as text
from vitx.data.dataset import ArraySpec, DatasetInfo
from vitx.tasks import build_task
from vitx.tasks.base import find_layout, init_variables
from vitx.tasks.density_images import Pixels, to_tokens, to_values
from vitx.tasks.settle import resolve

TINY = "model.width=8,model.depth=1,model.num_heads=2,model.mlp_dim=16"
SEQUENCES = DatasetInfo("text", {"tokens": ArraySpec((None,), "uint8")}, vocabulary=256)
IMAGES = DatasetInfo(
  "digits",
  {"image": ArraySpec((8, 8, 1), "uint8"), "label": ArraySpec((), "int32")},
  class_names=tuple("0123456789"),
)

PHOTOS = DatasetInfo("folder:x", {"image": ArraySpec((None, None, 3), "uint8")})


def make(config, info):
  return build_task(resolve(config, info))


def text_task(**fields):
  fields = {"window": 12, **fields}
  overrides = ",".join(f"task.{name}={value}" for name, value in fields.items())
  return make(text(f"dense,{TINY},{overrides}"), SEQUENCES)


def batch(task, rows=3):
  random = np.random.default_rng(0)
  tokens = random.integers(0, task.model.vocabulary, (rows, task.length)).astype(np.uint8)
  return {"tokens": tokens, "first": 2 * np.arange(rows, dtype=np.int32)}


def drawn(task):
  """Returns parameters of which none is zero."""
  return draw_variables(lambda key: init_variables(task, key), scale=0.5)["params"]


@pytest.mark.slow
def test_bits_are_the_mean_over_the_scored_tokens():
  task = text_task()
  rows, mask = batch(task), np.array([True, True, False])

  @jax.jit
  def run(params):
    logits = task.model.apply({"params": params}, rows["tokens"].astype(np.int32))
    return logits, task.evaluate(params, {}, {}, {**rows, "mask": mask})

  logits, evaluated = jax.device_get(run(drawn(task)))
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  bits = -np.log2(np.take_along_axis(p, rows["tokens"].astype(int)[..., None], -1)[..., 0])
  figures = task.summarize(evaluated["sums"])
  assert figures["examples"] == 2 and figures["tokens"] == 12 + 10
  expected = (bits[0].sum() + bits[1, 2:].sum()) / 22
  assert figures["bits"] == pytest.approx(expected, rel=1e-5)
  np.testing.assert_allclose(evaluated["rows"]["bits"][1], bits[1, 2:].mean(), rtol=1e-5)


def test_the_loss_is_the_mean_over_all_tokens_in_nats():
  task = make(text(f"dense,{TINY},task.window=12,model.dropout=0.0"), SEQUENCES)
  rows = batch(task) | {"first": np.zeros(3, np.int32)}

  @jax.jit
  def run(params):
    sums = task.evaluate(params, {}, {}, {**rows, "mask": np.ones(3, bool)})["sums"]
    examples = {**rows, "index": np.arange(3, dtype=np.int32)}
    return sums, task.loss(params, {}, {}, examples, key=jax.random.key(0), step=jnp.int32(0))

  sums, (loss, (_, metrics)) = jax.device_get(run(drawn(task)))
  figures = task.summarize(sums)
  assert float(loss) == pytest.approx(figures["bits"] * math.log(2), rel=1e-5)
  assert float(metrics["bits"]) == pytest.approx(figures["bits"], rel=1e-5)


def test_training_windows_are_anywhere_and_follow_from_the_bits():
  task = text_task()
  windows, transform = task.examples(documents(50), train=True), task.transform(train=True)
  assert transform.draws and len(windows) == 4
  draw = lambda seed: transform(windows[1], np.random.Philox(seed))["tokens"]  # noqa: E731
  np.testing.assert_array_equal(draw(1), draw(1))
  assert len({draw(seed).tobytes() for seed in range(99)}) == 12


def test_levels_are_exact():
  tokens = np.arange(17, dtype=np.uint8).reshape(1, 17, 1)
  values = to_values(tokens, 17)
  assert values.min() == 0 and values.max() == 255
  np.testing.assert_array_equal(to_tokens(values, 17), tokens)
  every = np.arange(256, dtype=np.uint8)
  np.testing.assert_array_equal(to_tokens(every, 256), every)
  with pytest.raises(ConfigError, match=r"task.levels=17.*between the levels, such as \[1\]"):
    to_tokens(np.array([0, 1, 255], np.uint8), 17)
  example = Pixels(17, (1, 17, 1))({"image": values, "label": 3})
  assert example["tokens"].shape == (17,) and set(example) == {"tokens", "first"}


def test_images_decide_vocabulary_and_grid():
  config = resolve(digits(f"dense,{TINY}"), IMAGES)
  assert config.model.vocabulary == 17 and config.model.grid == (8, 8, 1)
  task = build_task(config)
  assert (
    task.figures[0].label == "bits/dim"
    and task.length == 64
    and find_layout(task).grid == (8, 8, 1)
  )


@pytest.mark.parametrize(
  ("config", "fields", "info", "message"),
  [
    (text, "", IMAGES, "task.window=256: data.source='digits' has image, label"),
    (digits, "", SEQUENCES, "task.window=None: data.source='text' has tokens"),
    (digits, "", PHOTOS, r"needs images of one size.* are \(None, None, 3\)"),
    (digits, "data.image_size=4", IMAGES, r"data.image_size=4: .* are \(8, 8, 1\)"),
    (digits, "augment.hflip=0.5", IMAGES, "augment.hflip=0.5: .* not augment"),
    (text, "task.min_context=256", SEQUENCES, "task.min_context=256 must be less"),
    (text, "model.grid=(3,5)", SEQUENCES, r"model.grid=\(3, 5\) has 15 places"),
    (text, "model.vocabulary=7", SEQUENCES, "model.vocabulary=7 contradicts"),
  ],
)
def test_a_contradiction_to_the_data_is_refused(config, fields, info, message):
  with pytest.raises(ConfigError, match=message):
    make(config(f"dense,{TINY},{fields}"), info)


@pytest.mark.slow  # trains
def test_a_run_learns_and_keeps_the_step_with_the_fewest_bits(tmp_path, whole_runs):
  import vitx

  overrides = "schedule.warmup=5 steps,evaluation.every=20 steps,checkpoint.every=20 steps"
  config = digits(f"dense,{TINY},{overrides},duration=60 steps,ema_decay=0.9")
  result = vitx.train(config, tmp_path / "whole")
  assert result.test["bits"] < 3.8 < math.log2(17)
  assert {"count_0", "count_5", "gzip", "xz", "bz2", "per_position"} <= set(result.test)
  assert result.test["tokens"] == 359 * 64
  rows = [row for row in runs.rows(tmp_path / "whole") if row["kind"] == "validation"]
  assert min(rows, key=lambda row: row["bits"])["step"] == result.test["step"]
