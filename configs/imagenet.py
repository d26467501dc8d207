"""ImageNet-1k from scratch with DeiT's recipe, for users with enough accelerators.

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

Rows, not yet run:
- `deit_ti deit_s deit_b`: DeiT's three sizes; also with `_distilled`, which adds a second token and
  head, but no teacher for them.
- `deit_s_linformer`: the baseline in Sparsifiner's released code. It starts from a trained DeiT-S:
  `init_from=FILE,init_from_except=('.*_slots',)`. Keys and values have a matrix each, which all
  heads share and which mixes the tokens to a quarter of their number.
- `lv_vit_t lv_vit_s lv_vit_m`: LV-ViT.

The recipes are those of the released code, including its less obvious details: DeiT's learning rate
follows its schedule an epoch late, DeiT's raw weights are evaluated, and RandAugment replaces color
jitter. RandAugment is timm's with 15 operations, random levels, and a chance of one half for each
operation; erased boxes are filled with noise.

Differences from DeiT's recipe:
- 1 % of the training set is withheld to choose the checkpoint.
- Arithmetic is bfloat16; theirs is float16 with a scaled loss.
- Batches continue from epoch to epoch; theirs drop the remainder of an epoch.
- One mixing ratio of mixup or CutMix is drawn for the global batch of 1,024; theirs is drawn for
  the images of each GPU. We mix image 2i with image 2i + 1; they mix the first with the last.

Differences from LV-ViT's recipe: the moving average of the weights is used with the current batch
statistics, and there are no token labels and no MixToken, so LV-ViT's printed accuracies belong to
another recipe.

The data set is TFDS's `imagenet2012`, which needs the archives of image-net.org: see its page in
the TFDS catalogue. Images of any data set are resized to 224 pixels. For small images set
`dataset=cifar10,data.image_size=32,stem.patch=4`, and for LV-ViT also `stem.strides=(1,1,1)`.
"""

from typing import Any

from ml_collections import ConfigDict

from vitx.config import default_config, parse_arg, with_overrides, with_source_facts

DEIT = {"deit_ti": 192, "deit_s": 384, "deit_b": 768}  # The widths.
LINFORMER = dict(name="linformer", slots=197 // 4)
LV_VIT = {  # The width, depth, heads and divisor of the branches.
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
DEIT_ROWS = tuple(row for row in ROWS if row not in LV_VIT)


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "deit_ti"."""
  row, overrides = parse_arg(arg, ROWS, default="deit_ti")
  is_deit = row in DEIT_ROWS
  config = default_config()
  shared = dict(
    posemb="learned",
    initialization=dict(name="truncated_normal", convolutions="pytorch"),
    dropout=0.0,
    stochastic_depth=0.1,
    remat=False,
    dtype="bfloat16",
  )
  config.model = ConfigDict((deit(row) if is_deit else lv_vit(row)) | shared)
  config.data.source = "imagenet2012"
  config.data.image_size = 224
  # Training crops from the whole image; evaluation takes the middle.
  config.data.resize_mode = "random"
  config.data.interpolation = config.augment.interpolation = "bicubic" if is_deit else "random"
  config.data.validation = 0.01
  config.data.threads = 16
  augment(config, is_deit)
  config.task.label_smoothing = 0.1
  config.batch_size = 1024
  config.duration = "300 epochs" if is_deit else "310 epochs"
  config.learning_rate = peak = 1e-3 if is_deit else 1.6e-3
  config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.05})
  config.weight_decay_mask = "rank"
  late = dict(delay=1) if is_deit else dict(cooldown="10 epochs")
  ends = dict(start=1e-6 / peak, final=1e-5 / peak)
  config.schedule = ConfigDict(dict(name="epoch_cosine", warmup="5 epochs") | ends | late)
  config.ema_decay = 0.99996 if is_deit else 0.99992
  config.ema_warmup = False
  # Images are resized to 256 or 248 (the floor of 224 / 0.9) pixels and cropped to the middle 224.
  config.evaluation.crop_ratio = 224 / (256 if is_deit else 248)
  config.evaluation.interpolation = "bicubic"
  config.evaluation.weights = ("raw", "ema") if is_deit else ("ema", "raw")
  config = with_overrides(config, overrides)
  return with_source_facts(config, "imagenet2012", num_classes=1000)


def augment(config: ConfigDict, is_deit: bool) -> None:
  """Sets timm's image augmentations: `rand-m9-mstd0.5-inc1`, and random erasing in mode "pixel".

  For DeiT, images are also mixed and repeated three times (Touvron et al. 2021, Table 9).
  """
  augment = config.augment
  augment.hflip = 0.5
  augment.randaugment, augment.randaugment_operations = (2, 9), "increasing"
  augment.randaugment_std = augment.randaugment_probability = 0.5
  augment.random_erasing, augment.random_erasing_fill = 0.25, "noise"
  if is_deit:
    augment.mixup, augment.cutmix, augment.mixing = 0.8, 1.0, "batch"
    config.data.repeats = 3


def deit(row: str) -> dict[str, Any]:
  """Returns the fields specific to DeiT's networks (Touvron et al. 2021, Table 1)."""
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
  """Returns the fields specific to LV-ViT's networks (Jiang et al. 2021, Table 1, and its code)."""
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
