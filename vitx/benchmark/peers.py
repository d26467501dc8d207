"""PyTorch's own networks of the Vision X-former's sizes, a training step each (extra `peers`).

They are what a user would otherwise take: vit-pytorch's, with its attention, with PyTorch's fused
one, or with the mixers of performer-pytorch, linformer and nystrom-attention.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vitx.errors import MissingExtraError

WIDTH, DEPTH, HEADS, HIDDEN, CLASSES = 128, 4, 4, 256, 10
HEAD_DIM = WIDTH // HEADS
LANDMARKS = SLOTS = 64


def import_torch() -> Any:
  """Imports PyTorch and the packages of the peers.

  Raises:
    MissingExtraError: the extra is not installed.
  """
  try:
    import linformer  # noqa: F401
    import nystrom_attention  # noqa: F401
    import performer_pytorch  # noqa: F401
    import torch
    import vit_pytorch  # noqa: F401
  except ImportError as error:
    raise MissingExtraError("vitx benchmark models --peers", "peers") from error
  return torch


def make_steps(batch: int, side: int, names: tuple[str, ...]) -> Mapping[str, Callable[[], None]]:
  """Returns a training step of each peer: forward, backward and AdamW on a batch of noise.

  Args:
    batch: B.
    side: of the square images; a pixel is a token.
    names: of `PEERS`.
  """
  torch = import_torch()
  torch.manual_seed(0)
  random = np.random.default_rng(0)
  images = torch.tensor(random.normal(size=(batch, 3, side, side)), dtype=torch.float32)
  labels = torch.tensor(random.integers(0, CLASSES, batch))
  return {name: _step(torch, PEERS[name](torch, side), images, labels) for name in names}


def _step(torch: Any, network: Any, images: Any, labels: Any) -> Callable[[], None]:
  optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
  network.train()

  def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()

  return step


def _vit(torch: Any, side: int) -> Any:
  from vit_pytorch import ViT

  sizes = {"image_size": side, "patch_size": 1, "num_classes": CLASSES, "dim": WIDTH}
  return ViT(**sizes, depth=DEPTH, heads=HEADS, dim_head=HEAD_DIM, mlp_dim=HIDDEN)


def _with_mixer(make: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
  """Returns what makes vit-pytorch's network with another token mixer in its attention's place."""

  def network(torch: Any, side: int) -> Any:
    found = _vit(torch, side)
    for layer in found.transformer.layers:
      norm = torch.nn.LayerNorm(WIDTH)
      layer[0] = torch.nn.Sequential(norm, make(torch, side * side + 1))
    return found

  return network


def _fused(torch: Any, tokens: int) -> Any:
  class Fused(torch.nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.to_qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
      self.to_out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
      shape = (*x.shape[:2], HEADS, HEAD_DIM)
      q, k, v = (y.reshape(shape).transpose(1, 2) for y in self.to_qkv(x).chunk(3, dim=-1))
      out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
      return self.to_out(out.transpose(1, 2).reshape(x.shape))

  return Fused()


def _performer(torch: Any, tokens: int) -> Any:
  from performer_pytorch import SelfAttention

  return SelfAttention(WIDTH, heads=HEADS, dim_head=HEAD_DIM)


def _linformer(torch: Any, tokens: int) -> Any:
  from linformer import LinformerSelfAttention

  return LinformerSelfAttention(
    WIDTH, tokens, k=SLOTS, heads=HEADS, one_kv_head=True, share_kv=True
  )


def _nystrom(torch: Any, tokens: int) -> Any:
  from nystrom_attention import NystromAttention

  return NystromAttention(WIDTH, HEAD_DIM, HEADS, num_landmarks=LANDMARKS)


def _fourier(torch: Any, tokens: int) -> Any:
  class Fourier(torch.nn.Module):
    def forward(self, x: Any) -> Any:
      return torch.fft.fft2(x).real

  return Fourier()


PEERS: dict[str, Callable[[Any, int], Any]] = {
  "vit/eager": _vit,
  "vit/fused": _with_mixer(_fused),
  "vip": _with_mixer(_performer),
  "vil": _with_mixer(_linformer),
  "vin": _with_mixer(_nystrom),
  "fnet": _with_mixer(_fourier),
}
