"""Benchmarks of attention on random queries, keys and values, with ratios to reach.

python -m tests.benchmarks.cases
"""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from tests.benchmarks import console, named
from tests.benchmarks.named import Attention, Case, Figure, Kernel
from vitx.ops import attention, linear_attention, linformer_attention, nystrom_attention
from vitx.ops.kernels.features import (
  orthogonal_gaussian,
  softmax_key_features,
  softmax_query_features,
)
from vitx.ops.kernels.nystrom import depthwise_convolution
from vitx.ops.kernels.softmax import kernelized_attention, masked_attention
from vitx.ops.kernels.top_k import kept_keys_attention, kept_mask
from vitx.ops.patterns import Global, Pattern, Strided, Window


def attend(way: str, pattern: Pattern | None = None, tile: int | None = None) -> Attention:
  """Returns vitx's attention along a pattern, in the implementation "masked" or "kernelized"."""
  return partial(attention, pattern=pattern, implementation=way, tile=tile)


def _performer(q, k, v, projection):
  phi = softmax_query_features(q, projection), softmax_key_features(k, projection)
  return linear_attention(*phi, v, implementation="kernelized")[0]


def _features() -> tuple[jax.Array]:
  return (orthogonal_gaussian(jax.random.key(0), 256, 64),)


def _linformer(q, k, v, key_slots, value_slots):
  scale = key_slots.shape[1] ** -0.5
  slots = key_slots * scale, value_slots * scale
  return linformer_attention(q, k, v, *slots, implementation="kernelized")[0]


def _nystromformer(q, k, v, taps):
  out, _ = nystrom_attention(q, k, v, landmarks=64, iterations=6, implementation="kernelized")
  return out + depthwise_convolution(v, taps)


def _window_global(block: int) -> Pattern:
  return Window(1, block=block) | Global(blocks=(0,), block=block)


def _compare_to_masked(kernel: str, time: float, memory: float) -> tuple[Figure, Figure]:
  return Figure(kernel, "masked", "time", time), Figure(kernel, "masked", "memory", memory)


def attend_kept(method: str) -> Attention:
  """Returns attention to the keys that each query keeps.

  The returned function takes q, k, v and the kept keys, int32 (1, H, N, K). The method "masked"
  computes all logits; any other method gathers the keys.
  """

  def kept_keys(q, k, v, indices):
    if method == "masked":
      return masked_attention(q, k, v, mask=kept_mask(indices, None, k.shape[1]))[0]
    return kept_keys_attention(q, k, v, indices)

  return kept_keys


def draw_kept(count: int, n: int, heads: int) -> tuple[np.ndarray]:
  """Draws the keys that each query keeps, int32 (1, H, N, K)."""
  drawn = np.random.default_rng(0).random((1, heads, n, n), np.float32)
  return (np.argpartition(drawn, count, axis=-1)[..., :count].astype(np.int32),)


def _make_kept(count: int) -> Case:
  """Makes the case of Sparsifiner: every query keeps its own keys, drawn at random."""
  n, heads = 2048, 4
  ways = ("masked", "gathered")
  return Case(
    f"kept keys, {count} of N={n} ({count / n:.1%})",
    (1, n, heads, 64),
    {way: Kernel(attend_kept(way), fixed=partial(draw_kept, count, n, heads)) for way in ways},
    (Figure("gathered", "masked", "time", None),),
  )


DENSE = Kernel(kernelized_attention)

CASES = (
  Case(
    "dense, N=4096",
    (1, 4096, 4, 64),
    {"masked": Kernel(attend("masked")), "dense kernelized": DENSE},
    _compare_to_masked("dense kernelized", 1.6, 25),
  ),
  Case(
    "BigBird W+G, blocks of 64, N=4096",
    (1, 4096, 4, 64),
    {
      "masked": Kernel(attend("masked", _window_global(64))),
      "dense kernelized": DENSE,
      "block-sparse": Kernel(attend("kernelized", _window_global(64), 64)),
    },
    (
      *_compare_to_masked("block-sparse", 12, 13),
      Figure("block-sparse", "dense kernelized", "time", 3),
    ),
  ),
  *(
    Case(
      f"BigBird W+G, blocks of 16, B=16, N=544, D={dim}",
      (16, 544, 4, dim),
      {
        "masked": Kernel(attend("masked", _window_global(16))),
        "block-sparse": Kernel(attend("kernelized", _window_global(16), 16)),
      },
      _compare_to_masked("block-sparse", least, 9),
    )
    for dim, least in ((32, 3.6), (64, 2.4))
  ),
  Case(
    "strided, causal, l=128, H=2, N=12288",
    (1, 12288, 2, 64),
    {
      "masked": Kernel(attend("masked", Strided(128, "merged", "paper"))),
      "strided": Kernel(attend("kernelized", Strided(128, "merged", "paper"))),
    },
    _compare_to_masked("strided", 25, 12),
  ),
  Case(
    "linear in N, N=4096",
    (1, 4096, 4, 64),
    {
      "dense kernelized": DENSE,
      "Performer, 256 features": Kernel(_performer, fixed=_features),
      "Linformer, 256 slots": Kernel(_linformer, ((4096, 256), (4096, 256))),
      "Nystromformer, 64 landmarks": Kernel(_nystromformer, ((33, 4),)),
    },
    (
      Figure("Performer, 256 features", "dense kernelized", "time", 3),
      Figure("Linformer, 256 slots", "dense kernelized", "time", 4.5),
      Figure("Nystromformer, 64 landmarks", "dense kernelized", "time", 6),
    ),
  ),
  *(_make_kept(count) for count in (16, 64, 246)),
)


def measure(effort: Mapping[str, Any]) -> None:
  """Measures every case, and prints the ratios beside those to reach."""
  print(named.format_named(named.measure(CASES, **effort)))


if __name__ == "__main__":
  sys.exit(console.start(measure, console.make_parser(__doc__)))
