"""Sparsifiner's attention, forward and backward: by keys, by given indices, by blocks of keys.

The figures hold for two quiet CPU cores, float32. The predictor's arrays have no gradient, as in
the mixer; what it predicts is random, which is the hardest case for a kernel.
"""

import math
from functools import partial

import jax
import numpy as np

from vitx.analysis.mhsa_flops import predict_and_attend
from vitx.benchmark.cases import attend_kept, draw_kept
from vitx.benchmark.named import Attention, Case, Figure, Kernel
from vitx.ops.kernels.softmax import kernelized_attention

HEADS, HEAD_DIM, SLOTS = 4, 64, 32
SHARE, BLOCK_SHARE, GIVEN = 0.1, 0.06, 32  # of keys, of key blocks; keys whose indices are given
BLOCK = 64
FLASH = "dense flash"


def make_cases(short: int = 1024, long: int = 4096, block: int = BLOCK) -> tuple[Case, ...]:
  """Returns the cases; the figures are those of the defaults.

  Args:
    short: N where keys are chosen one by one.
    long: N of the others.
    block: tokens in a block.
  """
  kept, blocks = math.ceil(SHARE * short), math.ceil(BLOCK_SHARE * long / block)
  return (
    Case(
      f"keys, {kept} of N={short}, predictor included",
      (1, short, HEADS, HEAD_DIM),
      {
        "masked": _predicted(short, kept, implementation="masked"),
        "kernelized": _predicted(short, kept, implementation="kernelized"),
        "sparse": _predicted(short, kept, implementation="kernelized", predictor="sparse"),
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
        for way in ("masked", "gathered")
      },
      (Figure("gathered", "masked", "time", 6),),
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


def _predicted(tokens: int, kept: int, **given) -> Kernel:
  attend: Attention = partial(_attend, kept=kept, **given)
  return Kernel(attend, fixed=partial(_draw_predictor, tokens))


def _attend(q, k, v, reduction, down, basis, **given) -> jax.Array:
  return predict_and_attend(q, k, v, reduction, down, basis, **given)


def _draw_predictor(tokens: int) -> tuple[np.ndarray, ...]:
  """Returns reductions, mixtures and a basis of which nine tenths are pruned, as is published."""
  random = np.random.default_rng(0)
  reduction = random.normal(size=(2, HEAD_DIM, HEAD_DIM // 2)) / math.sqrt(HEAD_DIM)
  down = random.normal(size=(tokens, SLOTS)) / math.sqrt(tokens)
  basis = np.abs(random.normal(size=(tokens, SLOTS)))
  basis = np.where(basis > np.quantile(basis, 0.9), basis, 0)
  return tuple(x.astype(np.float32) for x in (reduction, down, basis))
