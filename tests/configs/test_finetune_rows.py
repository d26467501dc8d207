"""Rows of configs/finetune.py: the size of their backbones, and that files of theirs fit."""

import re

import numpy as np
import pytest

from configs import finetune, imagenet
from tests.checkpoints.published import FILES
from tests.slow import all_but
from vitx.cli.summary import complete_config
from vitx.models import count, model_from_config, token_layout
from vitx.ops.layout import TokenLayout
from vitx.training import loop

# Of the backbone: DINOv2's with the token that stands for a hidden patch, as its authors count.
BACKBONES = {"dinov2_s": 22_056_576, "dinov2_b": 86_580_480}


def parameters(row, *overrides):
  return count(finetune.get_config(",".join((row, *overrides)))).total


@pytest.mark.parametrize("size", all_but("s", of=finetune.WIDTHS))
def test_as_large_as_deit(size):
  wanted = count(imagenet.get_config(f"deit_{size}")).total
  for family in ("augreg", "deit"):
    assert parameters(f"{family}_{size}", "model.num_classes=1000") == wanted


@pytest.mark.parametrize("row", all_but(*list(BACKBONES)[:1], of=BACKBONES))
def test_as_large_as_dinov2(row):
  width = finetune.WIDTHS[row[-1]]
  head = 10 * (width + 1)
  found = parameters(row, "data.image_size=518")
  assert found - head + width == BACKBONES[row]
  registers = parameters(row.replace("_", "_reg_"), "data.image_size=518")
  assert registers - found == 4 * width - width  # and the class token has no position


def test_dinov2_at_224_pixels():
  config = complete_config(finetune.get_config("dinov2_reg_s"))
  model = model_from_config(config.model)
  assert token_layout(model, (1, 224, 224, 3)) == TokenLayout((16, 16), 5)


@pytest.mark.parametrize("row", all_but("augreg_ti", "dinov2_reg_s", of=finetune.ROWS))
def test_a_run_without_the_file_says_which(row, tmp_path, monkeypatch):
  """The default names the published file, and nothing is trained from scratch in its place."""
  monkeypatch.chdir(tmp_path)
  small = "model.width=64,model.depth=1,model.num_heads=1,model.mlp_dim=8,duration=10 epochs"
  patch = finetune.get_config(row).model.stem.patch
  config = finetune.get_config(
    f"{row},{small},dataset=digits,data.image_size={2 * patch},data.mean=None,data.std=None,"
    "batch_size=32,model.dtype=float32"
  )
  config.schedule.warmup = "1 steps"
  message = rf"init_from='{re.escape(finetune.FILES[row])}': there is no such file"
  with pytest.raises(ValueError, match=message):
    loop.train(config, tmp_path / "run")


@pytest.mark.slow  # a whole run
@pytest.mark.parametrize(
  ("row", "file"), [("dinov2_reg_s", "dinov2_registers"), ("dinov2_s", "timm_dinov2")]
)
def test_a_tiny_backbone_is_fine_tuned(row, file, tmp_path, capsys):
  """On gray digits at 56 pixels: positions of 3 x 3 patches become 4 x 4."""
  config = finetune.get_config(
    f"{row},model.width=12,model.depth=2,model.num_heads=3,model.mlp_dim=48,model.dtype=float32,"
    f"init_from={FILES[file]},init_from_except=('.*stem/embed/kernel',),dataset=digits,"
    "data.mean=None,data.std=None,data.image_size=56,batch_size=32,duration=4 steps,"
    "evaluation.every=4 steps,checkpoint.every=4 steps,schedule.warmup=1 steps"
  )
  result = loop.train(config, tmp_path)
  printed = capsys.readouterr().out
  assert result.finished and np.isfinite(result.test["nll"])
  assert " + 3 x 3 tokens -> " in printed and " + 4 x 4 tokens" in printed
  assert "params/head/kernel" in printed and "params/stem/embed/kernel" in printed
