"""CIFAR-10 as 3,072 bytes per image: the Sparse Transformer's density models (Child et al. 2019).

vitx prepare cifar10
python train.py --config configs/sparse_transformer_cifar10.py:strided --workdir runs/st_cifar10

Rows of the paper (Tables 1 and 2, bits per dim): `strided` 2.80, `fixed` 2.85, `dense` 2.82; 128
layers of width 256, 59.2 M parameters. Rows of the released code: `c10_58m` (warm-up of 15,000
steps, 140 epochs), `c10_15m` (32 layers) and `c10_150m` (48 layers of width 512). Ours: not yet
run; `strided,model.depth=4,model.dtype=float32,batch_size=2,learning_rate=1e-3` with 50 steps of
warm-up went from 7.97 to 7.15 bits in 220 steps, 9 minutes on two CPU cores (2026-11-22). From the
released code we take the stride of 96 bytes (a row of the image), the cycle of one strided layer
and three local ones, and the standard deviations of the initial values. The four summaries of 24
bytes in `fixed` are our guess.

Labels are ignored. The checkpoint is chosen on 2,000 of the training images, drawn as in the
released code (`data.validation_choice`).

Memory and devices: `model.remat` keeps one activation (N, C) per block; `model.layer_cycle`
compiles four layers and runs them 32 times. The paper's batch of 16 was two images on each of 8
GPUs. Here the config runs on 1, 8 or 16 devices with equal losses, and with `grad_accum_steps=16`
on one small device. Two CPU cores compile the step of 128 layers in 14 s, as fast as a step of
eight layers, since the state on the devices has one array for all cycles. They compile the
initialization in 60 s. As compiled on these cores, the step for one image in float32 needs 0.93 GB
in addition to the state.

  @article{child2019generating,
    title   = {Generating Long Sequences with Sparse Transformers},
    author  = {Child, Rewon and Gray, Scott and Radford, Alec and Sutskever, Ilya},
    journal = {arXiv:1904.10509},
    year    = {2019}
  }
"""

import re
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from vitx.config import ConfigError, default_config, parse_arg, with_overrides

# Bits per dim of the test set, and parameters in millions, as printed by the sources.
PUBLISHED = {
  "strided": dict(bits=2.80, parameters_m=59),
  "fixed": dict(bits=2.85, parameters_m=59),
  "dense": dict(bits=2.82, parameters_m=59),
  "c10_58m": dict(parameters_m=58),
  "c10_15m": dict(parameters_m=15),
  "c10_150m": dict(parameters_m=150),
}
ROWS = tuple(PUBLISHED)

# The released code's number of training images, number of withheld ones, and random seed.
TRAINING_IMAGES, HELD_OUT, SPLIT_SEED = 50_000, 2_000, 11172018


def get_config(arg: str | None = None) -> ConfigDict:
  """Returns the config of `ROW,field=value,...`; the row defaults to "strided"."""
  row, overrides = parse_arg(arg, ROWS, default="strided")
  config = sparse_transformer()
  config.data.source = "cifar10"
  config.data.validation_choice = "sparse_transformer_cifar10"
  half = dict(head_dim=64, value_dim=128)  # Queries and keys have half the width.
  mixers: dict[str, dict[str, Any]] = {
    "fixed": make_mixer("fixed", stride=96, summary=24) | half,
    "dense": dict(name="softmax") | half,
    "c10_150m": make_mixer("strided", stride=96) | dict(first=1),
  }
  config.model.update(
    width=256,
    depth=128,
    num_heads=2,
    mlp_dim=512,
    token_mixer=mixers.get(row, make_mixer("strided", stride=96) | half),
    vocabulary=256,
    grid=(32, 32, 3),
    dropout=0.25,
    layer_cycle=4,
  )
  config.duration = "120 epochs"
  config.learning_rate = 3.5e-4
  if row.startswith("c10_"):
    config.schedule.warmup = "15000 steps"
    config.duration = "140 epochs"
  if row == "c10_15m":
    config.model.update(depth=32, dropout=0.005)
    config.batch_size = 128
  if row == "c10_150m":
    config.model.update(width=512, depth=48, num_heads=16, mlp_dim=2048)
    config.learning_rate = 1.5e-4
  return with_overrides(config, overrides)


def sparse_transformer() -> ConfigDict:
  """Returns the config that all density models of the paper share (sections 5 and 6)."""
  config = default_config()
  config.task = ConfigDict(dict(name="density"))
  config.model = ConfigDict(dict(name="sparse_transformer", remat=True, dtype="float16"))
  config.batch_size = 16
  config.optimizer = ConfigDict(dict(name="adamw", weight_decay=0.01))
  config.weight_decay_mask = "tensors"
  config.grad_clip_norm = 1.0
  config.ema_decay = 0.999
  config.schedule = ConfigDict(dict(name="cosine", warmup="5000 steps"))
  return config


def make_mixer(kind: str, *, stride: int, **fields: Any) -> dict[str, Any]:
  """Makes a `token_mixer` entry: "strided", or "fixed" with distinct summaries per head."""
  if kind == "fixed":
    merged = dict(name="fixed", stride=stride, arrangement="merged", summary=32, distinct=4)
    return merged | fields
  cycle = dict(name="strided", form="code", arrangement="layers", local_layers=3)
  return cycle | dict(stride=stride) | fields


def choose_validation(train: Any) -> np.ndarray:
  """Chooses the 2,000 images of CIFAR-10 that the released code withholds.

  The released code calls scikit-learn's `train_test_split(test_size=2000, random_state=11172018)`
  on the images in the order of the batch files. TFDS keeps that order in an image's name:
  train_00000 is the first.

  Args:
    train: Training examples of `vitx.data`.

  Returns:
    A boolean array (n,), True for each withheld example.

  Raises:
    ConfigError: The examples are not CIFAR-10's training images.
  """
  matches = [re.fullmatch(r"train_(\d{5})", train.name(i)) for i in range(len(train))]
  numbers = np.array([int(match[1]) for match in matches if match])
  if len(numbers) != TRAINING_IMAGES or len(np.unique(numbers)) != TRAINING_IMAGES:
    raise ConfigError(
      "data.validation_choice='sparse_transformer_cifar10' needs the names of the"
      f" {TRAINING_IMAGES:,} training images of TFDS's cifar10; leave it out for any other source"
    )
  held_out = np.random.RandomState(SPLIT_SEED).permutation(TRAINING_IMAGES)[:HELD_OUT]
  return np.isin(numbers, held_out)
