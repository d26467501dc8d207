"""Operations of Sparsifiner's attention: as its paper prints them, and all products that are made.

Multiply-adds, which the paper calls FLOPs; MHSA means the two products with the attention matrix
and the predictor, without projections (Wei et al. 2023, Tables 1 to 3).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx import ops
from vitx.analysis import cost
from vitx.ops.kernels.key_scores import predict_coefficients
from vitx.ops.kernels.selection import count_kept


@dataclasses.dataclass(frozen=True)
class Backbone:
  """The sizes that count.

  Attributes:
    depth: L.
    tokens: n, the class token among them.
    width: d.
    heads: H.
    density: s, the share of the products of coefficients and basis that are not zero, as the
      published figures imply.
    slots: of the predictor.
    channel_divisor: by which the predictor reduces a head's channels.
  """

  depth: int
  tokens: int
  width: int
  heads: int
  density: float
  slots: int = 32
  channel_divisor: int = 2


BACKBONES = {
  "deit_s": Backbone(12, 197, 384, 6, 0.13 * 0.092),
  "lv_vit_s": Backbone(16, 197, 384, 6, 0.0197),
  "lv_vit_m": Backbone(20, 197, 512, 8, 0.0172),
}


def dense_macs(backbone: Backbone) -> int:
  """Returns the multiply-adds of dense attention, 2 n² d in a layer."""
  return 2 * backbone.depth * backbone.tokens**2 * backbone.width


def published_macs(backbone: Backbone, kept: int) -> float:
  """Returns the multiply-adds that reproduce the paper's tables.

  Attention to B keys of the patches and to all of the class token; of the predictor one reduction
  of channels, one mixing of the keys, the product of both at half the channels, and the
  sparse-sparse product. Slope and constant were fitted to the tables: 75.28 M + 1.80634 M B for
  DeiT-S; how the constant splits is a guess, and one product of the released code is missing.

  Args:
    backbone: sizes.
    kept: B.
  """
  n, d, S = backbone.tokens, backbone.width, backbone.slots
  sparse = backbone.density * backbone.heads * (n - 1) * n * S
  attention = 2 * (n - 1) * d * kept + 2 * n * d
  reduced = d // backbone.channel_divisor
  return backbone.depth * (attention + n * d * S + (n - 1) * d * S + (n - 1) * reduced * S + sparse)


def released_macs(backbone: Backbone, kept: int) -> float:
  """Returns the multiply-adds of the products in the released code, the sparse one as if sparse.

  Both reductions of channels, the mixing of the keys, the product with the mixtures, and attention
  as in `published_macs`; the released code itself multiplies dense matrices.
  """
  n, d, S = backbone.tokens, backbone.width, backbone.slots
  reduced = d // backbone.heads // backbone.channel_divisor  # channels of a head
  predictor = 2 * n * d * reduced + 2 * n * backbone.heads * reduced * S
  sparse = backbone.density * backbone.heads * (n - 1) * n * S
  return backbone.depth * (2 * (n - 1) * d * kept + 2 * n * d + predictor + sparse)


def predict_and_attend(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  reduction: jax.Array,
  down: jax.Array,
  basis: jax.Array,
  kept: int,
  *,
  block: int | None = None,
  prefix: int = 0,
  **given: Any,
) -> jax.Array:
  """Returns what Sparsifiner makes of queries, keys and values, the predictor included.

  Args:
    q, k, v: (B, N, H, D).
    reduction: (2, D, c), of the channels of queries and of keys.
    down, basis: (N, S).
    kept: keys of a query, or with `block` key blocks of a query block.
    block: tokens in a block; None where keys are chosen one by one.
    prefix: tokens in front that attend all.
    **given: of the op, such as `implementation`.
  """
  queries = jnp.einsum("bnhd,dc->bnhc", q[:, prefix:], reduction[0])
  keys = jnp.einsum("bnhd,dc->bnhc", k, reduction[1])
  coefficients = predict_coefficients(queries, keys, down, scale=q.shape[2] ** -0.5)
  pruned = jnp.where(coefficients > 0.05, coefficients, 0)
  if block is None:
    out, _ = ops.predicted_attention(q, k, v, pruned, basis, kept, prefix=prefix, **given)
  else:
    out, _ = ops.predicted_block_attention(
      q, k, v, pruned, basis, kept, block, prefix=prefix, **given
    )
  return out


def counted_macs(
  backbone: Backbone,
  kept: int,
  *,
  block: int | None = None,
  implementation: str = "kernelized",
) -> int:
  """Returns the multiply-adds of all products that vitx makes, found by tracing; nothing is run.

  Products with zeros and with what is hidden count; comparisons and the softmax do not.

  Args:
    backbone: sizes.
    kept: B; with `block` the number of key blocks.
    block: tokens in a block; None where keys are chosen one by one.
    implementation: "masked" or "kernelized".
  """
  n, H, S = backbone.tokens, backbone.heads, backbone.slots
  D = backbone.width // H
  few = D // backbone.channel_divisor
  attend = partial(
    predict_and_attend, kept=kept, block=block, prefix=1, implementation=implementation
  )
  shapes = [(1, n, H, D)] * 3 + [(2, D, few), (n, S), (n, S)]
  arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
  return backbone.depth * cost.flops(attend, *arrays) // 2


def format_macs(name: str, shares: tuple[float, ...]) -> str:
  """Formats a backbone's multiply-adds for several shares of kept keys, in millions."""
  backbone = BACKBONES[name]
  lines = [
    f"MHSA of {name}, M multiply-adds for one image; dense {dense_macs(backbone) / 1e6:.1f}",
    f"{'keep':<8}{'keys':>6}{'as published':>14}{'released':>10}{'masked':>10}{'kernelized':>12}",
  ]
  for share in shares:
    kept = count_kept(share, backbone.tokens)
    counts = (
      published_macs(backbone, kept),
      released_macs(backbone, kept),
      counted_macs(backbone, kept, implementation="masked"),
      counted_macs(backbone, kept, implementation="kernelized"),
    )
    cells = [f"{count / 1e6:.1f}" for count in counts]
    lines.append(f"{share:<8g}{kept:>6}{cells[0]:>14}{cells[1]:>10}{cells[2]:>10}{cells[3]:>12}")
  return "\n".join(lines)
