"""A folder of photos, or any other classified images: from scratch, fine-tuned or frozen.

python train.py --config configs/photos.py:from_scratch,dataset=folder:DIR --workdir runs/photos
vitx evaluate --workdir runs/photos

`DIR` holds one folder per class (docs/photos.md); `dataset` also takes any other source of images.
The duration follows the number of images and has a minimum; the batch is halved until an epoch has
8 steps; warm-up, log lines and evaluations are shares of the run. `config.json` records the steps.

- `from_scratch`: a convolutional stem, CvT's attention and a mean of the tokens, 64 pixels.
  Ours: docs/photos.md. The other two rows: not yet run.
- `finetune`: DINOv2 S/14 (Oquab et al. 2024) at 224 pixels, all parameters. `init_from` downloads
  timm's copy of the weights by default; it may name a file or a workdir.
- `frozen`: the backbone of `finetune`, but only the head is trained. `vitx probe` is faster still.
"""

from typing import Any

from ml_collections import ConfigDict

from vitx.config import default_config, parse_arg, with_overrides

ROWS = ("from_scratch", "finetune", "frozen")


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "from_scratch"."""
  row, overrides = parse_arg(arg, ROWS, default="from_scratch")
  config = default_config()
  config.data.source = "folder:photos"
  config.model = ConfigDict(make_model(row))
  config.augment.random_resized_crop = (0.4, 1.0)
  config.augment.hflip = 0.5
  config.evaluation.crop_ratio = 0.875
  config.evaluation.every = "5%, at least 1 epochs"
  config.checkpoint.every = "5%, at least 1 epochs"
  config.log_every = "4%, at most 50 steps"
  config.batch_size = 64
  config.min_steps_per_epoch = 8
  config.grad_clip_norm = 1.0
  config.task.label_smoothing = 0.1
  if row == "from_scratch":
    _learn_from_scratch(config)
  else:
    _start_from_dinov2(config)
  if row == "frozen":
    config.freeze = ("(?!head/).*",)
    config.learning_rate = 1e-3
    config.layer_decay = 1.0
  return with_overrides(config, overrides)


def make_model(row: str) -> dict[str, Any]:
  """Makes the `model` entry of a row."""
  common: dict[str, Any] = dict(name="vit", remat=False, dropout=0.0)
  if row == "from_scratch":
    return common | dict(
      width=128,
      depth=4,
      num_heads=4,
      mlp_dim=256,
      stem=dict(name="conv", channels=(32, 64, 128), strides=(2, 2, 2), patch=1),
      posemb="learned",
      pool="mean",
      token_mixer=dict(name="cvt"),
      stochastic_depth=0.1,
      dtype="float32",
    )
  return common | dict(
    width=384,
    depth=12,
    num_heads=6,
    mlp_dim=1536,
    stem=dict(name="linear", patch=14),
    posemb=dict(name="learned"),
    pool="cls",
    norm=dict(name="layer", epsilon=1e-6),
    block=dict(name="pre_norm", layer_scale=1e-5),
    token_mixer=dict(name="softmax"),
    stochastic_depth=0.0 if row == "frozen" else 0.1,
    dtype="bfloat16",
  )


def _learn_from_scratch(config: ConfigDict) -> None:
  config.data.image_size = 64
  config.augment.color_jitter = (0.3, 0.3, 0.3, 0.0)
  config.duration = "60 epochs, at least 400 steps"
  config.learning_rate = 1e-3
  config.schedule = ConfigDict({"name": "cosine", "warmup": "10%"})


def _start_from_dinov2(config: ConfigDict) -> None:
  config.init_from = "hf:timm/vit_small_patch14_dinov2.lvd142m"
  config.data.image_size = 224
  config.data.mean = (0.485, 0.456, 0.406)
  config.data.std = (0.229, 0.224, 0.225)
  config.evaluation.interpolation = "bicubic"
  config.duration = "20 epochs, at least 200 steps"
  config.learning_rate = 2e-4
  config.layer_decay = 0.75
  config.schedule = ConfigDict({"name": "cosine", "warmup": "5%"})
