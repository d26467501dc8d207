"""Records small vision transformers of timm, plain and distilled, and an LV-ViT written here.

timm imports torchvision, which these models do not use: empty modules replace it.
"""

import sys
import types
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn


class _Names(type):
  def __getattr__(cls, name):
    return f"{cls.__name__}.{name}"


class _Anything(types.ModuleType):
  __path__ = ()

  def __getattr__(self, name):
    if name.startswith("__"):
      raise AttributeError(name)
    return _Names(name, (), {})


for _name in (
  *("torchvision", "torchvision.transforms", "torchvision.transforms.functional"),
  *("torchvision.datasets", "torchvision.ops", "torchvision.ops.misc", "torchvision.models"),
  *("torchvision.models.feature_extraction", "torchvision.datasets.folder"),
  "torchvision.transforms.v2",
):
  sys.modules[_name] = _Anything(_name)
  _parent, _, _last = _name.rpartition(".")
  if _parent:
    setattr(sys.modules[_parent], _last, sys.modules[_name])

from timm.models.deit import VisionTransformerDistilled  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

HERE = Path(__file__).parent
SIZE = dict(
  img_size=24, patch_size=8, num_classes=5, embed_dim=12, depth=2, num_heads=3, mlp_ratio=4.0
)


class Attention(nn.Module):
  def __init__(self, width, heads):
    super().__init__()
    self.heads = heads
    self.qkv = nn.Linear(width, 3 * width, bias=False)
    self.proj = nn.Linear(width, width)

  def forward(self, x):
    batch, count, width = x.shape
    q, k, v = self.qkv(x).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    return self.proj((weights @ v).transpose(1, 2).reshape(batch, count, width))


class Mlp(nn.Module):
  def __init__(self, width):
    super().__init__()
    self.fc1, self.fc2 = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

  def forward(self, x):
    return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
  def __init__(self, width, heads, divisor):
    super().__init__()
    self.divisor = divisor
    self.norm1, self.norm2 = nn.LayerNorm(width, 1e-5), nn.LayerNorm(width, 1e-5)
    self.attn, self.mlp = Attention(width, heads), Mlp(width)

  def forward(self, x):
    x = x + self.attn(self.norm1(x)) / self.divisor
    return x + self.mlp(self.norm2(x)) / self.divisor


class Stem(nn.Module):
  """LV-ViT's stem: a convolution of 7 x 7 with stride 2, two of 3 x 3, and a patch embedding."""

  def __init__(self, width, channels=4, patch=4):
    super().__init__()
    self.conv1 = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
    self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
    self.conv3 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
    self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(channels) for _ in range(3))
    self.proj = nn.Conv2d(channels, width, patch, patch)

  def forward(self, x):
    for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
      x = norm(conv(x)).relu()
    return self.proj(x).flatten(2).transpose(1, 2)


class LVViT(nn.Module):
  def __init__(self, width=12, heads=3, depth=2, tokens=9, classes=5, divisor=2.0):
    super().__init__()
    self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
    self.pos_embed = nn.Parameter(torch.zeros(1, tokens + 1, width))
    self.patch_embed = Stem(width)
    self.blocks = nn.ModuleList(Block(width, heads, divisor) for _ in range(depth))
    self.norm = nn.LayerNorm(width, 1e-5)
    self.head, self.aux_head = nn.Linear(width, classes), nn.Linear(width, classes)

  def forward(self, x):
    x = self.patch_embed(x)
    x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
    for block in self.blocks:
      x = block(x)
    x = self.norm(x)
    return self.head(x[:, 0]) + 0.5 * self.aux_head(x[:, 1:]).max(1)[0]


def record(name, model, side=24):
  """Draws all weights and statistics anew, and records them with images and logits."""
  generator = torch.Generator().manual_seed(1)
  with torch.no_grad():
    for tensor in (*model.parameters(), *model.buffers()):
      if tensor.is_floating_point():
        tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
    for key, tensor in model.state_dict().items():
      if key.endswith("running_var"):
        tensor.copy_(tensor.abs() + 0.5)
      if ("norm" in key and key.endswith("weight")) or (".bn" in key and key.endswith("weight")):
        tensor.add_(1.0)
    images = torch.randn(2, 3, side, side, generator=generator)
    logits = model.eval()(images)
  save_file(model.state_dict(), HERE / f"{name}.safetensors")
  np.savez_compressed(
    HERE / f"{name}.npz", images=images.permute(0, 2, 3, 1).numpy(), logits=logits.numpy()
  )


def record_augreg():
  """Draws arrays under Google's names, which timm's own loader reads, and records the outputs."""
  random = np.random.default_rng(2)
  width, heads, dim = 12, 3, 4
  shapes = {
    "cls": (1, 1, width),
    "embedding/kernel": (8, 8, 3, width),
    "embedding/bias": (width,),
    "Transformer/posembed_input/pos_embedding": (1, 10, width),
    "Transformer/encoder_norm/scale": (width,),
    "Transformer/encoder_norm/bias": (width,),
    "head/kernel": (width, 5),
    "head/bias": (5,),
  }
  for i in range(2):
    block = f"Transformer/encoderblock_{i}"
    for norm in ("LayerNorm_0", "LayerNorm_2"):
      shapes |= {f"{block}/{norm}/scale": (width,), f"{block}/{norm}/bias": (width,)}
    attention = f"{block}/MultiHeadDotProductAttention_1"
    for part in ("query", "key", "value"):
      shapes |= {f"{attention}/{part}/kernel": (width, heads, dim)}
      shapes |= {f"{attention}/{part}/bias": (heads, dim)}
    shapes |= {f"{attention}/out/kernel": (heads, dim, width), f"{attention}/out/bias": (width,)}
    for name, pair in (("Dense_0", (width, 48)), ("Dense_1", (48, width))):
      shapes |= {f"{block}/MlpBlock_3/{name}/kernel": pair}
      shapes |= {f"{block}/MlpBlock_3/{name}/bias": pair[1:]}
  arrays = {
    name: (0.3 * random.normal(size=shape) + name.endswith("scale")).astype(np.float32)
    for name, shape in shapes.items()
  }
  np.savez(HERE / "augreg_weights.npz", **arrays)
  model = VisionTransformer(
    **SIZE, act_layer="gelu_tanh", norm_layer=partial(nn.LayerNorm, eps=1e-6)
  )
  model.load_pretrained(str(HERE / "augreg_weights.npz"))
  images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(3))
  with torch.no_grad():
    logits = model.eval()(images)
  np.savez_compressed(
    HERE / "augreg.npz", images=images.permute(0, 2, 3, 1).numpy(), logits=logits.numpy()
  )


def main():
  record_augreg()
  record("timm_vit", VisionTransformer(**SIZE))
  record("timm_distilled", VisionTransformerDistilled(**SIZE))
  record("lv_vit", LVViT())


if __name__ == "__main__":
  main()
