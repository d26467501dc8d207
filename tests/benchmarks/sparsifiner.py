"""Benchmarks of Sparsifiner's attention: single keys, given indices, and blocks of keys.

The ratios to reach hold for forward and backward pass in float32 on two quiet CPU cores. The
predictor's arrays have no gradient, as in the mixer. They are random, so that the predicted keys
are random too, which is the hardest case for a kernel. The second table has the multiply-adds that
the paper counts, and those that the code makes.

python -m tests.benchmarks.sparsifiner
python -m tests.benchmarks.sparsifiner --parts flops
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks import console, named
from tests.benchmarks.cases import attend_kept, draw_kept
from tests.benchmarks.named import Attention, Case, Figure, Kernel
from vitx import ops
from vitx.analysis import cost
from vitx.ops.kernels.key_scores import predict_coefficients
from vitx.ops.kernels.selection import count_kept
from vitx.ops.kernels.softmax import kernelized_attention

HEADS, HEAD_DIM, SLOTS = 4, 64, 32
SHARE, BLOCK_SHARE, GIVEN = 0.1, 0.06, 32  # shares of keys and of key blocks; number of given keys
BLOCK = 64
FLASH = "dense flash"
PARTS = ("attention", "flops")
SHARES = (0.9, 0.7, 0.5, 0.25, 0.1, 0.05)  # of keys, in the table of multiply-adds


# "MHSA" in the paper means the two products with the attention matrix and the predictor, without
# projections; its FLOPs are multiply-adds (Tables 1 to 3).
@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a backbone that determine its attention's multiply-adds.

  In each head, a predictor selects the keys of each query. It computes S coefficients for each
  patch, sets the small ones to zero, and multiplies them by a sparse basis of S vectors over the n
  tokens.

  Attributes:
    depth: The number of layers, L.
    tokens: The number of tokens, n, including the class token.
    width: The width of a token, d.
    heads: The number of heads, H.
    density: The share s of the multiplications of a coefficient by a basis element in which neither
      factor is zero. It follows from the published figures.
    slots: The number S of coefficients of a patch, which the predictor computes by mixing the keys
      into S slots.
    channel_divisor: The factor by which the predictor reduces a head's channels.
  """

  depth: int
  tokens: int
  width: int
  heads: int
  density: float
  slots: int = 32
  channel_divisor: int = 2


SIZES = {
  "deit_s": Sizes(12, 197, 384, 6, 0.13 * 0.092),
  "lv_vit_s": Sizes(16, 197, 384, 6, 0.0197),
  "lv_vit_m": Sizes(20, 197, 512, 8, 0.0172),
}
# The last is the network of configs/sparsifiner_small.py. Its density is the mean over the layers
# and runs of results/sparsifiner_small/cifar10_masks/runs.csv.
NETWORKS = SIZES | {"sparsifiner_small": Sizes(4, 65, 64, 4, 0.319, slots=10)}


def dense_macs(sizes: Sizes) -> int:
  """Returns the multiply-adds of dense attention, 2 n² d per layer for n tokens of width d."""
  return 2 * sizes.depth * sizes.tokens**2 * sizes.width


def published_macs(sizes: Sizes, budget: int) -> float:
  """Returns the multiply-adds that reproduce the paper's tables.

  They include attention from each patch to B keys and from the class token to all keys, and these
  parts of the predictor: one reduction of channels, one mixing of the keys into slots, the product
  of queries and mixed keys at half the channels, and the product of the sparse coefficients and the
  sparse basis. The sum is linear in B, and was fitted to the tables: 75.28 M + 1.80634 M B for
  DeiT-S. We guess the parts of the constant; the guess lacks one product of the released code.

  Args:
    sizes: The sizes of the backbone.
    budget: The number of keys to keep, B.
  """
  n, d, S = sizes.tokens, sizes.width, sizes.slots
  sparse = sizes.density * sizes.heads * (n - 1) * n * S
  attention = 2 * (n - 1) * d * budget + 2 * n * d
  reduced = d // sizes.channel_divisor
  return sizes.depth * (attention + n * d * S + (n - 1) * d * S + (n - 1) * reduced * S + sparse)


def released_macs(sizes: Sizes, budget: int) -> float:
  """Returns the multiply-adds in the released code, with its sparse product counted as sparse.

  They include both reductions of channels, the mixing of the keys into slots, the product of
  queries and mixed keys, and attention as in `published_macs`. The released code itself multiplies
  dense matrices.
  """
  n, d, S = sizes.tokens, sizes.width, sizes.slots
  reduced = d // sizes.heads // sizes.channel_divisor  # the reduced channels of a head
  predictor = 2 * n * d * reduced + 2 * n * sizes.heads * reduced * S
  sparse = sizes.density * sizes.heads * (n - 1) * n * S
  return sizes.depth * (2 * (n - 1) * d * budget + 2 * n * d + predictor + sparse)


def make_cases(short: int = 1024, long: int = 4096, block: int = BLOCK) -> tuple[Case, ...]:
  """Returns the cases; their ratios to reach hold for the default sizes.

  Args:
    short: The number of tokens N of the case that chooses single keys.
    long: The number of tokens N of the other cases.
    block: The number of tokens in a block.
  """
  keys, blocks = math.ceil(SHARE * short), math.ceil(BLOCK_SHARE * long / block)
  return (
    Case(
      f"keys, {keys} of N={short}, predictor included",
      (1, short, HEADS, HEAD_DIM),
      {
        "masked": _predicted(short, keys, implementation="masked"),
        "kernelized": _predicted(short, keys, implementation="kernelized"),
        "sparse": _predicted(short, keys, implementation="kernelized", predictor="sparse"),
        FLASH: Kernel(kernelized_attention),
      },
      (
        Figure("kernelized", "masked", "memory", 3),
        Figure("kernelized", "masked", "time", 1),
        Figure("kernelized", FLASH, "time", None),
        Figure("sparse", "kernelized", "time", None),
      ),
    ),
    Case(
      f"given keys, {GIVEN} of N={long}",
      (1, long, HEADS, HEAD_DIM),
      {
        way: Kernel(attend_kept(way), fixed=partial(draw_kept, GIVEN, long, HEADS))
        for way in ("masked", "auto")
      },
      (Figure("auto", "masked", "time", 6),),
    ),
    Case(
      f"blocks of {block}, {blocks} of {-(-long // block)}, N={long}, predictor included",
      (1, long, HEADS, HEAD_DIM),
      {
        "masked": _predicted(long, blocks, block=block, implementation="masked"),
        "kernelized": _predicted(long, blocks, block=block, implementation="kernelized"),
        FLASH: Kernel(kernelized_attention),
      },
      (
        Figure("kernelized", "masked", "time", 6),
        Figure("kernelized", FLASH, "time", 2),
        Figure("kernelized", "masked", "memory", None),
      ),
    ),
  )


def _predicted(tokens: int, count: int, **options) -> Kernel:
  attend: Attention = partial(predict_and_attend, count=count, **options)
  return Kernel(attend, fixed=partial(_draw_predictor, tokens))


def _draw_predictor(tokens: int) -> tuple[np.ndarray, ...]:
  """Draws the predictor's reductions, mixtures and basis; nine tenths of the basis are pruned."""
  random = np.random.default_rng(0)
  reduction = random.normal(size=(2, HEAD_DIM, HEAD_DIM // 2)) / math.sqrt(HEAD_DIM)
  down = random.normal(size=(tokens, SLOTS)) / math.sqrt(tokens)
  basis = np.abs(random.normal(size=(tokens, SLOTS)))
  basis = np.where(basis > np.quantile(basis, 0.9), basis, 0)
  return tuple(x.astype(np.float32) for x in (reduction, down, basis))


def predict_and_attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  reduction: jax.Array,
  down: jax.Array,
  basis: jax.Array,
  count: int,
  *,
  block: int | None = None,
  prefix: int = 0,
  **options: Any,
) -> jax.Array:
  """Computes Sparsifiner's attention, (B, N, H, D), with its predictor.

  Args:
    q, k, v: The queries, keys and values, (B, N, H, D).
    reduction: The matrices that reduce the channels of queries and of keys, (2, D, c).
    down, basis: The predictor's mixtures and basis, (N, S).
    count: The number of keys that a query keeps or, with `block`, of key blocks that a query block
      keeps.
    block: The number of tokens in a block; `None` means that single keys are chosen.
    prefix: The number of tokens in front that attend to all.
    **options: Arguments of the op, such as `implementation`.
  """
  queries = jnp.einsum("bnhd,dc->bnhc", q[:, prefix:], reduction[0])
  keys = jnp.einsum("bnhd,dc->bnhc", k, reduction[1])
  coefficients = predict_coefficients(queries, keys, down, scale=q.shape[2] ** -0.5)
  pruned = jnp.where(coefficients > 0.05, coefficients, 0)
  options["prefix"] = prefix
  if block is None:
    return ops.predicted_attention(q, k, v, pruned, basis, count, **options)[0]
  return ops.predicted_block_attention(q, k, v, pruned, basis, count, block, **options)[0]


def counted_macs(sizes: Sizes, count: int, implementation: str = "kernelized") -> int:
  """Counts the multiply-adds of all products that vitx makes, by tracing; nothing is run.

  Products with zeros and with hidden values count; comparisons and the softmax do not.

  Args:
    sizes: The sizes of the backbone.
    count: The number of kept keys.
    implementation: The implementation, "masked" or "kernelized".
  """
  n, H, S = sizes.tokens, sizes.heads, sizes.slots
  D = sizes.width // H
  few = D // sizes.channel_divisor
  attend = partial(predict_and_attend, count=count, prefix=1, implementation=implementation)
  shapes = [(1, n, H, D)] * 3 + [(2, D, few), (n, S), (n, S)]
  arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
  return sizes.depth * cost.flops(attend, *arrays) // 2


def format_macs(name: str, shares: Sequence[float]) -> str:
  """Returns a table of a network's multiply-adds for several shares of kept keys, in millions."""
  sizes = NETWORKS[name]
  columns = {
    "as published": published_macs,
    "released": released_macs,
    "masked": partial(counted_macs, implementation="masked"),
    "kernelized": counted_macs,
  }
  lines = [
    f"MHSA of {name}, M multiply-adds for one image; dense {dense_macs(sizes) / 1e6:.4g}",
    f"{'keep':<8}{'keys':>6}" + "".join(f"{column:>14}" for column in columns),
  ]
  for share in shares:
    keys = count_kept(share, sizes.tokens)
    counts = [count(sizes, keys) / 1e6 for count in columns.values()]
    lines.append(f"{share:<8g}{keys:>6}" + "".join(f"{count:>14.4g}" for count in counts))
  return "\n".join(lines)


def measure(parts: Sequence[str], block: int, effort: Mapping[str, Any]) -> None:
  """Measures each of the given parts, see `PARTS`, and prints a table for it."""
  if "attention" in parts:
    print(named.format_named(named.measure(make_cases(block=block), **effort)), flush=True)
  if "flops" in parts:
    print("\n\n".join(format_macs(name, SHARES) for name in NETWORKS))


if __name__ == "__main__":
  parser = console.make_parser(__doc__)
  parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
  parser.add_argument("--block", type=int, default=BLOCK, help="tokens in a block")
  sys.exit(console.start(measure, parser))
