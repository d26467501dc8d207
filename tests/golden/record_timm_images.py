"""Records parts of timm's training: RandAugment, erasing, crops, mixing, learning rates, order.

timm's functions draw from Python's and NumPy's generators. Here they get numbers that are
recorded too.
"""

import json
import random
import types
from pathlib import Path

import numpy as np
import record_timm  # noqa: F401 (stands in for torchvision, which timm imports)
import timm.data.auto_augment as auto_augment
import timm.data.mixup as timm_mixup
import timm.data.random_erasing as random_erasing
import timm.data.transforms as transforms
import torch
from PIL import Image
from timm.data.distributed_sampler import RepeatAugSampler
from timm.scheduler import CosineLRScheduler

HERE = Path(__file__).parent
MEAN = (124, 116, 104)
LEVELS = (2.7, 9.4, 10.0)
SIDE = 20


def picture():
  rng = np.random.default_rng(0)
  ramp = np.linspace(30, 190, SIDE)[:, None, None] * np.linspace(0.5, 1, 3)
  noise = rng.normal(0, 12, (SIDE, SIDE, 3))
  return np.clip(ramp + np.linspace(0, 40, SIDE)[None, :, None] + noise, 5, 235).astype(np.uint8)


def record_operations():
  """Records each operation at each level and sign, bilinear and bicubic where it samples."""
  arrays = {"picture": picture()}
  image = Image.fromarray(arrays["picture"])
  policy = auto_augment.rand_augment_transform("rand-m9-mstd0.5-inc1", {"img_mean": MEAN})
  for name in [op.name for op in policy.ops]:
    for how in ("bilinear", "bicubic"):
      hparams = {"img_mean": MEAN, "interpolation": getattr(Image.Resampling, how.upper())}
      for sign, number in ((1, 0.0), (-1, 1.0)):
        random.random = lambda number=number: number
        pictures = [auto_augment.AugmentOp(name, 1.0, level, hparams)(image) for level in LEVELS]
        arrays[f"{name}/{how}/{sign}"] = np.stack([np.asarray(x) for x in pictures])
  arrays["policy"] = json.dumps(
    {
      "names": [op.name for op in policy.ops],
      "count": policy.num_layers,
      "probability": policy.ops[0].prob,
      "magnitude": policy.ops[0].magnitude,
      "magnitude_std": policy.ops[0].magnitude_std,
      "levels": LEVELS,
      "mean": MEAN,
    }
  )
  return arrays


class Numbers:
  """Replaces the functions of `random`: the numbers are `shares` (attempts, 4) in [0, 1), in order.

  Each attempt draws two numbers between limits and, if its box fits, two integers.
  """

  def __init__(self, shares):
    self.shares, self.attempt, self.asked = shares, -1, 0

  def uniform(self, low, high):
    if self.asked % 2 == 0:
      self.attempt, self.asked = self.attempt + 1, 0
    self.asked += 1
    return low + (high - low) * self.shares[self.attempt, self.asked - 1]

  def randint(self, low, high):
    self.asked += 1
    return low + int(self.shares[self.attempt, self.asked - 1] * (high - low + 1))

  def random(self):
    return 0.0


def record_erasing(rng):
  """Records the erased boxes (top, left, height, width) of images of two sizes."""
  shares = rng.random((40, 10, 4))
  shares[0, :, 0], shares[0, :, 1] = 0.999, 0.999  # each attempt is too high
  boxes = []
  for i, size in enumerate([32, 7] * 20):
    random_erasing.random = Numbers(shares[i])
    erase = random_erasing.RandomErasing(1.0, mode="pixel", device="cpu")
    hole = erase(torch.zeros(1, size, size)).numpy()[0] != 0
    rows, columns = np.flatnonzero(hole.any(1)), np.flatnonzero(hole.any(0))
    box = [rows[0], columns[0], len(rows), len(columns)] if len(rows) else [0, 0, 0, 0]
    boxes.append([size, *box])
  return {"erasing_shares": shares, "erasing_boxes": np.array(boxes)}


def record_crops(rng):
  """Records the boxes (top, left, height, width) of random resized crops of many image shapes."""
  transforms.F = types.SimpleNamespace(get_image_size=lambda image: image.size)
  shares = rng.random((60, 10, 4))
  crops = []
  for i, (height, width) in enumerate([(300, 400), (37, 50), (20, 200), (200, 20), (64, 64)] * 12):
    transforms.random = Numbers(shares[i])
    get = transforms.RandomResizedCropAndInterpolation.get_params
    box = get(Image.new("L", (width, height)), (0.08, 1.0), (3 / 4, 4 / 3))
    crops.append([height, width, *box])
  return {"crop_shares": shares, "crop_boxes": np.array(crops)}


def record_mixing(rng):
  """Records a batch mixed with one share for all, by mixup and by CutMix, with smoothed targets."""
  images = rng.normal(size=(6, 3, 9, 9)).astype(np.float32)
  labels = rng.integers(0, 5, 6)
  cases = [(0.3, False, (0, 0)), (0.83, True, (4, 7)), (0.35, True, (1, 2)), (0.5, True, (8, 0))]
  arrays = {"mix_images": images.transpose(0, 2, 3, 1), "mix_labels": labels}
  arrays["mix_cases"] = np.array([[share, cut, *center] for share, cut, center in cases])
  for i, (share, cut, center) in enumerate(cases):
    centers = iter(center)
    timm_mixup.np = types.SimpleNamespace(
      sqrt=np.sqrt,
      clip=np.clip,
      random=types.SimpleNamespace(randint=lambda *_, size, centers=centers: next(centers)),
    )
    mix = timm_mixup.Mixup(0.8, 1.0, mode="batch", label_smoothing=0.1, num_classes=5)
    mix._params_per_batch = lambda share=share, cut=cut: (share, cut)
    out, targets = mix(torch.from_numpy(images.copy()), torch.from_numpy(labels))
    arrays[f"mix_{i}"] = out.numpy().transpose(0, 2, 3, 1)
    arrays[f"mix_targets_{i}"] = targets.numpy()
  return arrays


def record_rates():
  """Records the learning rate before the first epoch and after each epoch's step."""
  arrays = {}
  for name, peak in (("deit", 1e-3), ("lv_vit", 1.6e-3)):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    schedule = CosineLRScheduler(
      optimizer, t_initial=300, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6
    )
    rates = [optimizer.param_groups[0]["lr"]]
    for epoch in range(310):
      schedule.step(epoch)
      rates.append(optimizer.param_groups[0]["lr"])
    arrays[f"rates_{name}"] = np.array(rates)  # before any step, after step(0), step(1), ...
  return arrays


def record_order(count=768, replicas=4, epochs=2):
  """Records the examples that each replica reads, (epochs, replicas, examples), and their order."""
  read, orders = [], []
  for epoch in range(epochs):
    samplers = [RepeatAugSampler(range(count), replicas, rank) for rank in range(replicas)]
    for sampler in samplers:
      sampler.set_epoch(epoch)
    read.append([list(sampler) for sampler in samplers])
    generator = torch.Generator()
    generator.manual_seed(epoch)
    orders.append(torch.randperm(count, generator=generator).numpy())
  return {"order_read": np.array(read, np.int16), "order": np.array(orders, np.int16)}


def main():
  rng = np.random.default_rng(1)
  arrays = record_operations() | record_erasing(rng) | record_crops(rng) | record_mixing(rng)
  np.savez_compressed(HERE / "timm_images.npz", **arrays, **record_rates(), **record_order())


if __name__ == "__main__":
  main()
