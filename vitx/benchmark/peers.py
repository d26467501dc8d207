"""PyTorch's own networks of a config's sizes, a training step each (extra `peers`).

They are what a user would otherwise take: vit-pytorch's, with its attention, with PyTorch's fused
one, or with the mixers of performer-pytorch, linformer and nystrom-attention.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from vitx.attention.registry import MIXERS
from vitx.config.errors import MissingExtraError
from vitx.config.registry import fields_of

# What vit-pytorch's network is made of, by the field of `model`; also what is meant by none.
PARTS = {
  "stem": "linear",
  "posemb": "learned",
  "pool": "cls",
  "norm": "layer",
  "block": "pre_norm",
}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What a peer is made of, as a config has it.

  Attributes:
    batch: B.
    image_size: of square images.
    channels: of the images.
    patch: side of a patch.
    classes: L of the head.
    width: C.
    depth: layers.
    heads: H.
    head_dim: D.
    mlp_dim: hidden channels of the MLP.
    mixer: name of the token mixer.
    of_mixer: its fields.
  """

  batch: int
  image_size: int
  channels: int
  patch: int
  classes: int
  width: int
  depth: int
  heads: int
  head_dim: int
  mlp_dim: int
  mixer: str
  of_mixer: Mapping[str, Any]

  @property
  def tokens(self) -> int:
    """Returns N, with the class token."""
    return (self.image_size // self.patch) ** 2 + 1


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


def find_peers(config: ConfigDict) -> list[str]:
  """Returns the names of PyTorch's networks like a config's: of `PEERS`, none where there is none.

  Args:
    config: completed.
  """
  model = config.model
  if config.task.name != "classification" or model.name != "vit" or model.dtype != "float32":
    return []
  if isinstance(config.data.image_size, tuple):  # theirs are square
    return []
  like_theirs = all(
    fields_of(model.get(part, name))["name"] == name for part, name in PARTS.items()
  )
  return list(PEERS.get(fields_of(model.token_mixer)["name"], {})) if like_theirs else []


def make_step(config: ConfigDict, peer: str) -> Callable[[], None]:
  """Returns a training step of a peer: forward, backward and AdamW on a batch of noise.

  Args:
    config: completed; one of those that have this peer.
    peer: of `find_peers`.
  """
  torch = import_torch()
  sizes = read_sizes(config)
  torch.manual_seed(0)
  random = np.random.default_rng(0)
  shape = (sizes.batch, sizes.channels, sizes.image_size, sizes.image_size)
  images = torch.tensor(random.normal(size=shape), dtype=torch.float32)
  labels = torch.tensor(random.integers(0, sizes.classes, sizes.batch))
  network = PEERS[sizes.mixer][peer](torch, sizes)
  optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
  network.train()

  def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()

  return step


def read_sizes(config: ConfigDict) -> Sizes:
  """Returns what a peer of a completed config is made of."""
  model, data, given = config.model, config.data, fields_of(config.model.token_mixer)
  mixer = given["name"]
  own: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(MIXERS[mixer])}
  return Sizes(
    batch=config.batch_size,
    image_size=data.image_size,
    channels=data.channels,
    patch=model.stem.patch,
    classes=model.num_classes,
    width=model.width,
    depth=model.depth,
    heads=model.num_heads,
    head_dim=given.get("head_dim") or model.width // model.num_heads,
    mlp_dim=model.mlp_dim,
    mixer=mixer,
    of_mixer=own | given,
  )


def _vit(torch: Any, sizes: Sizes) -> Any:
  from vit_pytorch import ViT

  return ViT(
    image_size=sizes.image_size,
    patch_size=sizes.patch,
    num_classes=sizes.classes,
    channels=sizes.channels,
    dim=sizes.width,
    depth=sizes.depth,
    heads=sizes.heads,
    dim_head=sizes.head_dim,
    mlp_dim=sizes.mlp_dim,
  )


def _with_mixer(make: Callable[[Any, Sizes], Any]) -> Callable[[Any, Sizes], Any]:
  """Returns what makes vit-pytorch's network with another token mixer in its attention's place."""

  def network(torch: Any, sizes: Sizes) -> Any:
    found = _vit(torch, sizes)
    for layer in found.transformer.layers:
      layer[0] = torch.nn.Sequential(torch.nn.LayerNorm(sizes.width), make(torch, sizes))
    return found

  return network


def _fused(torch: Any, sizes: Sizes) -> Any:
  inner = sizes.heads * sizes.head_dim

  class Fused(torch.nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.to_qkv = torch.nn.Linear(sizes.width, 3 * inner, bias=False)
      self.to_out = torch.nn.Linear(inner, sizes.width)

    def forward(self, x: Any) -> Any:
      shape = (*x.shape[:2], sizes.heads, sizes.head_dim)
      q, k, v = (y.reshape(shape).transpose(1, 2) for y in self.to_qkv(x).chunk(3, dim=-1))
      out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
      return self.to_out(out.transpose(1, 2).reshape(*x.shape[:2], inner))

  return Fused()


def _performer(torch: Any, sizes: Sizes) -> Any:
  from performer_pytorch import SelfAttention

  features = sizes.of_mixer["features"]
  return SelfAttention(
    sizes.width, heads=sizes.heads, dim_head=sizes.head_dim, nb_features=features
  )


def _linformer(torch: Any, sizes: Sizes) -> Any:
  from linformer import LinformerSelfAttention

  return LinformerSelfAttention(
    sizes.width,
    sizes.tokens,
    k=sizes.of_mixer["slots"],
    heads=sizes.heads,
    dim_head=sizes.head_dim,
    one_kv_head=sizes.of_mixer["one_kv_head"],
    share_kv=sizes.of_mixer["share_kv"],
  )


def _nystrom(torch: Any, sizes: Sizes) -> Any:
  from nystrom_attention import NystromAttention

  landmarks = sizes.of_mixer["landmarks"]
  return NystromAttention(sizes.width, sizes.head_dim, sizes.heads, num_landmarks=landmarks)


def _fourier(torch: Any, sizes: Sizes) -> Any:
  class Fourier(torch.nn.Module):
    def forward(self, x: Any) -> Any:
      return torch.fft.fft2(x).real

  return Fourier()


# What stands beside a network with each token mixer: the maker of a network, by a name that tells
# two of them apart.
PEERS: Mapping[str, Mapping[str, Callable[[Any, Sizes], Any]]] = {
  "softmax": {"eager": _vit, "fused": _with_mixer(_fused)},
  "performer": {"performer-pytorch": _with_mixer(_performer)},
  "linformer": {"linformer": _with_mixer(_linformer)},
  "nystromformer": {"nystrom-attention": _with_mixer(_nystrom)},
  "fnet": {"torch.fft": _with_mixer(_fourier)},
}
