"""Values that a field cannot have are refused in one line with the field, the value and the fix."""

import pytest

from tests import runs
from tests.cli.refusal import elsewhere, refuse

__all__ = ["elsewhere"]

DURATION = 'must be a duration: "300 steps" or "2.5 epochs".'

# Overrides of the tiny config of digits by their range, which the message states after the value.
RANGES = {
  "an integer in [1, 1000000]": [
    *("model.width=abc", "model.width=1.5", "model.width=0", "model.width=None", "batch_size=-4"),
    *("model.num_heads=0", "model.mlp_dim=-4", "stem.patch=0", "data.repeats=0", "batch_size=2.5"),
    *("evaluation.stop_early=0", "evaluation.limit=0", "evaluation.batch_size=0"),
    *("grad_accum_steps=0", "model.width=1000000000"),
  ],
  "an integer in [2, 1000000]": ["checkpoint.keep=1"],
  "an integer in [0, 1000000]": ["augment.pad_crop=-1", "evaluation.attention_entropy=-1"],
  "an integer in [1, 1000]": ["model.depth=0", "model.depth=100000"],
  "an integer in [1, 1024]": ["data.threads=-4"],
  "an integer in [2, 1000]": ["data.folds=1"],
  "an integer in [2, 256]": ["task=density,task.levels=300"],
  "an integer in [1, 16777216]": ["task=density,task.window=0"],
  "an integer in [0, 4294967295]": ["seed=-1", "seed=99999999999", "seed=1.5", "graph_seed=x"],
  "an integer in [1, 65536]": [
    *("data.image_size=0", "data.image_size=100000", "data.decode_size=0"),
    "token_mixer=performer,token_mixer.features=0",
  ],
  "lie in [0, 1)": ["model.dropout=1.5", "model.dropout=True", "optimizer.b1=1.5", "ema_decay=1"],
  "lie in [0, 1]": ["task.label_smoothing=-0.1", "augment.hflip=2", "augment.random_erasing=7"],
  "lie in (0, 1]": [
    *("layer_decay=0", "layer_decay=2", "evaluation.crop_ratio=0", "data.fraction=0"),
  ],
  "lie in (0, 1)": ["data.validation=0", "data.validation=1"],
  "lie in (0, inf)": ["grad_clip_norm=0", "posemb=rope,posemb.base=-1"],
  "lie in [0, inf)": [
    *("learning_rate=nan", "learning_rate=-1", "learning_rate=abc", "task.focal_gamma=-1"),
    *("augment.mixup=-1", "augment.cutmix=x", "optimizer.weight_decay=-1"),
  ],
  "lie in [0, 180]": ["augment.rotate=abc", "augment.rotate=-1"],
  "True or False": ["ema_warmup=3", "deterministic=2"],
  "a group": ["checkpoint=3", "phases.a=3"],
  "a tuple": ["data.std=abc"],
  "an integer in [1, 4096]": ["token_mixer=bigbird,token_mixer.block=0"],
  "an integer in [1, 31], odd": ["stem=conv,token_mixer=cvt,token_mixer.kernel=2"],
}

# Other overrides, and texts in the message.
OTHERS = [
  ("model.name=vitt", "Did you mean 'vit'?"),
  ("model.wdth=3", "model.wdth=3", "Did you mean 'width'?"),
  ("model.drop_path=0.1", "Did you mean 'model.stochastic_depth'?"),
  ("model.dtype=float33", "Did you mean 'float32'?"),
  ("model.num_heads=3", "does not divide model.width=16. Choose a divisor, or set"),
  ("stem.patch=16", "does not divide the image of 8 x 8 pixels that reaches it; set"),
  ("pool=mean,pool.x=1", "Valid: none"),
  ("posemb.base=7", "LearnedPosition has no field 'base'", "Valid: prefix"),
  ("token_mixer=performr", "Did you mean 'performer'?"),
  ("token_mixer.landmarks=3", "SoftmaxAttention has no field 'landmarks'", "Valid: causal"),
  ("token_mixer=no.module:Thing", "cannot be imported (No module named 'no'"),
  ("token_mixer=bigbird,token_mixer.random=99", "exceeds the number of blocks, 1, of 4 tokens"),
  ("task=classificaton", "task.name='classificaton'", "Did you mean 'classification'?"),
  ("task.config=1", "Classification has no field 'config'"),
  ("task.labl=1", "Valid: class_weights, focal_gamma, label_smoothing, loss"),
  ("task.loss=hinge", "is unknown", "focal, sigmoid, softmax"),
  ("task.class_weights=equal", "balanced"),
  ("task.class_weights=(-2.0,)", "task.class_weights[0]=-2.0 is out of range"),
  ("task.class_weights=(1.0,2.0)", "must have 10 numbers"),
  ("task.class_weights=balanced,data.sampling=balanced", "balance the classes twice"),
  ("optimizer.lr=3", "Did you mean 'learning_rate'? Valid: b1"),
  ("schedule.warmup=-5", DURATION),
  ("batch_size=33", "does not split evenly over 2 devices"),
  ("batch_size=1000000", "is larger than the 1294 training examples"),
  ("grad_accum_steps=5", "batch_size=32 does not split evenly over 2 devices x grad_accum_steps=5"),
  ("duration=0 steps", "is 0 steps, and"),
  ("stop_after=0 steps", "is 0; a run has at least one step"),
  ("duration=1e99 epochs", DURATION),
  ("log_every=0", 'must be longer than zero, such as "1 epochs"'),
  ("evaluation.weights=()", "must name ema, raw or both, each once"),
  ("evaluation.weights=(best,)", "evaluation.weights[0]='(best,)'", "Valid: ema"),
  ("token_mixer=fnet,evaluation.attention_entropy=8", "have no softmax over tokens. Set"),
  ("tracking={'name':'wandb','project':3}", "tracking.project=3 must be a string"),
  ("tensorboard=True", "no field 'tensorboard'. Did you mean 'tracking=tensorboard'?"),
  ("augment.random_resized_crop=(0.5,1),data.resize_mode=random", "would crop once more"),
  ("data.channels=2", "Valid: 1"),
  ("data.mean=(1,0.5)", "data.mean=(1.0, 0.5) and data.std="),
  ("data.fit=center", "config has no field 'data.fit'. Did you mean 'data.resize_mode'?"),
  ("data.source=cifar10", "is not prepared", "Run: vitx prepare cifar10"),
  ("data.validation_choice=os:nope", "cannot be imported (module 'os' has no attribute"),
  ("freeze=(3,)", "freeze[0]=3 must be a string"),
  ("freeze=.*", "freezes every parameter"),
  ("ema_decay=0.0,evaluation.weights=('raw','ema')", "compares an average; set ema_decay"),
  ("freeze=nothing/.*", "matches no whole name of a parameter. The nearest"),
  ("init_from=x.safetensors", "No such file"),
  ("init_from=nowhere", "nowhere/config.json is missing"),
  ("batch_size", "config override 'batch_size' must have the form field=value"),
  ("=3", "config has no field ''. Fields there: augment"),
]
CASES = [(override, message) for message, all_of in RANGES.items() for override in all_of] + OTHERS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_an_impossible_value_is_refused(case, elsewhere, capsys, monkeypatch):
  override, *parts = case
  if parts[0] in RANGES:  # the message names the field, and no data are prepared before
    parts.append(override.rpartition(",")[2].partition("=")[0])
    for variable in ("TFDS_DATA_DIR", "XDG_CACHE_HOME"):
      monkeypatch.setenv(variable, str(elsewhere / variable))
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  refuse(capsys, elsewhere, ["train", "--config", config, "--workdir", "run"], *parts)
