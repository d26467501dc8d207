"""Settings of models that are undeclared, or would be silently wrong, are refused."""

import jax
import numpy as np
import pytest

import vitx
from vitx.config.errors import ConfigError
from vitx.models import initialize

SMALL = {"num_classes": 3, "width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8}
STAGED = SMALL | {"depth": (1, 1)}
SEQUENCE = {"vocabulary": 3, "grid": (4, 2), "width": 8, "depth": 2, "num_heads": 2, "mlp_dim": 8}
SIZES = {"pit": STAGED, "cvt": STAGED, "sparse_transformer": SEQUENCE, "resnet": {"num_classes": 3}}
SIZES["swin"] = {"num_classes": 3, "width": 8, "depth": (1, 1)}
STRIDED = {"name": "strided", "stride": 4, "arrangement": "layers"}
# A type, a range or a name that the declaration does not allow, and the start of the message.
UNDECLARED = [
  ("vits", {}, "model.name='vits' is unknown. Did you mean 'vit'"),
  ("vit", {"widht": 3}, "model.widht=3"),
  ("vit", {"num_heads": 0}, "model.num_heads=0"),
  ("vit", {"dropout": 1.5}, "model.dropout=1.5"),
  ("vit", {"remat": 1}, "model.remat=1"),
  ("vit", {"dtype": "bf16"}, "model.dtype='bf16'"),
  ("vit", {"num_classes": 0}, "model.num_classes=0"),
  ("vit", {"width": 10**9}, "model.width=1000000000"),
  ("vit", {"stem": {"patch": 4}}, "model.stem.name=None"),
  ("vit", {"stem": {"name": "linear", "patch": 0}}, "model.stem.patch=0"),
  ("vit", {"stem": {"name": "conv", "channels": (8, 0)}}, "model.stem.channels[1]=0"),
  ("vit", {"posemb": {"name": "rope", "base": -5.0}}, "model.posemb.base=-5.0"),
  ("vit", {"block": {"name": "vanilla", "norms": "one"}}, "model.block.norms='one'"),
  ("vit", {"token_mixer": "nowhere.at_all:Mixer"}, "model.token_mixer.name='nowhere.at_all:Mixer'"),
  ("vit", {"token_mixer": {"name": "softmax", "num_heads": 3}}, "model.token_mixer.num_heads=3"),
  ("vit", {"token_mixer": {"name": "xcit", "implementation": "masked"}}, "model.token_mixer.impl"),
  ("vit", {"token_mixer": {"name": "bilevel", "local_kernel": 4}}, "model.token_mixer.local_kern"),
  (
    "vit",
    {"token_mixer": {"name": "linformer", "slots": 10**6}},
    "model.token_mixer.slots=1000000",
  ),
  ("vit", {"initialization": {"name": "mimetic", "base": "pytorh"}}, "model.initialization.base"),
  ("pit", {"depth": 2}, "model.depth=2"),
  ("lv_vit", {"pool_first": True}, "model.pool_first=True"),
  ("sparse_transformer", {"causal": False}, "model.causal=False"),
  ("cvt", {"num_heads": (0, 1, 1)}, "model.num_heads[0]=0"),
]


def run(name, fields):
  """Traces the initialization of a network."""
  model = vitx.create_model(name, **{**SIZES.get(name, SMALL), **fields})
  x = np.zeros((1, 8), np.int32) if "grid" in SIZES.get(name, {}) else np.zeros((1, 8, 8, 3))
  jax.eval_shape(lambda key: initialize(model, key, x), jax.random.key(0))


@pytest.mark.parametrize(("name", "fields", "start"), UNDECLARED)
def test_an_undeclared_value_is_refused(name, fields, start):
  with pytest.raises(ConfigError) as error:
    run(name, fields)
  assert str(error.value).startswith(start)


# Settings that contradict each other.
WRONG = [
  ("vit", {"causal": True}, "model.causal=True: the class token"),
  ("vit", {"token_mixer": {"name": "fixed", "causal": True}}, "token_mixer.causal=True"),
  ("vit", {"pool": "class_and_distillation"}, "needs model.name='distilled_vit'"),
  ("vit", {"posemb": "rope", "token_mixer": "fnet"}, "needs a token mixer with 'rotary', not FNet"),
  ("vit", {"posemb": "rope", "token_mixer": {"name": "softmax", "rotary": "axial"}}, "sets it too"),
  ("vit", {"token_mixer": "fnet", "initialization": "mimetic"}, "draws query and key"),
  ("distilled_vit", {"pool": "cls"}, "needs model.pool='class_and_distillation'"),
  ("cvt", {"pool": "cls"}, "needs a class token"),
  ("cvt", {"strides": (2, 2, 2)}, "for each of 1 stages"),
  ("pit", {"mlp_dim": (8, 8, 8)}, "for each of 2 stages"),
  ("swin", {"num_heads": (1, 2, 4)}, "for each of 2 stages"),
  ("swin", {"num_heads": 2, "depth": ()}, "for each of 0 stages"),
  *(("resnet", {"depth": depth}, "must be 6 n") for depth in (2, 19, 21)),
  ("sparse_transformer", {"layer_cycle": 3}, "a divisor of model.depth=2"),
  ("sparse_transformer", {"layer_cycle": 2, "stochastic_depth": 0.1}, "model.stochastic_depth=0"),
  ("sparse_transformer", {"layer_cycle": 1, "token_mixer": STRIDED}, "gives layer 1 the attention"),
  (
    "sparse_transformer",
    {"layer_cycle": 1, "token_mixer": "performer"},
    "the blocks have features",
  ),
  ("sparse_transformer", {"token_mixer": "fnet"}, "cannot hide later tokens"),
  ("sparse_transformer", {"grid": (19,)}, "does not have 8 places"),
]


@pytest.mark.parametrize(("name", "fields", "message"), WRONG)
def test_a_contradiction_is_refused(name, fields, message):
  with pytest.raises(ConfigError) as error:
    run(name, fields)
  assert message in str(error.value)
