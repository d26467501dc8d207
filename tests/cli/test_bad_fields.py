"""Values that a field cannot have are refused in one line with the field, the value and the fix."""

import pytest

from tests import runs
from tests.cli import refusal
from tests.cli.refusal import elsewhere, refuse
from vitx.config.overrides import split
from vitx.training import sizes
from vitx.training.record import tracking

__all__ = ["elsewhere"]

COUNT = "is out of range; it must be an integer in [1, 1000000]"
SEED = "is out of range; it must be an integer in [0, 4294967295]"
DURATION = 'must be a duration: "300 steps" or "2.5 epochs".'

# Overrides of the tiny config of digits, and the text that follows `field=value` in the message.
FIELDS = [
  ("model.width=abc", "must be an integer, such as 64"),
  ("model.width=1.5", "must be an integer, such as 64"),
  ("model.width=-1", COUNT),
  ("model.width=0", COUNT),
  ("model.width=None", "must be an integer in [1, 1000000]"),
  ("model.width=1000000000", COUNT),
  ("model.depth=0", "is out of range; it must be an integer in [1, 1000]"),
  ("model.depth=100000", "is out of range; it must be an integer in [1, 1000]"),
  ("model.num_heads=0", COUNT),
  ("model.num_heads=3", "does not divide model.width=16. Choose a divisor, or set"),
  ("model.mlp_dim=-4", COUNT),
  ("model.dropout=1.5", "is out of range; it must lie in [0, 1)"),
  ("model.dropout=nan", "must be a number, such as 0.0"),
  ("model.stochastic_depth=-0.1", "is out of range; it must lie in [0, 1)"),
  ("model.name=vitt", "Did you mean 'vit'?"),
  ("model.wdth=3", "Did you mean 'width'?"),
  ("model.drop_path=0.1", "Did you mean 'model.stochastic_depth'?"),
  ("model.dtype=float33", "Did you mean 'float32'?"),
  ("stem.patch=0", COUNT),
  ("stem.patch=16", "does not divide the image of 8 x 8 pixels that reaches it; set"),
  ("posemb=rope,posemb.base=-1", "is out of range; it must lie in (0, inf)"),
  ("posemb=rope,posemb.bse=3", "Did you mean 'base'?"),
  ("pool=mean,pool.x=1", "Valid: none"),
  ("posemb.base=7", "LearnedPosition has no field 'base'", "Valid: prefix"),
  ("token_mixer=performer,token_mixer.features=0", "it must be an integer in [1, 65536]"),
  ("token_mixer.landmarks=3", "SoftmaxAttention has no field 'landmarks'", "Valid: causal"),
  ("token_mixer=bigbird,token_mixer.block=0", "it must be an integer in [1, 4096]"),
  ("stem=conv,token_mixer=cvt,token_mixer.kernel=2", "must be an integer in [1, 31], odd"),
  (
    "token_mixer=bigbird,token_mixer.random=99",
    "exceeds the number of blocks, 1, of 4 tokens with token_mixer.block=64.",
  ),
  ("token_mixer.implementation=fast", "Valid: auto"),
  ("task.label_smoothing=-0.1", "is out of range; it must lie in [0, 1]"),
  ("task.labl=1", "Valid: class_weights, focal_gamma, label_smoothing, loss"),
  ("task.loss=hinge", "is unknown", "focal, sigmoid, softmax"),
  ("task.focal_gamma=-1", "is out of range; it must lie in [0, inf)"),
  ("task.class_weights=equal", "balanced"),
  ("data.sampling=equal", "balanced"),
  ("evaluation.stop_early=0", COUNT),
  ("data.folds=1", "is out of range; it must be an integer in [2, 1000]"),
  ("data.folds=5,data.fold=5", "data.folds=5 has the folds 0 to 4; name one"),
  ("optimizer.weight_decay=-1", "is out of range; it must lie in [0, inf)"),
  ("optimizer.b1=1.5", "is out of range; it must lie in [0, 1)"),
  ("optimizer.lr=3", "Did you mean 'learning_rate'? Valid: b1"),
  ("schedule.warmup=-5", DURATION),
  ("schedule.warmup=5 stps", DURATION),
  ("schedule.warmup=500 epochs", "takes 20219 steps, but the run has only 40. Shorten the"),
  ("learning_rate=nan", "must be a number, such as 0.002"),
  ("learning_rate=-1", "is out of range; it must lie in [0, inf)"),
  ("learning_rate=abc", "must be a number, such as 0.002"),
  ("batch_size=0", COUNT),
  ("batch_size=-4", COUNT),
  ("batch_size=33", "does not split evenly over 2 devices. The nearest"),
  ("batch_size=1000000", "is larger than the 1294 training examples of 'digits'"),
  ("batch_size=2.5", "must be an integer, such as 64"),
  (
    "grad_accum_steps=5",
    "batch_size=32 does not split evenly over 2 devices x grad_accum_steps=5. The nearest",
  ),
  ("grad_accum_steps=0", COUNT),
  ("grad_clip_norm=0", "is out of range; it must lie in (0, inf)"),
  ("layer_decay=0", "is out of range; it must lie in (0, 1]"),
  ("layer_decay=2", "is out of range; it must lie in (0, 1]"),
  ("ema_decay=1", "is out of range; it must lie in [0, 1)"),
  ("ema_warmup=3", "must be True or False, such as True"),
  ("duration=0 steps", "is shorter than one step; lengthen it"),
  ("stop_after=3 lightyears", "must be a duration"),
  ("stop_after=0 steps", "is step 0; it must be a step from 1 to"),
  (
    "duration=9 steps,stop_after=10 steps",
    "is step 10; it must be a step from 1 to 9, the end of",
  ),
  ("duration=abc", DURATION),
  ("duration=-3 epochs", DURATION),
  ("duration=1e99 epochs", DURATION),
  ("duration=3 lightyears", DURATION),
  ("log_every=0", 'must be longer than zero, such as "1 epochs"'),
  ("log_every=abc", DURATION),
  ("checkpoint.keep=0", COUNT),
  ("checkpoint.keep=1", "must be at least 2, so that a damaged one can be skipped"),
  ("checkpoint.every=never", DURATION),
  ("checkpoint=3", "must be a group with the fields every, keep"),
  ("evaluation.every=0 epochs", 'must be longer than zero, such as "1 epochs"'),
  ("evaluation.batch_size=0", COUNT),
  ("evaluation.crop_ratio=0", "is out of range; it must lie in (0, 1]"),
  ("evaluation.crop_ratio=2", "is out of range; it must lie in (0, 1]"),
  ("evaluation.interpolation=cubic", "Did you mean 'bicubic'?"),
  ("evaluation.weights=()", "must name ema, raw or both, each once; the first chooses the"),
  ("weight_decay_mask=some", "Valid: all"),
  ("seed=-1", SEED),
  ("seed=99999999999", SEED),
  ("seed=1.5", "must be an integer, such as 0"),
  ("init_seed=-2", SEED),
  ("graph_seed=x", "must be an integer"),
  ("phases.a=3", "must be a group; set its fields, such as phases.a.seed=1"),
  ("tracking=3", "must be a name, or a dict with a name and fields"),
  ("tracking=wandb,tracking.prject=x", "Did you mean 'project'?"),
  ("tracking=none,tracking.project=x", "Tracker has no field 'project'"),
  ("evaluation.attention_entropy=-1", "is out of range; it must be an integer in [0, 1000000]"),
  (
    "token_mixer=fnet,evaluation.attention_entropy=8",
    "the layers of this network (model.name='vit', token mixer",
    "'fnet') have no softmax over tokens. Set evaluation.attention_entropy=0, or use",
  ),
  ("evaluation.limit=0", "is out of range; it must be an integer in [1,"),
  ("evaluation.limit=x", "must be an integer"),
  ("deterministic=2", "must be True or False, such as False"),
  ("augment.mixup=-1", "is out of range; it must lie in [0, inf)"),
  ("augment.cutmix=x", "must be a number, such as 0.0"),
  ("augment.hflip=2", "is out of range; it must lie in [0, 1]"),
  ("augment.rotate=abc", "must be a number, such as 15.0"),
  ("augment.rotate=-1", "is out of range; it must lie in [0, 180]"),
  ("augment.pad_crop=-1", "is out of range; it must be an integer in [0, 1000000]"),
  ("augment.pad_crop=100", "must be smaller than the image size 8."),
  ("augment.color_jitter=(1,)", "must have 4 values (brightness, contrast, saturation,"),
  ("augment.random_erasing=7", "is out of range; it must lie in [0, 1]"),
  ("augment.random_erasing_fill=blue", "Valid: noise"),
  ("augment.mixing=all", "Valid: batch"),
  ("augment.interpolation=cubic", "Did you mean 'bicubic'?"),
  ("data.source=digit", "Did you mean 'digits'?"),
  ("data.source=cifar10", "is not prepared", "Run: vitx prepare cifar10"),
  ("data.source=folder:/nowhere", "/nowhere is not a directory."),
  ("data.source=bytes:/nowhere", "/nowhere does not exist."),
  ("data.source=bytes:", ". is a directory. Name one file."),
  ("data.source=audio:/nowhere", "/nowhere is not a directory."),
  ("data.source=nope.nope:open_it", "cannot be imported (No module named 'nope'"),
  ("data.source=mnist:9.9.9", "is not prepared", "Run: vitx prepare mnist:9.9.9"),
  ("data.source=../x", "does not have one of the forms NAME, NAME/CONFIG, NAME:VERSION,"),
  ("data.splits.test=nope", "the split 'nope' of 'digits' does not exist. Splits: train,"),
  ("data.splits.validation=train", "shares examples with data.splits.train='train'. Give"),
  ("data.validation=0", "is out of range; it must lie in (0, 1)"),
  ("data.validation=1", "is out of range; it must lie in (0, 1)"),
  ("data.validation_choice=os:nope", "cannot be imported (module 'os' has no attribute"),
  ("data.fraction=0", "is out of range; it must lie in (0, 1]"),
  ("data.repeats=0", COUNT),
  ("data.channels=2", "Valid: 1"),
  ("data.image_size=0", "is out of range; it must be an integer in [1, 65536]"),
  ("data.image_size=-8", "is out of range; it must be an integer in [1, 65536]"),
  ("data.image_size=100000", "is out of range; it must be an integer in [1, 65536]"),
  ("data.decode_size=0", "is out of range; it must be an integer in [1, 65536]"),
  ("data.resize_mode=centre", "Did you mean 'center'?"),
  ("data.interpolation=cubic", "Did you mean 'bicubic'?"),
  ("data.memory=maybe", "Valid: always"),
  ("data.threads=-4", "is out of range; it must be an integer in [1, 1024]"),
  ("data.threads=0", "is out of range; it must be an integer in [1, 1024]"),
  ("data.std=abc", "must be a tuple"),
  ("optimizer=3", "must be a name, or a dict with a name and fields"),
  ("init_from=x.safetensors", "there is no such file"),
  ("init_from=hf:", "is no name of the Hub; write hf:OWNER/NAME"),
  ("data.source=os:getcwd", "must be a function of one argument"),
]

# Overrides whose message names another field or value, and the text of that message.
OTHERS = [
  (
    "task.class_weights=(1.0,2.0)",
    "task.class_weights=(1.0, 2.0) has 2 numbers, and the source has 10 classes; give one for each",
  ),
  ("task.class_weights=(-2.0,)", "task.class_weights[0]=-2.0 is out of range"),
  ("data.fold=3,data.folds=200", "the class '8' of 'digits' has", "fewer than the folds"),
  ("model.dropout=True", "model.dropout=1.0 is out of range; it must lie in [0, 1)"),
  ("model.norm=layernrm", "model.norm.name='layernrm'", "Did you mean 'layer'?"),
  ("model.block=pre_norms", "model.block.name='pre_norms'", "Did you mean 'pre_norm'?"),
  ("stem=lineer", "model.stem.name='lineer'", "Did you mean 'linear'?"),
  ("posemb=ropee", "model.posemb.name='ropee'", "Did you mean 'rope'?"),
  ("pool=meen", "model.pool.name='meen'", "Did you mean 'mean'?"),
  ("token_mixer=performr", "model.token_mixer.name='performr'", "Did you mean 'performer'?"),
  (
    "token_mixer=no.module:Thing",
    "model.token_mixer.name='no.module:Thing' cannot be imported (No module named 'no'",
  ),
  (
    "token_mixer=os:getcwd",
    "model.token_mixer.name='os:getcwd' is the builtin_function_or_method <built-in function",
  ),
  ("task=masked_autoencoder,task.mask_ratio=1.5", "task.mask_ratio=1.5 is out of range", "(0, 1)"),
  (
    "task=masked_autoencoder,token_mixer=linformer",
    "model.token_mixer=Linformer does not allow: its parameters belong to the places of tokens",
  ),
  ("task=classificaton", "task.name='classificaton'", "Did you mean 'classification'?"),
  ("optimizer=admw", "optimizer.name='admw'", "Did you mean 'adamw'?"),
  ("schedule=cosin", "schedule.name='cosin'", "Did you mean 'cosine'?"),
  ("freeze=(3,)", "freeze[0]=3 must be a string"),
  (
    "freeze='([,)'",
    "freeze='([,)' is not a valid regular expression: unterminated character set at position 1",
  ),
  (
    "freeze=nothing/.*",
    "freeze='nothing/.*' must match the whole name of a parameter, and matches none. The",
  ),
  ("evaluation.weights=(best,)", "evaluation.weights[0]='(best,)'", "Valid: ema"),
  ("tracking=tensorbord", "tracking.name='tensorbord'", "Did you mean 'tensorboard'?"),
  ("tracking={'name':'wandb','project':3}", "tracking.project=3 must be a string"),
  ("tracking=os:getcwd", "tracking.name='os:getcwd' is", "it must be a Tracker"),
  ("tensorboard=True", "no field 'tensorboard'. Did you mean 'tracking=tensorboard'?"),
  (
    "augment.random_resized_crop=(2,1)",
    "augment.random_resized_crop[0]=2 is out of range; it must lie in (0, 1]",
  ),
  (
    "augment.randaugment=(2,99)",
    "augment.randaugment: magnitude=99 is out of range; it must lie in [0, 10]",
  ),
  (
    "augment.autoaugmnt=True",
    "config has no field 'augment.autoaugmnt'",
    "Did you mean 'autoaugment'?",
  ),
  (
    "data.source=",
    "data.source='' does not have one of the forms NAME, NAME/CONFIG, NAME:VERSION,",
  ),
  ("data.splits.train=train[:0]", "data.splits: 'train[:0]' of 'digits' has no examples"),
  (
    "data.splits.train=train[5%:4%]",
    "data.splits: 'train[5%:4%]' of 'digits' ends before it begins",
  ),
  (
    "data.splits.train=train[:50%]+train[40%:]",
    "data.splits: 'train[:50%]+train[40%:]' names a part of 'digits' twice",
  ),
  ("data.fraction=0.00001", "batch_size=32 is larger than the 10 training examples of 'digits'"),
  ("data.mean=(1,0.5)", "data.mean=(1.0, 0.5) has 2 values, but the images have 1 channels."),
  ("data.mean=(123.7,)", "data.mean[0]=123.7 is out of range; it must lie in [0, 1]"),
  (
    "augment.random_resized_crop=(0.5,1),data.resize_mode=random",
    "augment.random_resized_crop=(0.5, 1) would crop once more what data.resize_mode='random'",
  ),
  ("data.std=(0,)", "data.std[0]=0 is out of range; it must lie in (0, 1]"),
  ("data.fit=centre", "config has no field 'data.fit'. Did you mean 'data.resize_mode'?"),
  ("batch_size", "config override 'batch_size' must have the form field=value"),
  (
    "data.image_size=8192,batch_size=64",
    "batch_size=64: a batch of so many",
    "(1, 8192, 8192, 1). Lower batch",
  ),
  ("data.decode_size=8192,batch_size=256", "largest array is 'image', uint8 (8192, 8192, 1)"),
  ("data.image_size=60000", "data.image_size=60000: an image of 3,600,000,000 pixels"),
  ("data.decode_size=65536", "would take 12.9 GB; choose at most 67,108,864 pixels"),
  (
    "model.width=1000000",
    "this machine has",
    "token_mixer/key/kernel', float32 (1000000, 2, 500000)",
  ),
  (
    "data.image_size=8192,stem.patch=8192,model.width=64,batch_size=2",
    "stem/embed/kernel', float32 (8192, 8192, 1, 64)",
  ),
  ("init_from=nowhere", "workdir='nowhere' has no config.json: it is no workdir of vitx"),
  ("init_from_except='([,)'", "init_from_except='([,)' is not a valid regular expression"),
  ("data.splits.train=train[::]", "data.splits: 'train[::]' is not a split of 'digits'"),
  ("=3", "config has no field ''. Fields there: augment"),
]


def train(override, *more):
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  return ["train", "--config", config, "--workdir", "run", *more]


@pytest.mark.parametrize("case", FIELDS + OTHERS, ids=lambda case: case[0])
def test_a_field_that_cannot_be_is_refused(case, elsewhere, capsys, monkeypatch):
  monkeypatch.setattr(sizes, "find_memory", lambda: 16e9)  # whatever this machine has
  override, *parts = case
  message = refuse(capsys, elsewhere, train(override), *parts)
  field, _, value = split(override)[-1].partition("=")
  named = f"{field}={value}" in message or f"{field}={value!r}" in message
  assert named or case in OTHERS


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused(name, elsewhere, capsys, monkeypatch):
  monkeypatch.setattr(tracking, "_is_installed", lambda package: False)
  message = f'tracking={name} needs the extra "{name}": pip install -e ".[{name}]"'
  refuse(capsys, elsewhere, train(f"tracking={name}"), message)


@pytest.mark.parametrize(
  "override",
  ["data.fit=centre", "data.memory=maybe", "data.threads=-4", "model.width=1000000000"],
)
def test_a_dry_run_refuses_it_too(override, elsewhere, capsys):
  parts = next(parts for own, *parts in FIELDS + OTHERS if own == override)
  refuse(capsys, elsewhere, train(override, "--dry_run"), *parts)


@pytest.mark.parametrize("override", ["model.width=1000000000", "data.image_size=100000"])
def test_impossible_sizes_are_refused_wherever_they_come(override, elsewhere, capsys):
  parts = next(parts for own, *parts in FIELDS if own == override)
  refuse(capsys, elsewhere, ["plan", *train(override)[1:3]], *parts)


@pytest.mark.slow  # compiles a training step
def test_what_is_accepted_or_compiled_shows(elsewhere, capsys):
  with pytest.raises(AssertionError, match="was accepted"):
    refuse(capsys, elsewhere, train("seed=0", "--dry_run"))
  assert all(any(name in seen for seen in refusal._COMPILED) for name in refusal.PROGRAMS)


@pytest.mark.parametrize("override", ["token_mixer=performr", "model.wdth=3", "batch_size=-4"])
def test_what_is_refused_prepares_no_data(override, elsewhere, capsys, monkeypatch):
  for variable in ("TFDS_DATA_DIR", "XDG_CACHE_HOME"):
    monkeypatch.setenv(variable, str(elsewhere / variable))
  refuse(capsys, elsewhere, train(override))
