"""Attention of density models: the factorized patterns beside causal flash, and their figures.

Queries, keys and values alone, forward and backward, float32, at the size of the Sparse
Transformer's Enwik8 model (Child et al. 2019, Table 2). The figures hold for two quiet CPU cores.
Whole training steps and sampled tokens are those of `density_steps`.

python -m tests.benchmarks.density
python -m tests.benchmarks.density --parts attention --tokens 3072
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks import console, density_steps, named
from tests.benchmarks.named import Attention, Case, Figure, Kernel
from vitx.ops import attention
from vitx.ops.kernels.softmax import kernelized_attention
from vitx.ops.patterns import Fixed, Pattern, Strided

TOKENS, HEADS, HEAD_DIM = 12_288, 2, 64
MASKED_UP_TO = 4096  # tokens; beyond, the masked path is compiled for its temporaries and never run
PARTS = ("attention", "steps", "sampling")
FLASH, MASKED = "causal flash", "masked"
LOCAL_LAYERS = 3  # after each strided one, as in OpenAI's release
LAYERS = f"strided, mean of 1:{LOCAL_LAYERS} layers"

# Memory is compared at the layer that needs most: `strided, column`.
FIGURES = (
  Figure(LAYERS, FLASH, "time", 6),
  Figure("strided, merged", FLASH, "time", 6),
  Figure("strided, local", FLASH, "time", None),
  Figure("strided, column", FLASH, "time", None),
  Figure("strided, local", FLASH, "memory", None),
  Figure("strided, column", FLASH, "memory", 1 / 1.1),
  Figure("strided, merged", FLASH, "memory", 1 / 1.1),
  Figure("strided, column", MASKED, "memory", 60),
  Figure("strided, merged", MASKED, "memory", 60),
  Figure("fixed", FLASH, "time", 2),
  Figure("fixed", FLASH, "memory", None),
  Figure(FLASH, MASKED, "time", None),
  Figure(FLASH, MASKED, "memory", None),
)


def make_case(tokens: int, stride: int, summary: int, head_dim: int = HEAD_DIM) -> Case:
  """Returns the case of so many tokens; the figures are those of the defaults at `TOKENS`.

  Args:
    tokens: N.
    stride: l, of the strided and of the fixed pattern.
    summary: c, of the fixed one; each head reads a sub-run of its own, as many as fit.
    head_dim: D.
  """
  local, column = (_along(Strided(stride, part, "code")) for part in ("local", "column"))

  def layers(q, k, v):
    return column(q, k, v) + sum(local(q * (n + 2), k, v) for n in range(LOCAL_LAYERS))

  def masked(q, k, v):
    return attention(q, k, v, causal=True, implementation="masked")

  return Case(
    f"density, N={tokens}, H={HEADS}, D={head_dim}, l={stride}, c={summary}",
    (1, tokens, HEADS, head_dim),
    {
      FLASH: Kernel(lambda q, k, v: kernelized_attention(q, k, v, causal=True)),
      "strided, local": Kernel(local),
      "strided, column": Kernel(column),
      "strided, merged": Kernel(_along(Strided(stride, "merged", "code"))),
      "fixed": Kernel(_along(Fixed(stride, summary, distinct=max(1, stride // summary)))),
      LAYERS: Kernel(layers, layers=1 + LOCAL_LAYERS),
      MASKED: Kernel(masked, runs=tokens <= MASKED_UP_TO),
    },
    FIGURES if tokens == TOKENS else tuple(f._replace(at_least=None) for f in FIGURES),
  )


def _along(pattern: Pattern) -> Attention:
  return lambda q, k, v: attention(q, k, v, pattern, implementation="kernelized")


def measure(
  parts: Sequence[str],
  tokens: Sequence[int],
  stride: int,
  summary: int,
  setups: Sequence[str],
  depth: int,
  effort: Mapping[str, Any],
) -> None:
  """Prints a table of each part: of `PARTS`."""
  if "attention" in parts:
    cases = [make_case(n, stride, summary) for n in tokens]
    print(named.format_named(named.measure(cases, **effort)), flush=True)
  if "steps" in parts:
    density_steps.measure_steps(
      {name: density_steps.SETUPS[name] for name in setups}, depth, **effort
    )
  if "sampling" in parts:
    density_steps.measure_sampling(density_steps.SETUPS["CIFAR-10"], depth, **effort)


if __name__ == "__main__":
  parser = console.make_parser(__doc__)
  add, known = parser.add_argument, density_steps.SETUPS
  add("--parts", nargs="+", choices=PARTS, default=PARTS)
  add("--tokens", nargs="+", type=int, default=[3072, TOKENS], help="N of attention")
  add("--stride", type=int, default=128, help="l of the patterns of attention")
  add("--summary", type=int, default=32, help="c of the fixed one")
  add("--setups", nargs="+", choices=known, default=list(known), help="of models")
  add("--depth", type=int, default=4, help="layers of the models")
  sys.exit(console.start(measure, parser))
