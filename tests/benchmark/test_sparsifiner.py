"""The benchmark of Sparsifiner's attention in small."""

import jax
import numpy as np
import pytest

from vitx.benchmark import named, sparsifiner
from vitx.cli.main import main


def test_the_figures_to_reach():
  asked = {
    (case.name.split(",")[0], f.other, f.quantity): f.at_least
    for case in sparsifiner.make_cases()
    for f in case.figures
    if f.at_least is not None
  }
  assert asked == {
    ("keys", "masked", "memory"): 3,
    ("keys", "masked", "time"): 1,
    ("given keys", "masked", "time"): 6,
    ("blocks of 64", "masked", "time"): 6,
    ("blocks of 64", sparsifiner.FLASH, "time"): 2,
  }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_kernels_of_a_case_compute_the_same(number):
  case = sparsifiner.make_cases(64, 128, block=16)[number]
  given = np.random.default_rng(0).normal(size=(3, *case.shape)).astype(np.float32)
  kernels = [kernel for name, kernel in case.kernels.items() if name != sparsifiner.FLASH]
  fixed = kernels[0].fixed()  # of all of them
  outs = jax.jit(lambda *arrays: [kernel.attend(*arrays) for kernel in kernels])(*given, *fixed)
  for out in outs[1:]:
    np.testing.assert_allclose(out, outs[0], rtol=0, atol=1e-5)
  assert len(outs) > 1


@pytest.mark.slow
def test_in_small():
  outcomes = named.measure(
    sparsifiner.make_cases(64, 128, block=16), runs=2, repeats=1, seconds=0.1
  )
  assert len(outcomes) == 8
  for outcome in outcomes:
    assert len(outcome.found) == (1 if outcome.figure.quantity == "memory" else 2)


@pytest.mark.slow
def test_multiply_adds_from_the_command(capsys):
  assert main(["benchmark", "sparsifiner", "--parts=flops"]) == 0
  out = capsys.readouterr().out
  assert "MHSA of deit_s" in out and "MHSA of lv_vit_m" in out and "254.1" in out


def test_an_unknown_part_says_which_is_nearest(capsys):
  assert main(["benchmark", "sparsifiner", "--parts=flop"]) == 1
  assert "Did you mean 'flops'" in capsys.readouterr().err
