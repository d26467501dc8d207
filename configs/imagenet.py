"""ImageNet-1k from scratch: DeiT's recipe, for whoever has the accelerators.

python train.py --config configs/imagenet.py:deit_s --workdir runs/deit_s

  @inproceedings{touvron2021training,
    title     = {Training Data-efficient Image Transformers and Distillation through Attention},
    author    = {Touvron, Hugo and Cord, Matthieu and Douze, Matthijs and others},
    booktitle = {International Conference on Machine Learning (ICML)},
    year      = {2021}
  }

  @inproceedings{jiang2021all,
    title     = {All Tokens Matter: Token Labeling for Training Better Vision Transformers},
    author    = {Jiang, Zihang and Hou, Qibin and Yuan, Li and Zhou, Daquan and others},
    booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
    year      = {2021}
  }

Rows: DeiT's three sizes, plain and `_distilled` (a second token and head; a teacher for it is not
part of these recipes), `deit_s_linformer` (the baseline in Sparsifiner's released code: tokens are
mixed to a quarter as many, keys and values by matrices of their own, shared by the heads, on a
trained DeiT-S: `init_from=FILE,init_from_except=('.*_slots',)`), and LV-ViT's `lv_vit_t`, `_s` and
`_m`. Not yet run. Different from the authors' code: no repeated augmentation, the rate does not go
on at its end for another 10 epochs, and the crop is resized bilinearly; LV-ViT learns without token
labels and MixToken, so that its printed accuracies are those of another recipe. The data set is
TFDS's `imagenet2012`, which needs the archives of image-net.org: see its page in the TFDS
catalogue. Images of any data set are brought to 224 pixels; for small ones say
`dataset=cifar10,data.image_size=32,stem.patch=4`, and `stem.strides=(1,1,1)` besides for LV-ViT.
"""

from typing import Any

from ml_collections import ConfigDict

from vitx.configs.common import default_config, parse_arg, with_overrides, with_source_facts

DEIT = {"deit_ti": 192, "deit_s": 384, "deit_b": 768}  # width
LINFORMER = dict(name="linformer", slots=197 // 4)
LV_VIT = {  # width, depth, heads, what branches are divided by
  "lv_vit_t": (240, 12, 4, 1.0),
  "lv_vit_s": (384, 16, 6, 2.0),
  "lv_vit_m": (512, 20, 8, 2.0),
}
PUBLISHED = {
  "deit_ti": dict(parameters=5_717_416, top1=72.202),
  "deit_s": dict(parameters=22_050_664, top1=79.854),
  "deit_b": dict(parameters=86_567_656, top1=81.846),
  "deit_ti_distilled": dict(parameters=5_910_800, top1=74.5),
  "deit_s_distilled": dict(parameters=22_436_432, top1=81.2),
  "deit_b_distilled": dict(parameters=87_338_192),
  "deit_s_linformer": dict(),
  "lv_vit_t": dict(parameters=8_534_720, top1=79.1),
  "lv_vit_s": dict(parameters=26_151_824, top1=83.3),
  "lv_vit_m": dict(parameters=55_830_544),
}
ROWS = tuple(PUBLISHED)


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "deit_ti"."""
  row, overrides = parse_arg(arg, ROWS, default="deit_ti")
  config = default_config()
  shared = dict(
    posemb="learned",
    initialization="truncated_normal",
    dropout=0.0,
    stochastic_depth=0.1,
    remat=False,
    dtype="bfloat16",
  )
  config.model = ConfigDict((lv_vit(row) if row in LV_VIT else deit(row)) | shared)
  config.data.source = "imagenet2012"
  config.data.image_size = 224
  config.data.resize_mode = (
    "random"  # the crop is drawn from the whole image; evaluation takes the center
  )
  config.data.validation = 0.01
  config.data.threads = 16
  config.augment.hflip = 0.5
  config.augment.randaugment = (2, 9)
  config.augment.random_erasing = 0.25
  if row not in LV_VIT:
    config.augment.mixup, config.augment.cutmix = 0.8, 1.0
  config.task.label_smoothing = 0.1
  config.evaluation.crop_ratio = 0.9 if row in LV_VIT else 0.875
  config.evaluation.interpolation = "bicubic"
  config.batch_size = 1024
  config.duration = "300 epochs"
  config.learning_rate = 1.6e-3 if row in LV_VIT else 1e-3
  config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.05})
  config.schedule = ConfigDict({"name": "cosine", "warmup": "5 epochs", "final": 0.01})
  config.ema_decay = 0.99992 if row in LV_VIT else 0.99996
  config = with_overrides(config, overrides)
  return with_source_facts(config, "imagenet2012", num_classes=1000)


def deit(row: str) -> dict[str, Any]:
  """Returns what DeiT's networks differ in (Touvron et al. 2021, Table 1)."""
  size, _, kind = row.removeprefix("deit_").partition("_")
  distilled, width = kind == "distilled", DEIT[f"deit_{size}"]
  return dict(
    name="distilled_vit" if distilled else "vit",
    width=width,
    depth=12,
    num_heads=width // 64,
    mlp_dim=4 * width,
    stem=dict(name="linear", patch=16),
    pool=dict(name="class_and_distillation" if distilled else "cls", stddev=0.02),
    norm=dict(name="layer", epsilon=1e-6),
    block="pre_norm",
    token_mixer=LINFORMER if kind == "linformer" else dict(name="softmax"),
  )


def lv_vit(row: str) -> dict[str, Any]:
  """Returns what LV-ViT's networks differ in (Jiang et al. 2021, Table 1, and released code)."""
  width, depth, num_heads, divisor = LV_VIT[row]
  return dict(
    name="lv_vit",
    width=width,
    depth=depth,
    num_heads=num_heads,
    mlp_dim=3 * width,
    stem="normalized",
    pool=dict(name="cls", stddev=0.02),
    norm=dict(name="layer", epsilon=1e-5),
    block=dict(name="pre_norm", branch_divisor=divisor),
    token_mixer=dict(name="softmax", use_bias=False),
  )
