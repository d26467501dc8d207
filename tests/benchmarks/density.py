"""Benchmarks of density models: factorized patterns of attention beside causal flash attention.

Attention is measured on random queries, keys and values, forward and backward, in float32, at the
size of the Sparse Transformer's Enwik8 model (Child et al. 2019, Table 2). The ratios to reach hold
for two quiet CPU cores. `density_steps` measures whole training steps and sampled tokens.

python -m tests.benchmarks.density
python -m tests.benchmarks.density --parts attention --tokens 3072
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tests.benchmarks import console, density_steps, named
from tests.benchmarks.cases import attend
from tests.benchmarks.named import Case, Figure, Kernel
from vitx.ops.kernels.softmax import kernelized_attention
from vitx.ops.patterns import Causal, Fixed, Strided

TOKENS, HEADS, HEAD_DIM = 12_288, 2, 64
MASKED_UP_TO = 4096  # The most tokens at which the masked path is run; otherwise it is compiled.
PARTS = ("attention", "steps", "sampling")
FLASH, MASKED = "causal flash", "masked"
LOCAL_LAYERS = 3  # The local layers after each strided one, as in OpenAI's release.
LAYERS = f"strided, mean of 1:{LOCAL_LAYERS} layers"

# Memory is compared at the layer that needs the most: `strided, column`.
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
  """Returns the case of N tokens; only the case of `TOKENS` tokens has ratios to reach.

  Args:
    tokens: The number of tokens, N.
    stride: The stride l of the strided and of the fixed pattern.
    summary: The number c of summary tokens of the fixed pattern. As many heads as possible read
      summary tokens of their own.
    head_dim: The width of a head, D.
  """
  local, column = (
    attend("kernelized", Strided(stride, part, "code")) for part in ("local", "column")
  )

  def layers(q, k, v):
    return column(q, k, v) + sum(local(q * (n + 2), k, v) for n in range(LOCAL_LAYERS))

  distinct = max(1, stride // summary)
  return Case(
    f"density, N={tokens}, H={HEADS}, D={head_dim}, l={stride}, c={summary}",
    (1, tokens, HEADS, head_dim),
    {
      FLASH: Kernel(partial(kernelized_attention, causal=True)),
      "strided, local": Kernel(local),
      "strided, column": Kernel(column),
      "strided, merged": Kernel(attend("kernelized", Strided(stride, "merged", "code"))),
      "fixed": Kernel(attend("kernelized", Fixed(stride, summary, distinct=distinct))),
      LAYERS: Kernel(layers, layers=1 + LOCAL_LAYERS),
      MASKED: Kernel(attend("masked", Causal()), runs=tokens <= MASKED_UP_TO),
    },
    FIGURES if tokens == TOKENS else tuple(f._replace(at_least=None) for f in FIGURES),
  )


def measure(
  parts: Sequence[str],
  tokens: Sequence[int],
  stride: int,
  summary: int,
  setups: Sequence[str],
  depth: int,
  effort: Mapping[str, Any],
) -> None:
  """Measures each of the given parts, see `PARTS`, and prints a table for it."""
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
  add("--tokens", nargs="+", type=int, default=[3072, TOKENS], help="numbers of tokens, N")
  add("--stride", type=int, default=128, help="stride l of the patterns of attention")
  add("--summary", type=int, default=32, help="summary tokens c of the fixed pattern")
  add("--setups", nargs="+", choices=known, default=list(known), help="sizes of models")
  add("--depth", type=int, default=4, help="number of layers of the models")
  sys.exit(console.start(measure, parser))
