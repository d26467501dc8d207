"""Benchmarks of training steps beside those of PyTorch (extra `peers`).

python -m tests.benchmarks.peers
python -m tests.benchmarks.peers --memory
python -m tests.benchmarks.peers --config vix_cifar10:stride=2 --rows vit vip
python -m tests.benchmarks.peers --config vix_cifar10:token_mixer=neighborhood --rows vit

A peer is a network of PyTorch that a user would otherwise train: that of vit-pytorch, with its own
attention, with PyTorch's fused attention, with FlexAttention along neighborhoods, or with the
mixers of performer-pytorch, linformer and nystrom-attention. Peers run where vitx runs, on a GPU
under `torch.compile` and with TF32 products, which vitx has there too.
"""

import dataclasses
import functools
import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from tests.benchmarks import console, libraries, steps
from vitx.attention import MIXERS
from vitx.benchmark.timing import peak_bytes
from vitx.cli.plan import find_texts
from vitx.config.errors import MissingExtraError, listing
from vitx.config.loader import load_config
from vitx.config.registry import fields_of
from vitx.tasks.settle import complete_config
from vitx.training import phases

# The config whose steps have ratios to reach, at B = 8, and the rows of it that have peers.
CONFIG = "vix_cifar10:batch_size=8"
ROWS = ("vit", "vip", "vil", "vin", "fnet")
# The largest ratio of the time of our step to that of the peer.
GOALS = {"vit/fused": 1.0, "vip": 0.8, "vil": 0.8, "vin": 0.8, "fnet": 0.8}

# The parts of vit-pytorch's network by the field of `model`; a field that is not set means these.
PARTS = {"stem": "linear", "posemb": "learned", "pool": "cls", "norm": "layer", "block": "pre_norm"}


def import_torch() -> Any:
  """Imports PyTorch and the packages of the peers.

  Raises:
    MissingExtraError: The extra is not installed.
  """
  try:
    for name in ("linformer", "nystrom_attention", "performer_pytorch", "vit_pytorch"):
      importlib.import_module(name)
    return importlib.import_module("torch")
  except ImportError as error:
    raise MissingExtraError("tests.benchmarks.peers", "peers") from error


def find_device() -> str:
  """Returns PyTorch's name of the kind of device on which vitx runs."""
  return "cuda" if jax.default_backend() == "gpu" else "cpu"


def find_peers(config: ConfigDict) -> list[str]:
  """Returns the names in `PEERS` of PyTorch's networks that have a completed config's structure.

  The list is empty if the network differs from vit-pytorch's.
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
    config: The completed config.
    peer: The name of the peer, one of `find_peers`.
  """
  torch = import_torch()
  torch.manual_seed(0)
  random, size = np.random.default_rng(0), config.data.image_size
  shape = (config.batch_size, config.data.channels, size, size)
  labels = random.integers(0, config.model.num_classes, config.batch_size)
  device = find_device()
  on_gpu = device == "cuda"
  images = torch.tensor(random.normal(size=shape), dtype=torch.float32, device=device)
  targets = torch.tensor(labels, device=device)
  network = make_network(torch, config, peer).to(device).train()
  optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
  if on_gpu:
    torch.set_float32_matmul_precision("high")
    network = torch.compile(network)

  def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(network(images), targets).backward()
    optimizer.step()
    if on_gpu:
      torch.cuda.synchronize()

  return step


def make_network(torch: Any, config: ConfigDict, peer: str) -> Any:
  """Returns vit-pytorch's network with the sizes of a completed config and a peer's token mixer."""
  from vit_pytorch import ViT

  model, mixer = config.model, fields_of(config.model.token_mixer)
  defaults = {field.name: field.default for field in dataclasses.fields(MIXERS[mixer["name"]])}
  fields = defaults | mixer
  fields["head_dim"] = fields.get("head_dim") or model.width // model.num_heads
  network = ViT(
    image_size=config.data.image_size,
    patch_size=model.stem.patch,
    num_classes=model.num_classes,
    channels=config.data.channels,
    dim=model.width,
    depth=model.depth,
    heads=model.num_heads,
    dim_head=fields["head_dim"],
    mlp_dim=model.mlp_dim,
  )
  make = PEERS[mixer["name"]][peer]
  for layer in network.transformer.layers if make else ():
    tokens = (config.data.image_size // model.stem.patch) ** 2 + 1  # with the class token
    module = make(torch, model.width, model.num_heads, fields | {"tokens": tokens})
    layer[0] = torch.nn.Sequential(torch.nn.LayerNorm(model.width), module)
  return network


def _fused(torch: Any, width: int, heads: int, fields: Mapping[str, Any]) -> Any:
  return _attend(torch, width, heads, fields, torch.nn.functional.scaled_dot_product_attention)


def _flex(torch: Any, width: int, heads: int, fields: Mapping[str, Any]) -> Any:
  from torch.nn.attention.flex_attention import create_block_mask, flex_attention

  tokens, side = fields["tokens"], math.isqrt(fields["tokens"])

  def allows(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Returns the edges between patches, and all edges of the class token, token 0."""
    near = libraries.is_neighbor(q - 1, k - 1, (side, side), fields["size"])
    return near | (q == 0) | (k == 0)

  mask = create_block_mask(allows, None, None, tokens, tokens, device=find_device())
  return _attend(torch, width, heads, fields, functools.partial(flex_attention, block_mask=mask))


def _attend(torch: Any, width: int, heads: int, fields: Mapping[str, Any], attend: Callable) -> Any:
  """Returns a module of attention that calls `attend` with q, k and v of (B, H, N, D)."""
  inner = heads * fields["head_dim"]

  class Attention(torch.nn.Module):
    def __init__(self) -> None:
      super().__init__()
      self.to_qkv = torch.nn.Linear(width, 3 * inner, bias=False)
      self.to_out = torch.nn.Linear(inner, width)

    def forward(self, x: Any) -> Any:
      shape = (*x.shape[:2], heads, fields["head_dim"])
      q, k, v = (y.reshape(shape).transpose(1, 2) for y in self.to_qkv(x).chunk(3, dim=-1))
      return self.to_out(attend(q, k, v).transpose(1, 2).reshape(*x.shape[:2], inner))

  return Attention()


def _performer(torch: Any, width: int, heads: int, fields: Mapping[str, Any]) -> Any:
  from performer_pytorch import SelfAttention

  sizes = {"dim_head": fields["head_dim"], "nb_features": fields["features"]}
  return SelfAttention(width, heads=heads, **sizes)


def _linformer(torch: Any, width: int, heads: int, fields: Mapping[str, Any]) -> Any:
  from linformer import LinformerSelfAttention

  shared = {name: fields[name] for name in ("one_kv_head", "share_kv")}
  sizes = {"k": fields["slots"], "heads": heads, "dim_head": fields["head_dim"]}
  return LinformerSelfAttention(width, fields["tokens"], **sizes, **shared)


def _nystrom(torch: Any, width: int, heads: int, fields: Mapping[str, Any]) -> Any:
  from nystrom_attention import NystromAttention

  return NystromAttention(width, fields["head_dim"], heads, num_landmarks=fields["landmarks"])


def _fourier(torch: Any, width: int, heads: int, fields: Mapping[str, Any]) -> Any:
  class Fourier(torch.nn.Module):
    def forward(self, x: Any) -> Any:
      return torch.fft.fft2(x).real

  return Fourier()


# The peers of a network by its token mixer: functions that make the peer's mixer, by name; `None`
# means vit-pytorch's own attention.
PEERS: Mapping[str, Mapping[str, Callable | None]] = {
  "softmax": {"eager": None, "fused": _fused},
  "neighborhood": {"FlexAttention": _flex},
  "performer": {"performer-pytorch": _performer},
  "linformer": {"linformer": _linformer},
  "nystromformer": {"nystrom-attention": _nystrom},
  "fnet": {"torch.fft": _fourier},
}


def measure(
  config: str | None, rows: Sequence[str] | None, memory: bool, effort: Mapping[str, Any]
) -> None:
  """Prints the ratios of our steps' time, and of their peak memory, to those of the peers.

  Args:
    config: The config whose rows are compared; `None` means `CONFIG`, which has goals.
    rows: The names of the rows; `None` means all rows that have peers.
    memory: Whether to measure the peak memory too.
    effort: Arguments of `steps.compare`.

  Raises:
    ConfigError: A row is unknown.
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
  dispatches = {row: steps.make_dispatch(load_config(text)) for row, text in texts.items()}
  # Both sides run equally many steps in a sample.
  both = {
    name: (dispatches[row][0], _repeat(_make_peer(peer, texts[row]), dispatches[row][1]))
    for name, (row, peer) in pairs.items()
  }
  ratios = steps.compare(both, **effort)
  print(f"Time {of}")
  print(console.format_ratios(ratios, {} if config else GOALS, most=True), flush=True)


def _find_rows(config: str, names: Sequence[str], say: Callable) -> dict[str, str]:
  """Returns the text of the config of each row that has a peer, by the row's name."""
  texts = find_texts(config, names, whole=not names)
  having = {row: text for row, text in texts.items() if find_peers(_complete(text))}
  if without := [row for row in texts if row not in having]:
    say(f"no peer has the structure of {listing(without)}")
  return having


def pair_row(row: str, text: str) -> dict[str, tuple[str, str]]:
  """Returns (row, peer) for each peer, by the row's name or, if it has several, by "row/peer"."""
  peers = find_peers(_complete(text))
  return {row if len(peers) == 1 else f"{row}/{peer}": (row, peer) for peer in peers}


def _complete(text: str) -> ConfigDict:
  return complete_config(load_config(text))


def _begin(text: str) -> None:
  """Starts JAX as a training with this config does."""
  phases.use_cores([load_config(text)])
  jax.devices()


def _make_ours(text: str) -> Callable[[], None]:
  """Returns a function that runs a dispatch of vitx's training, whose memory is measured."""
  return steps.make_dispatch(load_config(text))[0]


def _make_peer(peer: str, text: str) -> Callable[[], None]:
  return make_step(_complete(text), peer)


def _repeat(step: Callable[[], None], times: int) -> Callable[[], None]:
  def steps() -> None:
    for _ in range(times):
      step()

  return steps


if __name__ == "__main__":
  parser = console.make_parser(__doc__, repeats=5)
  parser.add_argument(
    "--config", metavar="FILE", help="config with rows; by default the Vision X-former's"
  )
  parser.add_argument("--rows", nargs="+", help="names of rows; by default all that have peers")
  parser.add_argument("--memory", action="store_true", help="measure the peak memory too")
  sys.exit(console.start(measure, parser))
