"""Training steps beside PyTorch's of a config's sizes (extra `peers`).

python -m tests.benchmarks.peers
python -m tests.benchmarks.peers --memory
python -m tests.benchmarks.peers --config vix_cifar10:stride=2 --rows vit,vip

PyTorch's are what a user would otherwise take: vit-pytorch's, with its attention, with PyTorch's
fused one, or with the mixers of performer-pytorch, linformer and nystrom-attention.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from tests.benchmarks import console, steps
from vitx.attention.registry import MIXERS
from vitx.benchmark.timing import peak_bytes
from vitx.cli.plan import find_texts
from vitx.config.errors import ConfigError, MissingExtraError, listing
from vitx.config.loader import load_config
from vitx.config.registry import fields_of
from vitx.training import phases, trial

# The config whose steps have figures to reach, at B = 8, and those of its rows that have peers.
CONFIG = "vix_cifar10:batch_size=8"
ROWS = ("vit", "vip", "vil", "vin", "fnet")
# Time of our step over the peer's, at most.
GOALS = {"vit/fused": 1.0, "vip": 0.8, "vil": 0.8, "vin": 0.8, "fnet": 0.8}

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
    raise MissingExtraError("tests.benchmarks.peers", "peers") from error
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


def measure(
  config: str | None, rows: Sequence[str] | None, memory: bool, effort: Mapping[str, Any]
) -> None:
  """Prints our steps' time, and with `memory` their peak of memory, over those of the peers.

  Raises:
    ConfigError: an unknown row, one without a peer, or a config of which no row has one.
    MissingExtraError: PyTorch or a peer is not installed.
  """
  texts = _find_rows(config or CONFIG, rows or (() if config else ROWS), effort["say"])
  import_torch()
  pairs = {name: pair for row in texts for name, pair in pair_row(row, texts[row]).items()}
  of = f"of our step over PyTorch's, float32, {config or CONFIG}"
  phases.use_cores(map(load_config, texts.values()))
  jax.devices()
  if memory:
    peaks = {}
    for name, (row, peer) in pairs.items():
      effort["say"](f"{name}: memory")
      mine = peak_bytes(functools.partial(_begin, texts[row]), _make_ours, texts[row])
      theirs = peak_bytes(import_torch, functools.partial(_make_peer, peer), texts[row])
      peaks[name] = [mine / theirs]
    print(f"Peak memory {of}")
    print(console.format_ratios(peaks, dict.fromkeys(pairs, 1.0), most=True), flush=True)
  made = {row: trial.make_dispatch(_complete(text)) for row, text in texts.items()}
  # Both sides make as many steps in a sample.
  both = {
    name: (made[row][0], _repeat(_make_peer(peer, texts[row]), made[row][1]))
    for name, (row, peer) in pairs.items()
  }
  found = steps.compare(both, **effort)
  print(f"Time {of}")
  print(console.format_ratios(found, {} if config else GOALS, most=True), flush=True)


def _find_rows(config: str, wanted: Sequence[str], say: Callable) -> dict[str, str]:
  """Returns the text of each row that has a peer; those that were named must have one."""
  texts = find_texts(config, wanted, whole=not wanted)
  having = {row: text for row, text in texts.items() if find_peers(_complete(text))}
  without = [row for row in texts if row not in having]
  parts = ", ".join(f"{part}={name}" for part, name in PARTS.items())
  what = (
    f"PyTorch's are a vit in float32 of square images with {parts} and a token_mixer of"
    f" {listing(PEERS)}"
  )
  if not having or (wanted and without):
    raise ConfigError(f"peers: there is none beside {listing(without)}; {what}")
  if without:
    say(f"no peer: {listing(without)}; {what}")
  return having


def pair_row(row: str, text: str) -> dict[str, tuple[str, str]]:
  """Returns a row with each of its peers, named by both where there are several."""
  found = find_peers(_complete(text))
  return {row if len(found) == 1 else f"{row}/{peer}": (row, peer) for peer in found}


def _complete(text: str) -> ConfigDict:
  return trial.complete_config(load_config(text))


def _begin(text: str) -> None:
  """Begins JAX as a training of this config does."""
  phases.use_cores([load_config(text)])
  jax.devices()


def _make_ours(text: str) -> Callable[[], None]:
  """Returns a dispatch of ours, for its memory."""
  return trial.make_dispatch(_complete(text))[0]


def _make_peer(peer: str, text: str) -> Callable[[], None]:
  return make_step(_complete(text), peer)


def _repeat(step: Callable[[], None], times: int) -> Callable[[], None]:
  def steps() -> None:
    for _ in range(times):
      step()

  return steps


if __name__ == "__main__":
  parser = console.make_parser(__doc__, repeats=5)
  parser.add_argument("--config", metavar="FILE", help="of whose rows; else the Vision X-former's")
  parser.add_argument("--rows", nargs="+", help="of the config; else all that have a peer")
  parser.add_argument("--memory", action="store_true", help="also the peak of a process of its own")
  sys.exit(console.start(measure, parser))
