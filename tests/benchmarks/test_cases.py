"""The named cases with small sizes, and the text of their ratios."""

import jax
import numpy as np
import pytest

from tests.benchmarks import cases, named
from tests.benchmarks.named import Figure, Outcome
from vitx.benchmark import timing


def test_a_named_case_in_small():
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
  assert memory.met == len(memory.found) == 1
  assert time.met == 0 and len(time.found) == 2


def test_named_cases_too_large_are_skipped(monkeypatch):
  monkeypatch.setattr(timing, "find_free_bytes", lambda: 10**6)
  outcomes = named.measure(cases.CASES[:1])
  assert all(outcome.note and not outcome.found for outcome in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_exact_kernels_of_a_named_case_compute_the_same(case):
  q, k, v = np.sin(np.arange(3 * 2 * 256 * 2 * 8, dtype=np.float32)).reshape(3, 2, 256, 2, 8)
  fixed = (np.random.default_rng(0).permutation(256)[None, None, None, :20],)
  given = [np.broadcast_to(x, (2, 1, 256, 20)) for x in fixed if "kept" in case.name]
  exact = [name for name in case.kernels if "former" not in name]
  exact = [name for name in exact if name != "dense kernelized" or case.name.startswith("dense")]
  outs = jax.jit(lambda *arrays: [case.kernels[name].attend(*arrays) for name in exact])(
    *(q, k, v, *given)
  )
  for out in outs[1:]:
    np.testing.assert_allclose(out, outs[0], rtol=0, atol=1e-5)
  assert len(outs) > 1 or case.name.startswith("linear")


def test_named_cases_say_what_was_met():
  figure = Figure("sparse", "masked", "time", 12)
  outcome = Outcome("a case", figure, (11.0, 12.0, 13.5))
  assert outcome.met == 2
  skipped = Outcome("another", figure, note="skipped: needs 9 GB")
  text = named.format_named([outcome, skipped])
  assert "met in 2 of 3" in text and "skipped: needs 9 GB" in text and "13.5" in text
