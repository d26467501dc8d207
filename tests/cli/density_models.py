"""Untrained density models with random variables, in the form that `vitx.load` returns."""

import jax
import jax.numpy as jnp
import numpy as np

from configs.digits import get_config
from vitx.checkpoints.load import Loaded
from vitx.config.fields import read_settings
from vitx.tasks.density import Density

MIXER = {"name": "strided", "form": "code", "stride": 8, "arrangement": "layers"}


def make(source="digits", *, window=None, vocabulary=17, grid=(8, 8, 1), mixer=MIXER, width=16):
  """Returns a model of two layers."""
  config = get_config()
  config.unlock()
  config.data.source = source
  config.model = {
    "name": "sparse_transformer",
    "vocabulary": vocabulary,
    "grid": grid,
    "width": width,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 16,
    "token_mixer": dict(mixer),
  }
  config.task = {"name": "density", "window": window}
  settings = read_settings(config)
  task = Density.from_config(settings, window=window, levels=vocabulary)
  tokens = jax.ShapeDtypeStruct((1, task.length), np.int32)
  shapes = jax.eval_shape(task.model.init, jax.random.key(0), tokens)["params"]
  random = np.random.default_rng(0)
  params = jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.3, x.shape), x.dtype), shapes)
  params["head"]["kernel"] *= 5
  data = {"fingerprint": "", "vocabulary": vocabulary}
  return Loaded(settings, task, {"params": params}, data, step=7, workdir="runs/density")


def text(source="bytes:book.txt", length=24, **fields):
  """Returns a model of windows of bytes."""
  return make(source, window=length, vocabulary=256, grid=(length,), **fields)
