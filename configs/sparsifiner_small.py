"""Sparsifiner on small images in three phases: a dense network, its predictors, a sparse network.

python train.py --config configs/sparsifiner_small.py:digits_keep_0.25 --workdir runs/keep_0.25

Three phases run in one workdir. `phase0` trains a dense vision transformer. `phase1` trains the
predictors on the attention of this network. `phase2`, which uses the config unchanged, trains the
sparse network with the dense network as teacher. `backbone=WORKDIR` skips `phase0` and uses the
dense network of an existing run of the row `DATA_dense`. `predictors=WORKDIR` skips `phase1` and
uses the predictors of an existing run of the row `DATA_predictors`; they do not depend on the share
of the keys, so several rows may use them. Rows without predictors leave them unused.

Rows are DATA_METHOD, with data `digits` (1,797 scans, which scikit-learn includes), `cifar10` and
`imagenette` (TFDS; 64 pixels). The methods are:
- `dense`: phase 0 alone. `predictors`: phases 0 and 1 alone.
- `tuned`: the dense network, fine-tuned by Sparsifiner's recipe with itself as teacher. The other
  methods are trained in the same number of steps, so they are compared with this one.
- `keep_R`: Sparsifiner, which keeps a share R of the keys.
- `random_R`: a random graph with a share R of the edges, drawn for every layer and head, and
  fine-tuned by Sparsifiner's recipe. Every token also attends to itself and the class token, which
  Sparsifiner does not guarantee.
- `bilevel`: BiFormer's routing to a quarter of the regions.
- `evit_R`: EViT, which twice keeps a share R of the tokens, after a quarter and after a half of the
  layers. Since it has fewer tokens than the teacher, the loss does not compare tokens.

The recipe is that of configs/sparsifiner_imagenet.py at a smaller scale. There is no published
figure. Ours, compared in docs/sparsifiner.md: results/sparsifiner_small/digits/table.md and
results/sparsifiner_small/cifar10/table.md. Imagenette: not yet run.
"""

from typing import Any

from ml_collections import ConfigDict

from vitx.config import default_config, parse_arg, take_override, with_overrides
from vitx.configs.sparsifiner_imagenet import BACKBONE, PREDICTOR

SHARES = (0.5, 0.25, 0.1, 0.05)
METHODS = (
  "dense",
  "predictors",
  "tuned",
  *(f"{kind}_{share}" for kind in ("keep", "random") for share in SHARES),
  "bilevel",
  "evit_0.7",
  "evit_0.5",
)
DATA = ("digits", "cifar10", "imagenette")
ROWS = tuple(f"{data}_{method}" for data in DATA for method in METHODS)
# The durations of the phases and of their warm-ups; CIFAR-10's are short, to suit two CPU cores.
EPOCHS = {
  "digits": (("40 epochs", "2 epochs"), ("10 epochs", "1 epochs"), ("15 epochs", "1 epochs")),
  "cifar10": (("5 epochs", "0.5 epochs"), ("1 epochs", "0.2 epochs"), ("2 epochs", "0.2 epochs")),
  "imagenette": (("40 epochs", "2 epochs"), ("5 epochs", "1 epochs"), ("15 epochs", "1 epochs")),
}


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "digits_keep_0.25"."""
  row, overrides = parse_arg(arg, ROWS, default="digits_keep_0.25")
  data, kind = row.split("_")[:2]
  backbone, overrides = take_override(overrides, "backbone")
  predictors, overrides = take_override(overrides, "predictors")
  dense, predict, refine = EPOCHS[data]
  config = default_config()
  config.model = ConfigDict(_small(data))
  if data == "imagenette":
    config.data.source, config.data.image_size = "imagenette/160px-v2", 64
  else:
    config.data.source = data
  config.augment.update(_augment(data))
  config.batch_size = 64 if data == "digits" else 128
  config.ema_decay = 0.998
  config.learning_rate = 2e-3
  config.schedule = ConfigDict({"name": "cosine", "warmup": dense[1]})
  config.task.label_smoothing = 0.1
  config.duration = dense[0]
  config.evaluation.every = config.checkpoint.every = "5 epochs"
  if kind == "dense":
    return with_overrides(config, overrides)
  teacher_model = config.model.copy_and_resolve_references()
  learns = kind in ("keep", "predictors")
  config.model.token_mixer = ConfigDict(_mixer(row))
  if kind == "evit":
    depth, share = config.model.depth, float(row.split("_")[-1])
    with config.unlocked():
      config.model.token_reduction = dict(name="evit", layers=(depth // 4, depth // 2), keep=share)
  phases: dict[str, Any] = {}
  if not backbone:
    # A phase inherits what it does not name.
    others = {"token_reduction": {"name": "none"}} if kind == "evit" else {}
    phases["phase0"] = _phase0(*dense, ConfigDict(teacher_model.to_dict() | others))
  if learns and not predictors:
    phases["phase1"] = _phase1(*predict)
  if kind != "predictors":
    phases["phase2"] = {}
  config.init_from = (predictors if learns else "") or backbone
  config.task = ConfigDict(
    dict(
      name="distillation",
      teacher=backbone or "phase:phase0",
      teacher_model=teacher_model,
      label_smoothing=0.1,
      class_weight=1.0,
      logits_weight=0.5,
      token_weight=0.0 if kind == "evit" else 0.5,
    )
  )
  config.freeze = (PREDICTOR,) if learns else ()
  config.duration = refine[0]
  config.learning_rate = 5e-4
  config.schedule = ConfigDict({"name": "cosine", "warmup": refine[1], "final": 0.025})
  config.phases = ConfigDict(phases)
  return with_overrides(config, overrides)


def _mixer(row: str) -> dict[str, Any]:
  """Returns the token mixer of a row, with 10 slots and the published thresholds."""
  _, kind, share = (*row.split("_"), "")[:3]
  if kind == "tuned":
    return dict(name="softmax")
  if kind == "random":
    return dict(name="erdos_renyi", p=float(share))
  if kind == "evit":
    return dict(name="softmax", implementation="masked")  # EViT ranks the tokens by its matrix.
  if kind == "bilevel":
    return dict(name="bilevel", regions=4, top=4, local_kernel=0)
  return dict(
    name="sparsifiner",
    keep=float(share or 0.25),
    slots=10,
    coefficient_threshold=0.05,
    basis_threshold=0.01,
  )


def _small(data: str) -> dict[str, Any]:
  """Returns the dense network of a data set: 65 tokens of width 64, or 257 of 128."""
  is_tiny = data != "imagenette"
  width = 64 if is_tiny else 128
  convolutions = dict(name="conv", channels=(32, 64, 64), strides=(1, 1, 1))
  return dict(
    name="vit",
    width=width,
    depth=4 if is_tiny else 6,
    num_heads=4,
    mlp_dim=2 * width,
    stem=convolutions if data == "digits" else dict(name="linear", patch=4),
    posemb="learned",
    pool=dict(name="cls", stddev=0.02),
    norm="layer",
    block="pre_norm",
    token_mixer=dict(name="softmax"),
    dropout=0.0,
    stochastic_depth=0.0,
    remat=False,
    dtype="float32",
  )


def _augment(data: str) -> dict[str, Any]:
  if data == "digits":
    return dict(rotate=15.0, pad_crop=1)
  if data == "cifar10":
    return dict(hflip=0.5, pad_crop=4)
  return dict(hflip=0.5, random_resized_crop=(0.35, 1.0))


def _phase0(duration: str, warmup: str, dense: ConfigDict) -> dict[str, Any]:
  return dict(
    model=dense,
    task=dict(name="classification", label_smoothing=0.1),
    duration=duration,
    freeze=(),
    init_from="",
    learning_rate=2e-3,
    schedule=dict(name="cosine", warmup=warmup, final=0.0),
  )


def _phase1(duration: str, warmup: str) -> dict[str, Any]:
  return dict(
    model=dict(token_mixer=dict(sparse=False)),
    task=dict(
      class_weight=0.0, logits_weight=0.0, token_weight=0.0, attention_weight=1.0, train_mode=False
    ),
    freeze=(BACKBONE,),
    duration=duration,
    learning_rate=2e-3,
    weight_decay_mask="rank",
    schedule=dict(name="cosine", warmup=warmup, final=0.1),
  )
