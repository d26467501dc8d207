"""The shipped configs: every row builds."""

import importlib
from pathlib import Path

import jax
import pytest

from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.config import default_config
from vitx.models import model_from_config
from vitx.ops.patterns import PATTERNS

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(p.stem for p in (ROOT / "configs").glob("*.py") if p.stem[0] != "_")


def module(name):
  return importlib.import_module(f"configs.{name}")


@pytest.mark.parametrize("name", FILES)
def test_every_row_builds_and_its_docstring_has_the_command(name):
  config_file = module(name)
  for row in config_file.ROWS:
    config = config_file.get_config(row)
    assert config.is_locked
    assert set(config) == set(default_config())
  assert f"python train.py --config configs/{name}.py" in config_file.__doc__


def test_digits_has_a_row_for_every_mixer_and_pattern():
  without = {"pattern"}
  assert set(module("digits").ROWS) == (set(MIXERS) | set(PATTERNS)) - without


QUICK = ("softmax", "bigbird", "performer", "linformer", "shaped", "fnet", "axial", "levit")
# Of the rows of patterns, which differ in their edges alone, some.
PATTERN_ROWS = ("bigbird_etc", "fixed_causal", "window_and_class")
CASES = [row for row in module("digits").ROWS if row in MIXERS or row in PATTERN_ROWS]


@pytest.mark.parametrize("row", all_but(*QUICK, of=CASES))
def test_rows_of_digits_make_networks(row):
  config = module("digits").get_config(f"{row},model.depth=1")
  model = model_from_config({**config.model, "num_classes": 10})
  images = jax.ShapeDtypeStruct((2, 8, 8, 1), "float32")
  logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
  assert logits.shape == (2, 10)
