"""Training on a folder of photos: from scratch, after pretraining, by fine-tuning, or a head only.

python train.py --config configs/photos.py:from_scratch,dataset=folder:DIR --workdir runs/photos
vitx evaluate --workdir runs/photos

`DIR` holds one folder per class (docs/photos.md); `dataset` also takes any other source of images
with classes. The duration follows the number of images and has a minimum. The batch is halved until
an epoch has 8 steps. The intervals between log lines and between evaluations, and the warm-up, are
shares of the run. `config.json` records their numbers of steps.

- `from_scratch`: a convolutional stem, CvT's attention and a mean of the tokens, 64 pixels.
  Ours: docs/photos.md.
- `pretrain`: a vision transformer with patches of 8 x 8 pixels in images of 64 pixels. `phase1`
  trains it as a masked autoencoder on all training images without their labels (He et al. 2022);
  `phase2`, which uses the config unchanged, fine-tunes it. `phases.phase1.data.source=folder:OTHER`
  pretrains on other images, which need no labels. `data.fraction=0.1` fine-tunes on a tenth of the
  images, while `phase1` still reads all. `pretrained=WORKDIR/phase1` begins from an existing phase
  1 and skips it; `pretrained=none` trains this network from scratch, for comparison. Published: on
  CIFAR-10 alone, such pretraining lifts a transformer of less than 3.7 M parameters to 96.4 %
  (arXiv 2402.03752). Ours, at a smaller scale: docs/photos.md.
- `finetune`: DINOv2 S/14 (Oquab et al. 2024) at 224 pixels, all parameters. `init_from` downloads
  timm's copy of the weights by default; it may name a file or a workdir. Ours: not yet run.
- `lora`: the network of `finetune`, but only its head and adapters of low rank (Hu et al. 2022) of
  the queries and values are trained and saved; `model.lora.rank=16` and the other fields of
  `model.lora` change them. Ours: not yet run.
- `frozen`: the network of `finetune`, but only its head is trained. `vitx probe` is faster still.
  Ours: not yet run.
"""

from typing import Any

from ml_collections import ConfigDict

from vitx.config import default_config, parse_arg, take_override, with_overrides

ROWS = ("from_scratch", "pretrain", "finetune", "lora", "frozen")


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "from_scratch"."""
  row, overrides = parse_arg(arg, ROWS, default="from_scratch")
  pretrained, overrides = take_override(overrides, "pretrained")
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
  if row in ("from_scratch", "pretrain"):
    _learn_from_scratch(config)
  else:
    _start_from_dinov2(config)
  if row == "pretrain":
    from_scratch = pretrained == "none"
    config.layer_decay = 1.0 if from_scratch else 0.75
    config.init_from = "" if from_scratch else pretrained
    config.phases = ConfigDict({} if pretrained else dict(phase1=_pretrain(), phase2={}))
  elif pretrained:
    raise ValueError(f"pretrained={pretrained!r} is for the row 'pretrain', not {row!r}.")
  if row == "frozen":
    config.freeze = ("(?!head/).*",)
  if row == "lora":
    config = with_overrides(config, "model.lora.rank=8")
  if row in ("lora", "frozen"):
    config.learning_rate = 1e-3
    config.layer_decay = 1.0
  config = with_overrides(config, overrides)
  if pretrained and config.phases:
    raise ValueError(
      f"pretrained={pretrained!r} skips phase 1, and the run has one phase; leave out"
      f" phases.{next(iter(config.phases))}, and change fields of the run itself."
    )
  return config


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
  if row == "pretrain":
    return common | dict(
      width=192,
      depth=6,
      num_heads=3,
      mlp_dim=768,
      stem=dict(name="linear", patch=8),
      posemb=dict(name="sincos"),
      pool="mean",
      token_mixer=dict(name="softmax"),
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


def _pretrain() -> dict[str, Any]:
  """Returns the fields that phase 1 changes, among them the task and the share of the images."""
  return dict(
    task=dict(
      name="masked_autoencoder",
      decoder_width=96,
      decoder_depth=2,
      decoder_heads=3,
    ),
    model=dict(stochastic_depth=0.0),
    data=dict(fraction=1.0),
    augment=dict(color_jitter=()),
    optimizer=dict(name="adamw", b2=0.95),
    layer_decay=1.0,
    duration="300 epochs, at least 2000 steps",
  )


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
