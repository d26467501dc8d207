"""Untrained classifiers with random variables, in the form that `vitx.load` returns."""

import jax
import jax.numpy as jnp
import numpy as np

from configs.digits import get_config
from vitx.checkpoints.load import Loaded
from vitx.config.fields import read_settings
from vitx.tasks import build_task
from vitx.tasks.base import init_shapes

CLASSES = ("ant", "bee", "cat")
STORED, SEEN = 20, 16  # sides of a stored image and of a model's input


def make(name="vit", *, channels=1, crop_ratio=0.8, task=None, **fields):
  """Returns a model of few layers, which sees a crop of each stored image."""
  config = get_config()
  config.unlock()
  config.data.update(decode_size=STORED, image_size=SEEN, channels=channels)
  config.data.update(mean=(0.4,) * channels, std=(0.3,) * channels)
  config.evaluation.crop_ratio = crop_ratio
  config.model = {"name": name, "num_classes": len(CLASSES), **fields}
  if task is not None:
    config.task = task
  settings = read_settings(config)
  task = build_task(settings)
  variables = draw(init_shapes(task))
  data = {"fingerprint": "", "class_names": list(CLASSES)}
  return Loaded(settings, task, variables, data, step=7, workdir="runs/untrained")


def draw(shapes):
  """Returns random variables of the given shapes."""
  random = np.random.default_rng(0)

  def leaf(path, x):
    is_variance = "var" in str(path[-1])  # of a batch norm
    value = random.uniform(0.5, 2.0, x.shape) if is_variance else random.normal(0, 0.3, x.shape)
    return jnp.asarray(value.astype(x.dtype))

  return dict(jax.tree_util.tree_map_with_path(leaf, shapes))


def images(count, channels=1):
  """Returns random images of the stored size, uint8 (count, S, S, C)."""
  shape = (count, STORED, STORED, channels)
  return np.random.default_rng(1).integers(0, 256, shape, np.uint8)
