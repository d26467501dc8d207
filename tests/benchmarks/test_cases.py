"""The named cases with small sizes, and the text of their ratios."""

import jax
import numpy as np
import pytest

from tests.benchmarks import cases, named


def test_a_named_case_is_measured_in_small():
  kernels = {
    "masked": named.Kernel(cases.attend("masked")),
    "weighted": named.Kernel(lambda q, k, v, w, i: v[:, i] * w, ((4,),), lambda: (np.arange(64),)),
  }
  figures = (
    named.Figure("weighted", "masked", "memory", 1.0),
    named.Figure("weighted", "masked", "time", 1e9),
  )
  case = named.Case("small", (1, 64, 2, 4), kernels, figures)
  memory, time = named.measure((case,), runs=2, repeats=1, seconds=0.1)
  assert len(memory.ratios) == 1 and len(time.ratios) == 2
  assert ">= 1.0: 1 of 1" in (text := named.format_named([memory, time])) and ": 0 of 2" in text


@pytest.mark.slow
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_exact_kernels_of_a_named_case_agree(case):
  q, k, v = np.sin(np.arange(3 * 2 * 256 * 2 * 8, dtype=np.float32)).reshape(3, 2, 256, 2, 8)
  fixed = (np.random.default_rng(0).permutation(256)[None, None, None, :20],)
  indices = [np.broadcast_to(x, (2, 1, 256, 20)) for x in fixed if "kept" in case.name]
  exact = [name for name in case.kernels if "former" not in name]
  exact = [name for name in exact if name != "dense kernelized" or case.name.startswith("dense")]
  outs = jax.jit(lambda *arrays: [case.kernels[name].attend(*arrays) for name in exact])(
    *(q, k, v, *indices)
  )
  for out in outs[1:]:
    np.testing.assert_allclose(out, outs[0], rtol=0, atol=1e-5)
  assert len(outs) > 1 or case.name.startswith("linear")
