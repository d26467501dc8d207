"""ImageNet-1k from scratch: DeiT's recipe, for whoever has the accelerators.

python train.py --config configs/imagenet.py:deit_s --workdir runs/deit_s

  @inproceedings{touvron2021training,
    title     = {Training Data-efficient Image Transformers and Distillation through Attention},
    author    = {Touvron, Hugo and Cord, Matthieu and Douze, Matthijs and others},
    booktitle = {International Conference on Machine Learning (ICML)},
    year      = {2021}
  }

Rows: `deit_ti` and `deit_s` of the paper, without distillation. Not yet run. Different from the
authors' code: no repeated augmentation, the rate does not go on at its end for another 10 epochs,
and the crop is resized bilinearly. The data set is TFDS's `imagenet2012`, which needs the archives
of image-net.org: see its page in the TFDS catalogue. Images of any data set are brought to 224
pixels; for small ones say `dataset=cifar10,data.image_size=32,stem.patch=4`.
"""

from ml_collections import ConfigDict

from vitx.configs.common import default_config, parse_arg, with_overrides, with_source_facts

WIDTHS = {"deit_ti": 192, "deit_s": 384}
ROWS = tuple(WIDTHS)
PUBLISHED = {
  "deit_ti": dict(parameters=5_717_416, top1=72.2),
  "deit_s": dict(parameters=22_050_664, top1=79.85),
}


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "deit_ti"."""
  row, overrides = parse_arg(arg, ROWS, default="deit_ti")
  width = WIDTHS[row]
  config = default_config()
  config.model = ConfigDict(
    dict(
      name="vit",
      width=width,
      depth=12,
      num_heads=width // 64,
      mlp_dim=4 * width,
      stem=dict(name="linear", patch=16),
      posemb="learned",
      pool=dict(name="cls", stddev=0.02),
      norm=dict(name="layer", epsilon=1e-6),
      block="pre_norm",
      token_mixer=dict(name="softmax"),
      initialization="truncated_normal",
      dropout=0.0,
      stochastic_depth=0.1,
      remat=False,
      dtype="bfloat16",
    )
  )
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
  config.augment.mixup, config.augment.cutmix = 0.8, 1.0
  config.task.label_smoothing = 0.1
  config.evaluation.crop_ratio = 0.875
  config.evaluation.interpolation = "bicubic"
  config.batch_size = 1024
  config.duration = "300 epochs"
  config.learning_rate = 1e-3
  config.optimizer = ConfigDict({"name": "adamw", "weight_decay": 0.05})
  config.schedule = ConfigDict({"name": "cosine", "warmup": "5 epochs", "final": 0.01})
  config.ema_decay = 0.99996
  config = with_overrides(config, overrides)
  return with_source_facts(config, "imagenet2012", num_classes=1000)
