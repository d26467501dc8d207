"""Sparsifiner on ImageNet-1k: a published backbone learns a sparse attention (Wei et al. 2023).

python train.py --config configs/sparsifiner_imagenet.py:deit_s_keep_0.25 --workdir runs/sparsifiner

  @inproceedings{wei2023sparsifiner,
    title     = {Sparsifiner: Learning Sparse Instance-Dependent Attention for Efficient Vision
                 Transformers},
    author    = {Wei, Cong and Duke, Brendan and Jiang, Ruowei and Aarabi, Parham and others},
    booktitle = {IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
    year      = {2023}
  }

Two phases run in sequence in one workdir. `phase1` trains only the predictors, which learn the
attention of the dense backbone. `phase2`, which uses the config unchanged, trains the backbone
under the hard masks, with the dense backbone as teacher. The backbone is a file that its authors
publish; it is read from the current directory under its original name. `init_from=FILE` names
another file, for both phases and the teacher. Set fields of phase 1 by
`phases.phase1.duration='1 epochs'`, those of phase 2 by `duration='5 epochs'`.

Rows: `deit_s_keep_R`, `lvvit_s_keep_R` and `lvvit_m_keep_R` for each published share R of the 197
keys that is kept; `deit_s_l1` with an L1 norm of the predictor's bases instead of their weight
decay. The recipe is the supplement's; `recipe=yaml` is that of the released settings (45 epochs,
the largest 8 of 32 coefficients, a threshold of 0.02 for the basis, a weight of 0.01 for the error
of the predicted attention). The published figures are top-1 and millions of multiplications of
attention (QKᵀ, AV and predictor). Not yet run.

Differences from the released code: here the error of the predicted attention is a mean over images;
theirs is a sum over the 168 images of one GPU, so our weight is 168 times theirs. Phase 1 runs the
backbone as in evaluation, so LV-ViT's batch statistics do not change. The published run's weight of
the L1 norm is not known; ours is the default of the code's argument parser, and falls to zero over
phase 1.
"""

from typing import Any

from ml_collections import ConfigDict

from vitx.config import parse_arg, take_override, with_overrides, with_source_facts
from vitx.configs.imagenet import get_config as dense_config

PREDICTOR = r".*/token_mixer/(reduce_query|reduce_key|down|basis)(/.*)?"
BACKBONE = rf"(?!{PREDICTOR}$).*"  # every other parameter
GPU_BATCH = 168  # The released code sums the errors of this many images.
BACKBONES = {  # The row of configs/imagenet.py, and the name of its file.
  "deit_s": ("deit_s", "deit_small_patch16_224-cd65a155.pth"),
  "lvvit_s": ("lv_vit_s", "lvvit_s-26M-224-83.3.pth.tar"),
  "lvvit_m": ("lv_vit_m", "lvvit_m-56M-224-84.0.pth.tar"),
}
_DEIT_S = {  # share of the keys: MFLOPs, top-1
  0.9: (396.8, 80.02),
  0.8: (360.6, 79.97),
  0.7: (324.6, 79.96),
  0.6: (290.3, 79.98),
  0.5: (254.2, 79.94),
  0.4: (218.0, 79.92),
  0.3: (183.6, 79.83),
  0.25: (None, 79.79),
  0.2: (147.5, 79.71),
  0.1: (111.4, 79.42),
  0.05: (93.3, 78.75),
  0.01: (78.9, 73.03),
}
_LV_VIT_S = {0.5: (339.7, 83.4), 0.25: (221.7, 83.3), 0.1: (149.5, 82.8)}
_LV_VIT_M = {0.25: (369.0, 83.83), 0.1: (249.0, 83.59)}  # estimated from a plot


def _published(backbone: str, parameters: int | None, rows: dict) -> dict[str, dict[str, Any]]:
  return {
    f"{backbone}_keep_{keep}": dict(parameters=parameters, mflops=mflops, top1=top1)
    for keep, (mflops, top1) in rows.items()
  }


PUBLISHED = {
  **_published("deit_s", 22_251_880, _DEIT_S),
  "deit_s_l1": dict(parameters=22_251_880, top1=78.81),
  **_published("lvvit_s", 26_420_112, _LV_VIT_S),
  **_published("lvvit_m", None, _LV_VIT_M),
}
ROWS = tuple(PUBLISHED)
RECIPES: dict[
  str, tuple[dict[str, Any], str, float]
] = {  # The mixer's fields; the duration of phase 2; the weight of the attention's error.
  "supplement": (dict(coefficient_threshold=0.05, basis_threshold=0.01), "40 epochs", 1.0),
  "yaml": (
    dict(coefficient_threshold=None, coefficient_top=8, basis_threshold=0.02),
    "45 epochs",
    0.01,
  ),
}


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "deit_s_keep_0.25"."""
  row, overrides = parse_arg(arg, ROWS, default="deit_s_keep_0.25")
  recipe, overrides = take_override(overrides, "recipe", tuple(RECIPES))
  thresholds, duration, attention_weight = RECIPES[recipe]
  dense, file = BACKBONES["_".join(row.split("_")[:2])]
  config = dense_config(dense)
  with config.unlocked():
    config.model.num_classes = 1000
    config.model.dtype = "float32"
    config.model.stochastic_depth = 0.0
    teacher_model = ConfigDict(config.model)
    config.model.token_mixer = ConfigDict(
      dict(config.model.token_mixer)
      | dict(name="sparsifiner", keep=0.25 if row == "deit_s_l1" else float(row.split("_")[-1]))
      | thresholds
    )
    del config.model.num_classes
  config.task = ConfigDict(
    dict(
      name="distillation",
      teacher="",
      teacher_model=teacher_model,
      label_smoothing=0.1,
      class_weight=1.0,
      logits_weight=0.5,
      token_weight=0.5,
    )
  )
  config.init_from = file
  config.init_from_except = (PREDICTOR,)
  config.freeze = (PREDICTOR,)
  config.augment.mixup, config.augment.cutmix, config.augment.mixing = 0.8, 1.0, "batch"
  config.data.repeats = 1
  config.data.interpolation = config.augment.interpolation = "bicubic"
  config.evaluation.crop_ratio = 224 / 256
  config.batch_size = 8 * GPU_BATCH
  config.duration = duration
  config.learning_rate = 8e-5
  config.schedule = ConfigDict({"name": "cosine", "warmup": "3 epochs", "final": 0.025})
  config.ema_decay = 0.9999
  # Each phase continues from the raw weights, as in the released code: after phase 1 the average
  # would still contain 62 % of the predictors' random initial values.
  config.evaluation.weights = ("raw", "ema")
  config.phases = ConfigDict(
    dict(phase1=_phase1(attention_weight, is_l1=row == "deit_s_l1"), phase2=dict())
  )
  config = with_overrides(config, overrides)
  config.task.teacher = config.task.teacher or config.init_from
  return with_source_facts(config, "imagenet2012", num_classes=1000)


def _phase1(attention_weight: float, is_l1: bool) -> dict[str, Any]:
  """Returns the config fields that phase 1 sets, with their values.

  Args:
    attention_weight: The weight that the released code gives to the error of the predicted
      attention in the loss.
    is_l1: Whether the predictor's bases have an L1 penalty in place of weight decay.
  """
  steps = 5 * 1_281_167 // (8 * GPU_BATCH)
  return dict(
    model=dict(token_mixer=dict(sparse=False)),
    task=dict(
      class_weight=0.0,
      logits_weight=0.0,
      token_weight=0.0,
      attention_weight=GPU_BATCH * attention_weight,
      basis_l1=0.05 if is_l1 else 0.0,
      basis_l1_decay_steps=steps if is_l1 else 0,
      train_mode=False,
    ),
    freeze=(BACKBONE,),
    duration="5 epochs",
    learning_rate=3e-4,
    weight_decay_mask="rank_but_bases" if is_l1 else "rank",
    schedule=dict(name="cosine", warmup="3 epochs", final=2 / 3),
  )
