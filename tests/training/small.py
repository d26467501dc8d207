"""A small task and its batches, for tests of the step."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import optax

from vitx.config import default_config
from vitx.data.images.augment import make_eval_preprocess, make_train_augment
from vitx.models import create_model
from vitx.runtime import parallel
from vitx.tasks.base import init_variables
from vitx.tasks.classification import Classification
from vitx.training.step import Rates, Step, TrainState

CLASSES, SIZE = 5, 8
STATISTICS = {"image_size": SIZE, "mean": (0.5,), "std": (0.25,)}


def task(augment=None, mean=(0.5,), **fields):
  """Returns the classification of 8 x 8 gray images.

  It has dropout, stochastic depth and mixing, unless the arguments change them.
  """
  seen = STATISTICS | {"mean": mean}
  settings = default_config().augment.to_dict()
  settings |= {"hflip": 0.5, "mixup": 0.4, "pad_crop": 1} if augment is None else augment
  fields = {"depth": 2, "dropout": 0.2, "stochastic_depth": 0.2} | fields
  model = create_model("vit", num_classes=CLASSES, width=16, num_heads=2, mlp_dim=32, **fields)
  return Classification(
    model=model,
    augment=make_train_augment(settings, num_classes=CLASSES, label_smoothing=0.1, **seen),
    preprocess=make_eval_preprocess(default_config().evaluation, **seen),
    num_classes=CLASSES,
    decode_size=SIZE,
    image_size=SIZE,
    channels=1,
  )


def make_step(the_task=None, **fields) -> Step:
  the_task = the_task or task()
  defaults = {
    "task": the_task,
    "initialize": functools.partial(init_variables, the_task),
    "optimizer": optax.scale_by_adam(),
    "schedule": lambda step: 1e-2,
  }
  return Step(**(defaults | fields))


def batch(step: int, rows: int = 16) -> dict[str, np.ndarray]:
  """Returns a global batch of images whose mean depends on the class."""
  random = np.random.default_rng(step)
  label = random.integers(0, CLASSES, rows).astype(np.int32)
  image = random.integers(0, 100, (rows, SIZE, SIZE, 1)) + 30 * label[:, None, None, None]
  index = np.arange(rows, dtype=np.int32)
  return {"image": image.astype(np.uint8), "label": label, "index": index}


def initial(step: Step) -> TrainState:
  return jax.jit(step.init)(jax.random.key(0))


def run(step: Step, steps: int, devices: int, rows: int = 16, seed: int = 7):
  """Returns the losses and the final state of some steps on 1 or 2 devices."""
  losses, states = zip(*trail(step, steps, devices, rows, seed), strict=True)
  return np.array(losses), states[-1]


def trail(step: Step, steps: int, devices: int, rows: int = 16, seed: int = 7):
  """Yields the loss of every step, and the unreplicated state after it."""
  state = copies(initial(step), devices)
  for number in range(steps):
    state, metrics, _ = train(step, state, batch(number, rows), devices, seed=seed)
    loss = float(np.asarray(metrics["loss"])[0])
    yield loss, jax.tree.map(lambda x: x[0], jax.device_get(state))


def copies(state: Any, devices: int) -> Any:
  return jax.tree.map(lambda x: np.stack([np.asarray(x)] * devices), state)


def train(step: Step, state: TrainState, rows: dict, devices: int, stop=(0, 0), seed=7):
  """Calls `Step.train` on 1 or 2 devices; `stop` has the wish of each device to stop."""
  shares = {k: v.reshape(devices, -1, *v.shape[1:]) for k, v in rows.items()}
  wishes = np.array(stop[:devices], np.int32)
  return pmapped(step, "train", devices)(state, rates(devices, seed), {}, shares, wishes)


def rates(devices: int, seed: int = 7) -> Rates:
  return copies(Rates.create(seed), devices)


@functools.cache
def pmapped(step: Step, method: str, devices: int):
  """Returns a method of a step, pmapped over some devices; it is compiled once."""
  function = getattr(dataclasses.replace(step, axis=parallel.AXIS), method)
  return jax.pmap(function, axis_name=parallel.AXIS, devices=jax.devices()[:devices])
