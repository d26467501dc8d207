"""Records the outputs of whole networks of vit-pytorch: inputs, weights, outputs.

Run it in the environment of `requirements.txt` once with each version: the oldest has no CCT, the
second has other attention, the third is the one that BBViT's authors used, and the fourth has
the network for small data sets:

    pip install --no-deps vit-pytorch==0.19.6 && python tests/golden/record_models.py
    pip install --no-deps vit-pytorch==0.20.8 && python tests/golden/record_models.py
    pip install --no-deps vit-pytorch==0.38.1 && python tests/golden/record_models.py
    pip install --no-deps vit-pytorch==1.26.11 && python tests/golden/record_models.py

Norms and running statistics are moved away from where they start, so that each of them matters.
"""

import importlib.metadata
import sys
import types
from pathlib import Path

import numpy as np
import torch

# The package imports torchvision for parts that are not used here.
_vision = types.ModuleType("torchvision")
_vision.transforms = types.ModuleType("torchvision.transforms")
sys.modules |= {"torchvision": _vision, "torchvision.transforms": _vision.transforms}

HERE = Path(__file__).parent
CLASSES, SIZE = 5, 8
FIELDS = {"num_classes": CLASSES, "dim": 12, "depth": 2, "heads": 2}  # fields of ViT and LeViT
SKIPPED = ("num_batches_tracked", "pos_indices")
# Modules whose outputs are recorded too, as `stem_out` and `mixer_out`.
PARTS = {"small_data": {"stem": "to_patch_embedding", "mixer": "transformer.layers.0.0"}}


def vit():
  from vit_pytorch import ViT

  return ViT(image_size=SIZE, patch_size=2, dim_head=4, mlp_dim=20, **FIELDS)


def bbvit_vit():
  """Returns the ViT that BBViT was compared with; BBViT differs from it in attention alone."""
  from vit_pytorch import ViT

  return ViT(image_size=SIZE, patch_size=2, dim_head=6, mlp_dim=24, pool="mean", **FIELDS)


def small_data():
  """Returns the network for small data sets of Lee et al. 2021.

  It has patches shifted by one pixel along the axes, and locality attention, whose temperature
  is one parameter of each layer, as a logarithm.
  """
  from vit_pytorch.vit_for_small_dataset import ViT

  return ViT(image_size=SIZE, patch_size=4, dim_head=4, mlp_dim=20, **FIELDS)


def levit():
  from vit_pytorch.levit import LeViT

  module = LeViT(image_size=16 * SIZE, stages=1, mlp_mult=2, dim_key=6, dim_value=6, **FIELDS)
  # LeViT's stem has up to 128 channels and leaves 1 token of 256; this stem is smaller.
  sizes = (3, 4, 6, 12)
  convolutions = (
    torch.nn.Conv2d(a, b, 3, stride=stride, padding=1)
    for a, b, stride in zip(sizes, sizes[1:], (1, 1, 1), strict=False)
  )
  module.conv_embedding = torch.nn.Sequential(*convolutions)
  for name, parameter in module.named_parameters():
    if "pos_bias" in name:  # the Vision X-formers have no such bias
      torch.nn.init.zeros_(parameter)
  return module


def cvt():
  from vit_pytorch.cvt import CvT

  fields = {}
  for stage, (dim, heads, depth) in enumerate([(8, 1, 1), (8, 1, 1), (12, 2, 1)], start=1):
    stride = 2 if stage == 2 else 1
    sizes = dict(emb_dim=dim, emb_kernel=3, emb_stride=stride, heads=heads, depth=depth, mlp_mult=2)
    sizes |= dict(proj_kernel=3, kv_proj_stride=2)
    fields |= {f"s{stage}_{name}": value for name, value in sizes.items()}
  return CvT(num_classes=CLASSES, **fields)


def pit():
  from vit_pytorch.pit import PiT

  return PiT(
    image_size=SIZE,
    patch_size=2,
    dim=8,
    num_classes=CLASSES,
    depth=(1, 1),
    heads=2,
    mlp_dim=16,
    dim_head=4,
  )


def cct():
  from vit_pytorch.cct import CCT

  return CCT(
    img_size=SIZE,
    embedding_dim=12,
    n_conv_layers=2,
    kernel_size=3,
    stride=1,
    padding=1,
    pooling_kernel_size=3,
    pooling_stride=2,
    pooling_padding=1,
    num_layers=2,
    num_heads=2,
    mlp_ratio=2.0,
    num_classes=CLASSES,
    positional_embedding="learnable",
  )


def record(name, module):
  """Records the outputs in evaluation and in training, and the statistics after training.

  Training uses the statistics of the batch.
  """
  for key, value in module.state_dict().items():
    if key.endswith("running_var"):
      value.uniform_(0.5, 2.0)
    elif not key.endswith(SKIPPED) and "pos_bias" not in key and value.ndim < 2:
      value.add_(0.3 * torch.randn(value.shape))
  x = torch.randn(4, 3, SIZE, SIZE)
  arrays = {key: value.clone() for key, value in module.state_dict().items()}
  for part, path in PARTS.get(name, {}).items():
    keep = lambda _, inputs, out, key=f"{part}_out": arrays.update({key: out})  # noqa: E731
    module.get_submodule(path).register_forward_hook(keep)
  arrays |= {"x": x, "out": module.eval()(x)}
  if any(key.endswith("running_var") for key in arrays):
    arrays["train_out"] = module.train()(x)
    after = module.state_dict().items()
    arrays |= {f"after.{key}": value for key, value in after if "running" in key}
  arrays = {
    key: np.asarray(value.detach(), np.float32)
    for key, value in arrays.items()
    if not key.endswith(SKIPPED)
  }
  np.savez_compressed(HERE / f"model_{name}.npz", **arrays)


OF_VERSION = {
  "0.19.6": (vit, levit, cvt, pit),
  "0.20.8": (cct,),
  "0.38.1": (bbvit_vit,),
  "1.26.11": (small_data,),
}

if __name__ == "__main__":
  torch.manual_seed(0)
  with torch.no_grad():
    for make in OF_VERSION[importlib.metadata.version("vit-pytorch")]:
      record(make.__name__, make())
