"""Fine-tuning of a published vision transformer on any data set.

vitx prepare cifar10
python train.py --config configs/finetune.py:deit_s --workdir runs/finetuned
python train.py --workdir runs/finetuned_dinov2 \\
  --config configs/finetune.py:dinov2_s,init_from=timm:vit_small_patch14_dinov2.lvd142m

Each row is a backbone. `init_from` is the file of its weights: by default the published file's own
name (`FILES`) in the current directory; `timm:NAME` downloads timm's copy of it. The row of SigLIP
2 downloads by default, since its authors' file contains the text tower too. The head is new,
positions are resized, and any other mismatch is an error.

- `augreg_ti augreg_s augreg_b`: patches of 16, trained on ImageNet-21k with augmentation and
  regularization (Steiner et al. 2022); GELU is computed by tanh. The recipe is that of Dosovitskiy
  et al. 2021 (appendix B.1.1): SGD with momentum 0.9, batches of 512, no weight decay, clipping at
  norm 1, 10,000 steps along a cosine after 500 of warm-up, and a rate of 0.01, one of four that
  they try.
- `deit_ti deit_s deit_b`: DeiT, trained on ImageNet-1k (Touvron et al. 2021).
- `dinov2_s dinov2_b`, and `dinov2_reg_s dinov2_reg_b` with four registers: patches of 14, trained
  without labels at 518 pixels (Oquab et al. 2024; Darcet et al. 2024), with LayerScale.
- `dinov3_s dinov3_b`: DINOv3, four registers, rotary positions that suit every size of images,
  LayerScale (Siméoni et al. 2025). Meta gives the files to those who accept the DINOv3 License.
- `siglip2_b`: the image tower of SigLIP 2, trained with texts (Tschannen et al. 2025), without a
  class token: a learned query pools the tokens. The weights are under Apache-2.0.

The recipe for all but AugReg is ours, after BEiT's and MAE's: AdamW at a low rate that falls by a
quarter from block to block towards the input, stochastic depth 0.1, 20 epochs.

Any mixer may replace the backbone's mixer. Row `swap` does this with the network of `init_from`,
which is a workdir, or weights that `vitx convert --list` shows; docs/swap.md explains it.

python train.py --config configs/finetune.py:swap,init_from=runs/base,token_mixer=performer \\
  --workdir runs/swapped

Its data, augmentation, evaluation and batch size are those of the network's own config, its recipe
is ours, at one rate for all blocks. In every row, the projections that both mixers have are loaded,
other parameters of the new mixer are new. In every row but `lora`, `swap.align=attention` (or
`features`) adds a phase `align` before the phase `tune`: without labels, each mixer (or block)
learns the outputs of the old one, for 5 epochs unless `phases.align.duration=` says otherwise.

Row `lora` trains, and saves, only the head and adapters of low rank (LoRA, Hu et al. 2022) of the
network of `init_from`, with its data and augmentation as in `swap`. `model.lora.rank=16`,
`model.lora.alpha=16` and `model.lora.names=('query','value','mlp/.*')` change them; with one of
these fields, every other row trains adapters too. docs/photos.md explains them.

python train.py --config configs/finetune.py:lora,init_from=runs/base,dataset=folder:flowers \\
  --workdir runs/adapted

Ours: not yet run. The data set is CIFAR-10 at 224 pixels unless `dataset=` names another; the
sources print figures for other sizes and recipes, so none is quoted. Images are normalized as in
the backbone's training. Gray images need their own mean and standard deviation,
`dataset=mnist,data.mean=None,data.std=None`; the first convolution is summed over the colors.

  @article{steiner2022train,
    title   = {How to Train Your {ViT}? Data, Augmentation, and Regularization in Vision
               Transformers},
    author  = {Steiner, Andreas and Kolesnikov, Alexander and Zhai, Xiaohua and others},
    journal = {Transactions on Machine Learning Research},
    year    = {2022}
  }
  @article{oquab2024dinov2,
    title   = {DINOv2: Learning Robust Visual Features without Supervision},
    author  = {Oquab, Maxime and Darcet, Timoth\\'ee and Moutakanni, Th\\'eo and others},
    journal = {Transactions on Machine Learning Research},
    year    = {2024}
  }
  @article{simeoni2025dinov3,
    title   = {DINOv3},
    author  = {Sim\\'eoni, Oriane and Vo, Huy V. and Seitzer, Maximilian and others},
    journal = {arXiv preprint arXiv:2508.10104},
    year    = {2025}
  }
  @article{tschannen2025siglip2,
    title   = {SigLIP 2: Multilingual Vision-Language Encoders with Improved Semantic Understanding,
               Localization, and Dense Features},
    author  = {Tschannen, Michael and Gritsenko, Alexey and Wang, Xiao and others},
    journal = {arXiv preprint arXiv:2502.14786},
    year    = {2025}
  }
"""

from typing import Any

from ml_collections import ConfigDict

from vitx.config import (
  default_config,
  load_base,
  parse_arg,
  take_override,
  with_overrides,
  with_source_facts,
)

WIDTHS = {"ti": 192, "s": 384, "b": 768}  # All backbones have depth 12 and heads of width 64.
# The names of the published files.
FILES = {
  "augreg_ti": "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0.npz",
  "augreg_s": "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0.npz",
  "augreg_b": "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz",
  "deit_ti": "deit_tiny_patch16_224-a1311bcf.pth",
  "deit_s": "deit_small_patch16_224-cd65a155.pth",
  "deit_b": "deit_base_patch16_224-b5f2ef4d.pth",
  "dinov2_s": "dinov2_vits14_pretrain.pth",
  "dinov2_b": "dinov2_vitb14_pretrain.pth",
  "dinov2_reg_s": "dinov2_vits14_reg4_pretrain.pth",
  "dinov2_reg_b": "dinov2_vitb14_reg4_pretrain.pth",
  "dinov3_s": "dinov3_vits16_pretrain_lvd1689m-08c60483.pth",
  "dinov3_b": "dinov3_vitb16_pretrain_lvd1689m-73cec8be.pth",
  "siglip2_b": "timm:vit_base_patch16_siglip_224.v2_webli",
}
SWAP = "timm:deit_small_patch16_224.fb_in1k"  # the network of `swap` and `lora`, unless set
ROWS = (*FILES, "swap", "lora")
ALIGNMENTS = ("none", "attention", "features")
# The (mean, std) of the pixels in the backbones' training.
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "deit_s"."""
  config, _ = _make(arg)
  return config


def list_beside(arg: str | None = None) -> dict[str, ConfigDict]:
  """Returns the configs that `vitx plan` shows beside that of `arg`, by their titles.

  If `arg` replaces the mixer of a network, the network with its old mixer is shown.
  """
  config, mixer = _make(arg)
  if config.model.to_dict().get("token_mixer") == mixer:
    return {}
  config.model = ConfigDict(config.model.to_dict() | {"token_mixer": mixer})
  config.phases = ConfigDict()
  return {"base": config}


def _make(arg: str | None) -> tuple[ConfigDict, dict[str, Any] | None]:
  """Returns the config of `arg`, and the mixer, if any, that `arg` may replace."""
  row, overrides = parse_arg(arg, ROWS, default="deit_s")
  align, overrides = take_override(overrides, "swap.align", ALIGNMENTS)
  config = default_config()
  if row in ("swap", "lora"):
    _follow_base(config, overrides)
  else:
    _follow_row(config, row)
  if row == "lora":
    config = with_overrides(config, "model.lora.rank=8,learning_rate=1e-3")
  base = config.model.to_dict()
  if _find_source(overrides):  # the classes are those of the other data set
    config.model = ConfigDict({key: x for key, x in base.items() if key != "num_classes"})
  config = with_overrides(config, overrides)
  mixer = base.get("token_mixer")
  if config.model.to_dict().get("token_mixer") != mixer and not config.init_from_except:
    config.init_from_except = (".*/token_mixer/.*",)
  if align != "none":
    config.phases = ConfigDict({"align": {}, "tune": {}} | config.phases.to_dict())
    _align(config, align, base)
  return with_source_facts(config, "cifar10", num_classes=10), mixer


def _follow_row(config: ConfigDict, row: str) -> None:
  config.model = ConfigDict(make_model(row))
  config.init_from = FILES[row]
  config.data.source = "cifar10"
  config.data.image_size = 224
  config.data.mean, config.data.std = IMAGENET
  if row.startswith(("augreg", "siglip2")):
    config.data.mean, config.data.std = HALF
  config.augment.random_resized_crop = (0.5, 1.0)
  config.augment.hflip = 0.5
  config.evaluation.crop_ratio = 0.875
  config.evaluation.interpolation = "bicubic"
  if row.startswith("augreg"):
    _follow_augreg(config)
  else:
    _follow_beit(config)


def _follow_base(config: ConfigDict, overrides: str) -> None:
  """Takes network, data, augmentation and evaluation from the config of the initial weights."""
  config.init_from = take_override(overrides, "init_from")[0] or SWAP
  base = load_base(config.init_from)
  _follow_beit(config)
  config.layer_decay = 1.0  # the new mixers of the first blocks have as much to learn
  config.batch_size = base.batch_size
  config.model = ConfigDict(base.model.to_dict())
  config.augment.update(base.augment.to_dict())
  evaluation = base.evaluation.to_dict()  # this run has no average unless `ema_decay` is set
  config.evaluation.update({field: x for field, x in evaluation.items() if field != "weights"})
  data = base.data.to_dict()
  if data["mean"] is None:  # published weights, which were trained on ImageNet
    data["mean"], data["std"] = IMAGENET
  seen = ("image_size", "channels", "mean", "std") if _find_source(overrides) else tuple(data)
  config.data.update({field: data[field] for field in seen})


def _find_source(overrides: str) -> str:
  """Returns the data set that overrides name, or ""."""
  return take_override(overrides, "dataset")[0] or take_override(overrides, "data.source")[0]


def _align(config: ConfigDict, target: str, base: dict[str, Any]) -> None:
  """Completes the phase that aligns the layers with those of the network `base`."""
  old = {field: base.get(field) for field in ("token_mixer", "num_classes")}
  task = {
    "name": "alignment",
    "target": target,
    "teacher": config.init_from,
    "teacher_model": config.model.to_dict() | old,
  }
  # Without weight decay, parameters on which the error does not depend keep their values.
  defaults: dict[str, Any] = {
    "task": task,
    "duration": "5 epochs",
    "learning_rate": 1e-3,
    "optimizer": {"weight_decay": 0.0},
    "schedule": {"warmup": "5%"},
  }
  changes = config.phases.align.to_dict()
  for field, value in changes.items():
    if isinstance(value, dict) and "name" not in value:  # a new name replaces all fields
      changes[field] = defaults.get(field, {}) | value
  config.phases.align = ConfigDict(defaults | changes)


def make_model(row: str) -> dict[str, Any]:
  """Makes the `model` entry of a row."""
  family, _, size = row.rpartition("_")
  width = WIDTHS[size]
  model: dict[str, Any] = dict(
    name="vit",
    width=width,
    depth=12,
    num_heads=width // 64,
    mlp_dim=4 * width,
    stem=dict(name="linear", patch=16),
    posemb=dict(name="learned"),
    pool="cls",
    norm=dict(name="layer", epsilon=1e-6),
    block=dict(name="pre_norm"),
    token_mixer=dict(name="softmax"),
    dropout=0.0,
    stochastic_depth=0.0,
    remat=False,
    dtype="bfloat16",
  )
  if family == "augreg":
    model["block"]["activation"] = "gelu_tanh"
  else:
    model["stochastic_depth"] = 0.1
  if family.startswith("dinov2"):
    model["stem"]["patch"] = 14
    model["block"]["layer_scale"] = 1e-5
  if family == "dinov3":
    model["block"]["layer_scale"] = 1e-5
    model["extra_tokens"] = 4
    model["norm"]["epsilon"] = 1e-5
    model["posemb"] = dict(name="rope", kind="centered", base=100.0)
    model["token_mixer"]["key_bias"] = False
  if family == "siglip2":
    model["block"]["activation"] = "gelu_tanh"
    model["pool"] = dict(name="map", activation="gelu_tanh")
  if family == "dinov2_reg":
    model["extra_tokens"] = 4
    model["posemb"]["prefix"] = False
  return model


def _follow_augreg(config: ConfigDict) -> None:
  config.batch_size = 512
  config.duration = "10000 steps"
  config.learning_rate = 0.01
  config.optimizer = ConfigDict({"name": "sgd", "momentum": 0.9, "weight_decay": 0.0})
  config.schedule = ConfigDict({"name": "cosine", "warmup": "500 steps"})
  config.grad_clip_norm = 1.0


def _follow_beit(config: ConfigDict) -> None:
  config.batch_size = 256
  config.duration = "20 epochs"
  config.learning_rate = 2e-4
  config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.05})
  config.schedule = ConfigDict({"name": "cosine", "warmup": "1 epochs"})
  config.layer_decay = 0.75
  config.task.label_smoothing = 0.1
