"""CIFAR-10 from scratch: a baseline, the strongest small recipes known to us, CNNs, a fast row.

vitx prepare cifar10
python train.py --config configs/cifar10.py --workdir runs/cifar10
python train.py --config configs/cifar10.py:cct_4_3x2 --workdir runs/cct_4

Row `vit`: 0.6 M parameters, 64 tokens. Our test top-1 is 49.45 % after `duration=2 epochs`, on a
JPEG (quality 75) copy of the set (2 shared CPU cores, 13 min, 2026-11-21); the full 100 epochs are
not yet run.

The other rows, whose published figures are in `PUBLISHED` (ours: not yet run):
- `cct_2_3x2 cct_4_3x2 vit_lite_7_4`: compact transformers (Hassani et al. 2021), 200 epochs.
- `cct_7_3x1`: the authors' recipe of 300 epochs, but they turn mixup and CutMix off after epoch
  175.
- `swin`: windows of 4 x 4 tokens in three stages (Liu et al. 2021), 2.6 M parameters, with the
  recipe of Lee et al. 2021 for small data sets, but without repeated augmentation, and with vitx's
  version of AutoAugment's CIFAR policy.
- `resnet20 resnet56` (He et al. 2016) and `convmixer` (Trockman and Kolter 2022; width 256, depth
  8, patches of 2, kernels of 5; after the warm-up the rate falls linearly, while the authors' rate
  falls along two lines of different slope).
- `fast`: 0.4 M parameters, for the best accuracy after minutes of two CPU cores. Whitened patches
  of 2 x 2 pixels (Jordan 2024), three convolutions with batch normalization, two blocks with
  softmax attention over 64 tokens, and Muon. `duration` sets its length. `fast_resnet20
  fast_convmixer` (width 128, patches of 4) are its rivals with its recipe.
  Ours after five minutes of two cores: docs/training.md. Longer runs: not yet run.

  @article{hassani2021escaping,
    title   = {Escaping the Big Data Paradigm with Compact Transformers},
    author  = {Hassani, Ali and Walton, Steven and Shah, Nikhil and others},
    journal = {arXiv:2104.05704},
    year    = {2021}
  }
  @inproceedings{liu2021swin,
    title     = {Swin Transformer: Hierarchical Vision Transformer using Shifted Windows},
    author    = {Liu, Ze and Lin, Yutong and Cao, Yue and others},
    booktitle = {IEEE/CVF International Conference on Computer Vision (ICCV)},
    year      = {2021}
  }
  @article{lee2021vision,
    title   = {Vision Transformer for Small-Size Datasets},
    author  = {Lee, Seung Hoon and Lee, Seunghyun and Song, Byung Cheol},
    journal = {arXiv:2112.13492},
    year    = {2021}
  }
  @inproceedings{he2016deep,
    title     = {Deep Residual Learning for Image Recognition},
    author    = {He, Kaiming and Zhang, Xiangyu and Ren, Shaoqing and Sun, Jian},
    booktitle = {IEEE Conference on Computer Vision and Pattern Recognition (CVPR)},
    year      = {2016}
  }
  @article{jordan2024cifar,
    title   = {94% on CIFAR-10 in 3.29 Seconds on a Single GPU},
    author  = {Jordan, Keller},
    journal = {arXiv:2404.00498},
    year    = {2024}
  }
  @article{trockman2022patches,
    title   = {Patches Are All You Need?},
    author  = {Trockman, Asher and Kolter, J. Zico},
    journal = {arXiv:2201.09792},
    year    = {2022}
  }
"""

from ml_collections import ConfigDict

from vitx.config import default_config, parse_arg, with_overrides, with_source_facts

# Test accuracies in percent and parameters in millions, as printed by the sources.
PUBLISHED = {
  "cct_2_3x2": dict(parameters_m=0.28, top1=89.17),
  "cct_4_3x2": dict(parameters_m=0.48, top1=91.45),
  "cct_7_3x1": dict(parameters_m=3.76, top1=96.53),
  "vit_lite_7_4": dict(parameters_m=3.72, top1=91.38),
  "resnet20": dict(parameters_m=0.27, top1=91.25),
  "resnet56": dict(parameters_m=0.85, top1=93.03),
  "convmixer": dict(top1=94.0),
}
# The depth and the stem.
CONVOLUTIONAL = {
  "vit": (4, dict(name="conv", channels=(32, 64), strides=(1, 2), patch=2)),
  "fast": (
    2,
    dict(
      name="normalized",
      whitening=2,
      channels=(64, 64, 128),
      kernels=(3, 3, 3),
      strides=(2, 1, 2),
      patch=1,
    ),
  ),
}
# The learning rates of the fast recipe: each is the best of three after a fifth of five minutes.
FAST = {"fast": 4e-3, "fast_resnet20": 6e-3, "fast_convmixer": 1e-2}
# The width, depth, heads, MLP width, and channels of all convolutions but the last.
COMPACT = {
  "cct_2_3x2": (128, 2, 2, 128, (64,)),
  "cct_4_3x2": (128, 4, 2, 128, (64,)),
  "cct_7_3x1": (256, 7, 4, 512, ()),
}
ROWS = ("vit", *COMPACT, "vit_lite_7_4", "swin", "resnet20", "resnet56", "convmixer", *FAST)


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "vit"."""
  row, overrides = parse_arg(arg, ROWS, default="vit")
  config = default_config()
  config.data.source = "cifar10"
  config.data.default_image_size = 32
  config.model = ConfigDict(make_model(row))
  config.augment.hflip = 0.5
  config.batch_size = 128
  if row == "vit":
    _baseline(config)
  elif row == "cct_7_3x1":
    _compact_300(config)
  elif row in COMPACT or row == "vit_lite_7_4":
    _compact_200(config)
  elif row == "swin":
    _small_data(config)
  elif row == "convmixer":
    _convmixer(config)
  elif row in FAST:
    _fast(config, FAST[row])
  else:
    _residual(config)
  config = with_overrides(config, overrides)
  return with_source_facts(config, "cifar10", num_classes=10, image_size=32)


def make_model(row: str) -> dict:
  """Makes the `model` entry of a row."""
  if "resnet" in row:
    depth = int(row.partition("resnet")[2])
    return dict(name="resnet", depth=depth, width=16, dtype="float32")
  if "convmixer" in row:
    width, patch = (128, 4) if row in FAST else (256, 2)
    return dict(name="convmixer", width=width, depth=8, patch=patch, kernel=5, dtype="float32")
  common = dict(dropout=0.0, stochastic_depth=0.0, remat=False, dtype="float32")
  if row in CONVOLUTIONAL:
    depth, stem = CONVOLUTIONAL[row]
    return common | dict(
      name="vit",
      width=128,
      depth=depth,
      num_heads=4,
      mlp_dim=256,
      stem=stem,
      posemb="learned",
      pool="mean",
      token_mixer=dict(name="softmax"),
    )
  common |= dict(stochastic_depth=0.1, initialization="truncated_normal")
  if row == "swin":
    return common | dict(
      name="swin",
      width=64,
      depth=(2, 4, 2),
      num_heads=(2, 4, 8),
      mlp_ratio=4,
      stem=dict(name="linear", patch=2),
      posemb="none",
      pool="mean",
      token_mixer=dict(name="shifted_window", size=4, relative_bias="window"),
    )
  compact = row in COMPACT
  width, depth, heads, mlp_dim, channels = COMPACT[row] if compact else (256, 7, 4, 512, ())
  stem = dict(name="cct", channels=channels) if compact else dict(name="linear", patch=4)
  return common | dict(
    name="cct",
    width=width,
    depth=depth,
    num_heads=heads,
    mlp_dim=mlp_dim,
    stem=stem,
    posemb=dict(name="learned", stddev=0.2),
    pool="sequence" if compact else "cls",
    token_mixer=dict(name="softmax", use_bias=False, dropout=0.1),
  )


def _cosine(config: ConfigDict, epochs: int, rate: float, warmup: int, **more: float) -> None:
  config.duration = f"{epochs} epochs"
  config.learning_rate = rate
  config.schedule = ConfigDict({"name": "cosine", "warmup": f"{warmup} epochs", **more})
  config.task.label_smoothing = 0.1


def _baseline(config: ConfigDict) -> None:
  config.augment.pad_crop = 4
  _cosine(config, 100, 1e-3, warmup=2)


def _compact_200(config: ConfigDict) -> None:
  config.augment.pad_crop = 4
  config.augment.autoaugment = True
  config.optimizer.weight_decay = 0.03
  _cosine(config, 200, 5e-4, warmup=5)


def _compact_300(config: ConfigDict) -> None:
  config.augment.random_resized_crop = (0.8, 1.0)
  config.augment.randaugment = (2, 9)
  config.augment.mixup, config.augment.cutmix = 0.8, 1.0
  config.optimizer.weight_decay = 0.06
  _cosine(config, 300, 5.5e-4, warmup=10, final=1e-5 / 5.5e-4)


def _small_data(config: ConfigDict) -> None:
  config.augment.pad_crop = 4
  config.augment.autoaugment = True
  config.augment.random_erasing = 0.25
  config.augment.mixup, config.augment.cutmix = 0.8, 1.0
  config.optimizer.weight_decay = 0.05
  _cosine(config, 100, 1e-3, warmup=10)


def _residual(config: ConfigDict) -> None:
  config.augment.pad_crop = 4
  config.duration = "64000 steps"
  config.learning_rate = 0.1
  config.optimizer = ConfigDict({"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4})
  config.weight_decay_mask = "all"
  falls = ("32000 steps", "48000 steps")
  config.schedule = ConfigDict({"name": "step", "boundaries": falls, "factor": 0.1})


def _convmixer(config: ConfigDict) -> None:
  config.augment.randaugment = (2, 4)  # 12 on torchvision's scale of 31
  config.augment.color_jitter = (0.2, 0.2, 0.2, 0.0)
  config.augment.random_erasing = 0.2
  config.batch_size = 512
  config.duration = "100 epochs"
  config.learning_rate = 0.05
  config.optimizer.weight_decay = 0.005
  config.weight_decay_mask = "all"
  config.schedule = ConfigDict({"name": "linear", "warmup": "40 epochs"})


def _fast(config: ConfigDict, learning_rate: float) -> None:
  config.augment.pad_crop = 2
  config.batch_size = 64
  config.duration = "3 epochs"
  if "whitening" in config.model.get("stem", {}):
    config.freeze = ("stem/whitening/kernel",)
  config.learning_rate = learning_rate
  config.optimizer = ConfigDict({"name": "muon", "weight_decay": 0.05})
  config.schedule = ConfigDict({"name": "linear", "warmup": "10%"})
  config.task.label_smoothing = 0.1
  config.evaluation.every = config.checkpoint.every = "100%"
