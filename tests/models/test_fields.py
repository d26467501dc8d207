"""Each value of a field of models and their parts works, or the error names it in one line."""

import jax
import numpy as np
import pytest

import vitx
from tests.slow import all_but
from vitx.config.errors import ConfigError
from vitx.config.registry import options
from vitx.models import MODELS
from vitx.models.create import DTYPES

BAD = (-1, 0, 10**9, 1e9, float("nan"), "x", True, None, (0,), ())
SMALL = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8}
SIZES = {
  **dict.fromkeys(("vit", "cct", "distilled_vit", "levit"), SMALL),
  "lv_vit": {**SMALL, "stem": {"name": "normalized", "patch": 2}},
  "pit": {**SMALL, "width": (8, 16), "depth": (1, 1)},
  "cvt": {**SMALL, "depth": (1, 1), "kernel": 1},
  "swin": {"width": 8, "depth": (1, 1), "num_heads": 2},
  "resnet": {"depth": 8, "width": 4},
  "convmixer": {"width": 8, "depth": 1},
  "sparse_transformer": {**SMALL, "vocabulary": 3, "grid": (4, 2)},
}
PARTS = MODELS["vit"].PARTS
# Fields that parts need in a network of one block.
NEEDED = {name: {"layers": (0,)} for name in ("evit", "tome", "zeroed")}
# The tests of attention check the fields of token mixers.
CHOICES = [
  (part, name) for part, (table, _, _) in PARTS.items() if part != "token_mixer" for name in table
]


def run(name, **fields):
  """Creates a network, and traces its outputs and its initialization."""
  of_tokens = name == "sparse_transformer"
  classes = {} if of_tokens else {"num_classes": 3}
  model = vitx.create_model(name, **{**classes, **fields})

  def forward(key, given):
    streams = dict.fromkeys(("params", "dropout", "graph"), key)
    out, variables = model.init_with_output(streams, given, train=True)
    if initialization := getattr(model, "initialization", None):
      initialization(key, variables["params"])
    return out

  images = jax.ShapeDtypeStruct((2, 8, 8, 3), np.float32)
  tokens = jax.ShapeDtypeStruct((2, 8), np.int32)
  found = jax.eval_shape(forward, jax.random.key(0), tokens if of_tokens else images)
  assert found.shape == ((2, 8, 3) if of_tokens else (2, 3))


def check(field, name, **fields):
  """Runs a config that may be wrong in one field; an error must name this field in one line."""
  try:
    run(name, **fields)
  except ConfigError as error:
    assert field in str(error) and "\n" not in str(error), str(error)


# The other parts trace for minutes, so they run with --all.
QUICK_MODELS, QUICK_PARTS = ("vit",), ("stem", "pool")


@pytest.mark.parametrize("value", BAD, ids=repr)
@pytest.mark.parametrize("name", all_but(*QUICK_MODELS, of=MODELS))
def test_fields_of_models(name, value):
  for field in options(MODELS[name]):
    if field not in ("name", "token_mixer"):
      check(field, name, **{**SIZES[name], field: value})


@pytest.mark.parametrize(("part", "choice"), all_but(*QUICK_PARTS, of=CHOICES))
def test_fields_of_parts(part, choice):
  table, _, hidden = PARTS[part]
  model = "distilled_vit" if choice == "class_and_distillation" else "vit"
  around = {"pool": "mean"} if choice == "axes" else {}  # a class token has no coordinates
  for field in options(table[choice]):
    if field in hidden:
      continue
    for value in BAD:
      fields = {"name": choice, **NEEDED.get(choice, {}), field: value}
      check(f"{part}.{field}", model, **SMALL, **around, **{part: fields})


@pytest.mark.parametrize(
  ("name", "fields", "field"),
  [
    ("vit", {"num_heads": 0}, "model.num_heads=0"),
    ("vit", {"dropout": 1.5}, "model.dropout=1.5"),
    ("vit", {"depth": 0}, "model.depth=0"),
    ("vit", {"width": 10**9}, "model.width=1000000000"),
    ("vit", {"remat": 1}, "model.remat=1"),
    ("vit", {"stem": {"name": "linear", "patch": 0}}, "model.stem.patch=0"),
    ("vit", {"stem": {"name": "conv", "channels": (8, 0)}}, "model.stem.channels[1]=0"),
    ("vit", {"stem": None}, "model.stem=None"),
    ("vit", {"posemb": {"name": "rope", "base": -5.0}}, "model.posemb.base=-5.0"),
    ("vit", {"norm": {"name": "layer", "epsilon": -1.0}}, "model.norm.epsilon=-1.0"),
    ("vit", {"block": {"name": "vanilla", "norms": "one"}}, "model.block.norms='one'"),
    ("vit", {"dtype": 3}, "model.dtype=3"),
    ("vit", {"num_classes": 0}, "model.num_classes=0"),
    ("pit", {"depth": 2}, "model.depth=2"),
    ("pit", {"depth": ()}, "model.depth=()"),
    ("cvt", {"num_heads": (0, 1, 1)}, "model.num_heads[0]=0"),
    ("convmixer", {"kernel": 4}, "model.kernel=4"),
    # A program of so many operations, or an array of so many edges, would never be ready.
    ("convmixer", {"kernel": 999_999}, "model.kernel=999999"),
    ("vit", {"stem": {"name": "cct", "pool": 10**6}}, "model.stem.pool=1000000"),
    ("vit", {"token_mixer": {"name": "bilevel", "local_kernel": 65}}, "model.token_mixer.local_"),
    ("vit", {"token_mixer": {"name": "bigbird", "block": 10**6}}, "model.token_mixer.block="),
    ("vit", {"token_mixer": {"name": "axial", "tile": 10**6}}, "model.token_mixer.tile=1000000"),
    ("vit", {"extra_tokens": 10**6}, "model.extra_tokens=1000000"),
    ("swin", {"mlp_ratio": 10**6}, "model.mlp_ratio=1000000"),
    ("cvt", {"kernel": 10**6}, "model.kernel=1000000"),
    ("vit", {"stem": {"name": "hybrid", "kernel": 10**6}}, "model.stem.kernel=1000000"),
    ("vit", {"stem": {"name": "normalized", "kernels": (10**6,)}}, "model.stem.kernels[0]=1000000"),
    *(
      ("vit", {"token_mixer": {"name": mixer, field: 10**6}}, f"model.token_mixer.{field}=1000000")
      for mixer, field in (
        *(("performer", "features"), ("performer", "local_window"), ("performer", "head_dim")),
        *(("softmax", "value_dim"), ("strided", "value_dim"), ("shifted_window", "size")),
        *(("linformer", "slots"), ("sparsifiner", "slots"), ("sparsifiner", "block")),
        *(("nystromformer", "landmarks"), ("mlp_mixing", "hidden"), ("longformer", "window")),
      )
    ),
    (
      "vit",
      {"token_mixer": {"name": "longformer", "dilation": (1, 10**6)}},
      "model.token_mixer.dilation[1]=1000000",
    ),
  ],
)
def test_a_value_that_cannot_work_is_refused(name, fields, field):
  with pytest.raises(ConfigError) as error:
    run(name, **{**SIZES[name], **fields})
  assert str(error.value).startswith(field)


def test_dtypes_by_name_and_from_python():
  for name, dtype in DTYPES.items():
    model, other = (vitx.create_model("vit", num_classes=3, dtype=d) for d in (name, dtype))
    assert model.dtype == other.dtype
