"""Fields that cannot be: each is refused in a line that names the field, the value and the fix."""

import pytest

from tests import runs
from tests.cli import refusal
from tests.cli.refusal import elsewhere, refuse
from vitx.config.overrides import split
from vitx.training import sizes
from vitx.training.record import tracking

__all__ = ["elsewhere"]

# Overrides of the tiny config of digits, and what must stand in the message.
FIELDS = [
  ("model.width=abc", "model.width='abc' must be an integer, such as 64"),
  ("model.width=1.5", "model.width=1.5 must be an integer, such as 64"),
  ("model.width=-1", "model.width=-1 is out of range; it must be an integer in [1, 1000000]"),
  ("model.width=0", "model.width=0 is out of range; it must be an integer in [1, 1000000]"),
  ("model.width=None", "model.width=None must be an integer in [1, 1000000]"),
  (
    "model.width=1000000000",
    "model.width=1000000000 is out of range; it must be an integer in [1, 1000000]",
  ),
  ("model.depth=0", "model.depth=0 is out of range; it must be an integer in [1, 1000]"),
  ("model.depth=100000", "model.depth=100000 is out of range; it must be an integer in [1, 1000]"),
  ("model.num_heads=0", "model.num_heads=0 is out of range; it must be an integer in [1, 1000000]"),
  (
    "model.num_heads=3",
    "model.num_heads=3 does not divide model.width=16; choose a divisor or set",
  ),
  ("model.mlp_dim=-4", "model.mlp_dim=-4 is out of range; it must be an integer in [1, 1000000]"),
  ("model.dropout=1.5", "model.dropout=1.5 is out of range; it must lie in [0, 1)"),
  ("model.dropout=nan", "model.dropout='nan' must be a number, such as 0.0"),
  ("model.dropout=True", "model.dropout=1.0 is out of range; it must lie in [0, 1)"),
  (
    "model.stochastic_depth=-0.1",
    "model.stochastic_depth=-0.1 is out of range; it must lie in [0, 1)",
  ),
  ("model.name=vitt", "model.name='vitt'", "Did you mean 'vit'?"),
  ("model.wdth=3", "model.wdth=3", "Did you mean 'width'?"),
  ("model.drop_path=0.1", "model.drop_path=0.1", "Did you mean 'model.stochastic_depth'?"),
  ("model.dtype=float33", "model.dtype='float33'", "Did you mean 'float32'?"),
  ("model.norm=layernrm", "model.norm.name='layernrm'", "Did you mean 'layer'?"),
  ("model.block=pre_norms", "model.block.name='pre_norms'", "Did you mean 'pre_norm'?"),
  ("stem=lineer", "model.stem.name='lineer'", "Did you mean 'linear'?"),
  ("stem.patch=0", "model.stem.patch=0 is out of range; it must be an integer in [1, 1000000]"),
  (
    "stem.patch=16",
    "model.stem.patch=16 does not divide the image of 8 x 8 pixels that reaches it; set",
  ),
  ("posemb=ropee", "model.posemb.name='ropee'", "Did you mean 'rope'?"),
  ("posemb=rope,posemb.base=-1", "model.posemb.base=-1 is out of range; it must lie in (0, inf)"),
  ("posemb=rope,posemb.bse=3", "model.posemb.bse=3", "Did you mean 'base'?"),
  ("pool=mean,pool.x=1", "model.pool.x=1", "Valid: none"),
  ("pool=meen", "model.pool.name='meen'", "Did you mean 'mean'?"),
  ("posemb.base=7", "model.posemb.base=7: LearnedPosition has no field 'base'", "Valid: prefix"),
  ("token_mixer=performr", "model.token_mixer.name='performr'", "Did you mean 'performer'?"),
  (
    "token_mixer=performer,token_mixer.features=0",
    "model.token_mixer.features=0 is out of range; it must be an integer in [1, 1000000]",
  ),
  (
    "token_mixer.landmarks=3",
    "model.token_mixer.landmarks=3: SoftmaxAttention has no field 'landmarks'",
    "Valid: causal",
  ),
  (
    "token_mixer=bigbird,token_mixer.block=0",
    "model.token_mixer.block=0 is out of range; it must be an integer in [1, 1000000]",
  ),
  (
    "stem=conv,token_mixer=cvt,token_mixer.kernel=2",
    "model.token_mixer.kernel=2 must be odd, such as 3",
  ),
  (
    "token_mixer=bigbird,token_mixer.random=99",
    "token_mixer.random=99: 4 tokens have 1 blocks of token_mixer.block=64 to draw from;",
  ),
  (
    "token_mixer=no.module:Thing",
    "model.token_mixer.name='no.module:Thing' cannot be imported: No module named 'no'",
  ),
  (
    "token_mixer=os:getcwd",
    "model.token_mixer.name='os:getcwd' is builtin_function_or_method <built-in function",
  ),
  ("token_mixer.implementation=fast", "model.token_mixer.implementation='fast'", "Valid: auto"),
  ("task=classificaton", "task.name='classificaton'", "Did you mean 'classification'?"),
  ("task.label_smoothing=-0.1", "task.label_smoothing=-0.1 is out of range; it must lie in [0, 1]"),
  ("task.labl=1", "task.labl=1", "Valid: class_weights, focal_gamma, label_smoothing, loss"),
  ("optimizer=admw", "optimizer.name='admw'", "Did you mean 'adamw'?"),
  (
    "optimizer.weight_decay=-1",
    "optimizer.weight_decay=-1.0 is out of range; it must lie in [0, inf)",
  ),
  ("optimizer.b1=1.5", "optimizer.b1=1.5 is out of range; it must lie in [0, 1)"),
  ("optimizer.lr=3", "optimizer.lr=3", "Did you mean 'learning_rate'? Valid: b1"),
  ("schedule=cosin", "schedule.name='cosin'", "Did you mean 'cosine'?"),
  (
    "schedule.warmup=-5",
    'schedule.warmup=\'-5\' is no duration; write "300 steps" or "2.5 epochs"',
  ),
  (
    "schedule.warmup=5 stps",
    'schedule.warmup=\'5 stps\' is no duration; write "300 steps" or "2.5 epochs"',
  ),
  (
    "schedule.warmup=500 epochs",
    "schedule.warmup='500 epochs' takes 20219 steps, but the run has only 40; shorten the",
  ),
  ("learning_rate=nan", "learning_rate='nan' must be a number, such as 0.002"),
  ("learning_rate=-1", "learning_rate=-1.0 is out of range; it must lie in [0, inf)"),
  ("learning_rate=abc", "learning_rate='abc' must be a number, such as 0.002"),
  ("batch_size=0", "batch_size=0 is out of range; it must be an integer in [1, 1000000]"),
  ("batch_size=-4", "batch_size=-4 is out of range; it must be an integer in [1, 1000000]"),
  ("batch_size=33", "batch_size=33 does not split over 2 devices; nearest that fit: 32, 34"),
  (
    "batch_size=1000000",
    "batch_size=1000000 is larger than the 1294 training examples of 'digits'",
  ),
  ("batch_size=2.5", "batch_size=2.5 must be an integer, such as 64"),
  (
    "grad_accum_steps=5",
    "batch_size=32 does not split over 2 devices x grad_accum_steps=5; nearest that fit:",
  ),
  (
    "grad_accum_steps=0",
    "grad_accum_steps=0 is out of range; it must be an integer in [1, 1000000]",
  ),
  ("grad_clip_norm=0", "grad_clip_norm=0.0 is out of range; it must lie in (0, inf)"),
  ("layer_decay=0", "layer_decay=0.0 is out of range; it must lie in (0, 1]"),
  ("layer_decay=2", "layer_decay=2.0 is out of range; it must lie in (0, 1]"),
  ("freeze=(3,)", "freeze[0]=3 must be a string"),
  (
    "freeze=([,)",
    "freeze: '([,)' is no regular expression: unterminated character set at position 1",
  ),
  (
    "freeze=nothing/.*",
    "freeze: 'nothing/.*' matches the whole name of no parameter. The nearest names:",
  ),
  ("ema_decay=1", "ema_decay=1.0 is out of range; it must lie in [0, 1)"),
  ("ema_warmup=3", "ema_warmup=3 must be True or False, such as True"),
  ("duration=0 steps", "duration='0 steps' has no step; lengthen it"),
  ("stop_after=3 lightyears", "stop_after='3 lightyears' is no duration"),
  ("stop_after=0 steps", "stop_after='0 steps' is step 0; it must lie from 1 to"),
  (
    "duration=9 steps,stop_after=10 steps",
    "stop_after='10 steps' is step 10; it must lie from 1 to 9, the end of duration='9 steps'",
  ),
  ("duration=abc", 'duration=\'abc\' is no duration; write "300 steps" or "2.5 epochs"'),
  (
    "duration=-3 epochs",
    'duration=\'-3 epochs\' is no duration; write "300 steps" or "2.5 epochs"',
  ),
  (
    "duration=1e99 epochs",
    'duration=\'1e99 epochs\' is no duration; write "300 steps" or "2.5 epochs"',
  ),
  (
    "duration=3 lightyears",
    'duration=\'3 lightyears\' is no duration; write "300 steps" or "2.5 epochs"',
  ),
  ("log_every=0", "log_every='0' must be longer than nothing, such as \"1 epochs\""),
  ("log_every=abc", 'log_every=\'abc\' is no duration; write "300 steps" or "2.5 epochs"'),
  ("checkpoint.keep=0", "checkpoint.keep=0 is out of range; it must be an integer in [1, 1000000]"),
  (
    "checkpoint.keep=1",
    "checkpoint.keep=1: at least 2 are kept, so that a damaged one can be skipped",
  ),
  (
    "checkpoint.every=never",
    'checkpoint.every=\'never\' is no duration; write "300 steps" or "2.5 epochs"',
  ),
  ("checkpoint=3", "checkpoint=3: it has fields of its own: every, keep"),
  (
    "evaluation.every=0 epochs",
    "evaluation.every='0 epochs' must be longer than nothing, such as \"1 epochs\"",
  ),
  (
    "evaluation.batch_size=0",
    "evaluation.batch_size=0 is out of range; it must be an integer in [1, 1000000]",
  ),
  ("evaluation.crop_ratio=0", "evaluation.crop_ratio=0.0 is out of range; it must lie in (0, 1]"),
  ("evaluation.crop_ratio=2", "evaluation.crop_ratio=2.0 is out of range; it must lie in (0, 1]"),
  ("evaluation.interpolation=cubic", "evaluation.interpolation='cubic'", "Did you mean 'bicubic'?"),
  ("evaluation.weights=(best,)", "evaluation.weights[0]='(best,)'", "Valid: ema"),
  (
    "evaluation.weights=()",
    "evaluation.weights=() must name ema, raw or both, each once; the first chooses the",
  ),
  ("weight_decay_mask=some", "weight_decay_mask='some'", "Valid: all"),
  ("seed=-1", "seed=-1 is out of range; it must be an integer in [0, 4294967295]"),
  (
    "seed=99999999999",
    "seed=99999999999 is out of range; it must be an integer in [0, 4294967295]",
  ),
  ("seed=1.5", "seed=1.5 must be an integer, such as 0"),
  ("init_seed=-2", "init_seed=-2 is out of range; it must be an integer in [0, 4294967295]"),
  ("graph_seed=x", "graph_seed='x' must be an integer"),
  ("phases.a=3", "phases.a=3: it has fields of its own, those of a config"),
  ("tracking=tensorbord", "tracking.name='tensorbord'", "Did you mean 'tensorboard'?"),
  ("tracking=3", "tracking=3 must be a name, or a dict with a name and fields"),
  ("tracking=wandb,tracking.prject=x", "tracking.prject='x'", "Did you mean 'project'?"),
  ("tracking={'name':'wandb','project':3}", "tracking.project=3 must be a string"),
  ("tracking=os:getcwd", "tracking.name='os:getcwd' is", "not a Tracker"),
  ("tracking=none,tracking.project=x", "tracking.project='x': Tracker has no field 'project'"),
  ("tensorboard=True", "no field 'tensorboard'. Did you mean 'tracking=tensorboard'?"),
  (
    "evaluation.attention_entropy=-1",
    "evaluation.attention_entropy=-1 is out of range; it must be an integer in [0, 1000000]",
  ),
  (
    "token_mixer=fnet,evaluation.attention_entropy=8",
    "evaluation.attention_entropy=8: the layers of this network (model.name='vit', token mixer",
    "'fnet') have no softmax over tokens; set evaluation.attention_entropy=0, or use",
  ),
  ("evaluation.limit=0", "evaluation.limit=0 is out of range; it must be an integer in [1,"),
  ("evaluation.limit=x", "evaluation.limit='x' must be an integer"),
  ("deterministic=2", "deterministic=2 must be True or False, such as False"),
  ("augment.mixup=-1", "augment.mixup=-1.0 is out of range; it must lie in [0, inf)"),
  ("augment.cutmix=x", "augment.cutmix='x' must be a number, such as 0.0"),
  ("augment.hflip=2", "augment.hflip=2.0 is out of range; it must lie in [0, 1]"),
  ("augment.rotate=abc", "augment.rotate='abc' must be a number, such as 15.0"),
  ("augment.rotate=-1", "augment.rotate=-1.0 is out of range; it must lie in [0, 180]"),
  (
    "augment.pad_crop=-1",
    "augment.pad_crop=-1 is out of range; it must be an integer in [0, 1000000]",
  ),
  ("augment.pad_crop=100", "augment.pad_crop=100 must be smaller than the image size 8."),
  (
    "augment.random_resized_crop=(2,1)",
    "augment.random_resized_crop[0]=2 is out of range; it must lie in (0, 1]",
  ),
  (
    "augment.color_jitter=(1,)",
    "augment.color_jitter=(1,) must have 4 values (brightness, contrast, saturation,",
  ),
  (
    "augment.randaugment=(2,99)",
    "augment.randaugment: magnitude=99 is out of range; it must lie in [0, 10]",
  ),
  ("augment.random_erasing=7", "augment.random_erasing=7.0 is out of range; it must lie in [0, 1]"),
  ("augment.random_erasing_fill=blue", "augment.random_erasing_fill='blue'", "Valid: noise"),
  ("augment.mixing=all", "augment.mixing='all'", "Valid: batch"),
  ("augment.interpolation=cubic", "augment.interpolation='cubic'", "Did you mean 'bicubic'?"),
  (
    "augment.autoaugmnt=True",
    "config has no field 'augment.autoaugmnt'",
    "Did you mean 'autoaugment'?",
  ),
  ("data.source=digit", "data.source='digit'", "Did you mean 'digits'?"),
  (
    "data.source=",
    "data.source='' is not of the form NAME, NAME/CONFIG, NAME:VERSION, folder:PATH,",
  ),
  ("data.source=cifar10", "data.source='cifar10' is not prepared", "Run: vitx prepare cifar10"),
  ("data.source=folder:/nowhere", "data.source='folder:/nowhere': /nowhere is not a directory."),
  ("data.source=bytes:/nowhere", "data.source='bytes:/nowhere': /nowhere does not exist."),
  ("data.source=bytes:", "data.source='bytes:': . is a directory. Name one file."),
  ("data.source=audio:/nowhere", "data.source='audio:/nowhere': /nowhere is not a directory."),
  (
    "data.source=nope.nope:open_it",
    "data.source='nope.nope:open_it' cannot be imported: No module named 'nope'",
  ),
  (
    "data.source=mnist:9.9.9",
    "data.source='mnist:9.9.9' is not prepared",
    "Run: vitx prepare mnist:9.9.9",
  ),
  (
    "data.source=../x",
    "data.source='../x' is not of the form NAME, NAME/CONFIG, NAME:VERSION, folder:PATH,",
  ),
  (
    "data.splits.test=nope",
    "data.splits.test='nope': the split 'nope' of 'digits' does not exist. Splits: train,",
  ),
  (
    "data.splits.validation=train",
    "data.splits.validation='train' shares examples with data.splits.train='train'. Give",
  ),
  (
    "data.splits.train=train[:0]",
    "data.splits: 'train[:0]' of 'digits' holds no examples",
  ),
  (
    "data.splits.train=train[5%:4%]",
    "data.splits: 'train[5%:4%]' of 'digits' ends before it begins",
  ),
  (
    "data.splits.train=train[:50%]+train[40%:]",
    "data.splits: 'train[:50%]+train[40%:]' of 'digits' names examples twice",
  ),
  ("data.validation=0", "data.validation=0.0 is out of range; it must lie in (0, 1)"),
  ("data.validation=1", "data.validation=1.0 is out of range; it must lie in (0, 1)"),
  (
    "data.validation_choice=os:nope",
    "data.validation_choice='os:nope' cannot be imported: module 'os' has no attribute",
  ),
  ("data.fraction=0", "data.fraction=0.0 is out of range; it must lie in (0, 1]"),
  ("data.fraction=0.00001", "batch_size=32 is larger than the 10 training examples of 'digits'"),
  ("data.repeats=0", "data.repeats=0 is out of range; it must be an integer in [1, 1000000]"),
  ("data.channels=2", "data.channels=2", "Valid: 1"),
  ("data.image_size=0", "data.image_size=0 is out of range; it must be an integer in [1, 65536]"),
  ("data.image_size=-8", "data.image_size=-8 is out of range; it must be an integer in [1, 65536]"),
  (
    "data.image_size=100000",
    "data.image_size=100000 is out of range; it must be an integer in [1, 65536]",
  ),
  ("data.decode_size=0", "data.decode_size=0 is out of range; it must be an integer in [1, 65536]"),
  ("data.resize_mode=centre", "data.resize_mode='centre'", "Did you mean 'center'?"),
  ("data.interpolation=cubic", "data.interpolation='cubic'", "Did you mean 'bicubic'?"),
  ("data.memory=maybe", "data.memory='maybe'", "Valid: always"),
  ("data.threads=-4", "data.threads=-4 is out of range; it must be an integer in [1, 1024]"),
  ("data.threads=0", "data.threads=0 is out of range; it must be an integer in [1, 1024]"),
  ("data.mean=(1,2)", "data.mean=(1.0, 2.0) has 2 values for 1 channels."),
  ("data.std=(0,)", "data.std[0]=0 is out of range; it must lie in (0, inf)"),
  ("data.std=abc", "data.std='abc' must be a tuple"),
  ("data.fit=centre", "config has no field 'data.fit'. Did you mean 'data.resize_mode'?"),
  ("optimizer=3", "optimizer=3 must be a name, or a dict with a name and fields"),
  ("batch_size", "config override 'batch_size' is not of the form field=value"),
  ("data.image_size=60000", "batch_size=32: so many examples", "(1, 60000, 60000, 1)", "Lower it"),
  ("data.decode_size=60000", "whose 'image' is uint8 (60000, 60000, 1), take"),
  ("model.width=1000000", "this machine has", "token_mixer/key/kernel (1000000, 2, 500000); lower"),
  (
    "data.image_size=32768,stem.patch=32768,batch_size=2",
    "stem/embed/kernel (32768, 32768, 1, 16)",
  ),
  ("init_from=nowhere", "workdir='nowhere' has no config.json: it is no workdir of vitx"),
  ("init_from=x.safetensors", "init_from='x.safetensors': there is no such file"),
  ("init_from=hf:", "init_from='hf:' is no name of the Hub; write hf:OWNER/NAME"),
  ("init_from_except=([,)", "init_from_except: '([,)' is no regular expression"),
  ("data.source=os:getcwd", "data.source='os:getcwd' must be a function of one argument"),
  ("data.splits.train=train[::]", "data.splits: 'train[::]' is no split of 'digits'"),
  ("=3", "config has no field ''. Fields there: augment"),
]


# Whose message names what follows from them, the field of today, or the value as it is read.
TOLD_OTHERWISE = (
  "tracking={'name':'wandb','project':3}",  # by its own field
  "model.dropout=True",
  "model.width=1000000",
  "data.fraction=0.00001",
  "data.image_size=60000",
  "data.decode_size=60000",
  "data.image_size=32768,stem.patch=32768,batch_size=2",
  "data.fit=centre",
  "tensorboard=True",
  "augment.autoaugmnt=True",
  "augment.randaugment=(2,99)",
  "=3",
)


@pytest.mark.parametrize("case", FIELDS, ids=lambda case: case[0])
def test_a_field_that_cannot_be_is_refused(case, elsewhere, capsys, monkeypatch):
  monkeypatch.setattr(sizes, "find_memory", lambda: 16e9)  # whatever this machine has
  override, *parts = case
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  arguments = ["train", "--config", config, "--workdir", "run"]
  message = refuse(capsys, elsewhere, arguments, *parts)
  field, equals, value = split(override)[-1].partition("=")
  assert override in TOLD_OTHERWISE or field.split(".")[-1] in message
  assert override in TOLD_OTHERWISE or not equals or value.strip("()[]").split(",")[0] in message


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused(name, elsewhere, capsys, monkeypatch):
  monkeypatch.setattr(tracking, "_is_installed", lambda package: False)
  config = "configs/digits.py:" + runs.replace(runs.TINY, f"tracking={name}")
  message = f'tracking={name} needs the extra "{name}": pip install -e ".[{name}]"'
  refuse(capsys, elsewhere, ["train", "--config", config, "--workdir", "run"], message)


@pytest.mark.parametrize(
  "override",
  ["data.fit=centre", "data.memory=maybe", "data.threads=-4", "model.width=1000000000"],
)
def test_a_dry_run_refuses_it_too(override, elsewhere, capsys):
  parts = next(parts for own, *parts in FIELDS if own == override)
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  refuse(capsys, elsewhere, ["train", "--config", config, "--workdir", "run", "--dry_run"], *parts)


@pytest.mark.parametrize("override", ["model.width=1000000000", "data.image_size=100000"])
def test_impossible_sizes_are_refused_wherever_they_come(override, elsewhere, capsys):
  parts = next(parts for own, *parts in FIELDS if own == override)
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  refuse(capsys, elsewhere, ["plan", "--config", config], *parts)


@pytest.mark.slow  # compiles a training step
def test_what_is_accepted_or_compiled_shows(elsewhere, capsys):
  config = "configs/digits.py:" + runs.TINY
  arguments = ["train", "--config", config, "--workdir", "run", "--dry_run"]
  with pytest.raises(AssertionError, match="was accepted"):
    refuse(capsys, elsewhere, arguments)
  assert all(any(name in seen for seen in refusal._COMPILED) for name in refusal.PROGRAMS)


@pytest.mark.parametrize("override", ["token_mixer=performr", "model.wdth=3", "batch_size=-4"])
def test_what_is_refused_prepares_no_data(override, elsewhere, capsys, monkeypatch):
  for variable in ("TFDS_DATA_DIR", "XDG_CACHE_HOME"):
    monkeypatch.setenv(variable, str(elsewhere / variable))
  config = "configs/digits.py:" + runs.replace(runs.TINY, override)
  refuse(capsys, elsewhere, ["train", "--config", config, "--workdir", "run"])
