"""The search for tile sizes with made-up times, and the entry that it writes to a file."""

import dataclasses
import math

import jax.numpy as jnp
import pytest

from tests.ops.lowered import record_kernels
from vitx.benchmark import tune
from vitx.ops import rule
from vitx.ops.implementation import choosing_by, lowering_for
from vitx.ops.rule import Launch, TileSizes
from vitx.ops.sparse import triton_attention

DEFAULT = TileSizes(64, *[Launch(1, 4, 2)] * 3)


@pytest.mark.parametrize("block", tune.BLOCKS)
@pytest.mark.parametrize("best", [Launch(1, 4, 2), Launch(2, 8, 5), Launch(2, 4, 1)])
def test_the_search_measures_no_launch_twice(block, best):
  asked = []

  def measure(launch):
    asked.append(launch)
    return 1 + sum(abs(math.log2(a / b)) for a, b in zip(launch, best, strict=True))

  rows = range(32, tune.MOST_ROWS + 1)
  fastest = tune.search_launch(block, measure)
  assert fastest == best or (best.blocks * block not in rows and fastest[2] == best[2])
  assert len(asked) == len(set(asked)) <= 10
  assert all(launch.blocks * block in rows for launch in asked)


def test_launches_beyond_the_card_are_avoided():
  def measure(launch):
    return math.inf if launch.stages > 2 or launch.warps == 4 else 1 / launch.stages

  assert tune.search_launch(64, measure) in (Launch(1, 8, 2), Launch(2, 8, 2))


@dataclasses.dataclass
class MadeUp:
  """A subject of tuning whose calls take given seconds.

  The keys of `seconds` are blocks; 0 means the default tiles, and `None` XLA.
  """

  seconds: dict
  unfit: tuple = ()
  dtype: str = "bfloat16"
  width: int = 64
  default: TileSizes = DEFAULT

  def time_kernel(self, kernel, block, launch):
    return 1 + launch.warps + tune.KERNELS.index(kernel) * launch.blocks - launch.stages / 9

  def time_call(self, tiles):
    known = None if tiles is None else 0 if tiles == DEFAULT else tiles.block
    return self.seconds[known]

  def agrees(self, tiles):
    return tiles.block not in self.unfit


@pytest.mark.parametrize(
  ("seconds", "unfit", "block"),
  [
    ({0: 4, None: 5, 64: 2, 32: 3}, (), 64),
    ({0: 4, None: 5, 64: 3, 32: 2}, (32,), 64),
    ({0: 4, None: 5, 64: 3, 32: math.inf}, (64,), None),  # The default has blocks of 64 too.
    ({0: 2, None: 5, 64: 3, 32: 4}, (), 0),
    ({0: 4, None: 1, 64: 2, 32: 3}, (), None),
  ],
)
def test_the_fastest_fitting_tiles_win_unless_xla_does(seconds, unfit, block):
  tiles = tune.search(MadeUp(seconds, unfit), print)
  assert tiles == DEFAULT if block == 0 else (tiles and tiles.block) == block


def test_a_failing_kernel_takes_forever():
  assert tune._time(lambda: 1 / 0) == math.inf


def test_subjects_are_measured_until_the_minutes_are_over(monkeypatch):
  times, said = iter([0, 0, 70]), []
  monkeypatch.setattr(tune, "SUBJECTS", tune.SUBJECTS[:2])
  monkeypatch.setattr(tune, "search", lambda subject, say: DEFAULT)
  monkeypatch.setattr(tune, "monotonic", lambda: next(times))
  entry = tune.measure(1, said.append)
  assert rule.parse_tiles(entry["sizes"]) == {"bfloat16": {64: DEFAULT}}
  assert said[-1] == "bfloat16, width 128: not measured within 1 minutes"


def test_a_call_is_timed_with_the_given_tiles(monkeypatch):
  """`time_call` runs attention under a rule with the given tiles.

  The attention here only records the tiles, since the kernels need a GPU.
  """
  monkeypatch.setattr(triton_attention, "find_capability", lambda: 90)
  subject, asked = tune.TimedCall("float32", 16, 1, 64, 2), []

  def attend(q, k, v, *_, **__):
    with lowering_for("gpu"):
      asked.append(triton_attention.find_tiles(q, k, v))
    return v

  monkeypatch.setattr(tune, "attention", attend)
  tiles = DEFAULT._replace(block=32)
  for choice in (tiles, None):
    assert 0 < subject.time_call(choice) < math.inf
    assert {*asked} == {choice}
    asked.clear()
  assert subject.agrees(tiles) and {*asked} == {tiles, None}


@pytest.mark.parametrize("factor", [1.0, 1.05, math.nan])
def test_tiles_with_wrong_results_are_refused(monkeypatch, factor):
  subject = tune.TimedCall("float32", 16, 1, 64, 2)
  tiles = [None]
  monkeypatch.setattr(tune.TimedCall, "choose", lambda self, choice: tiles.append(choice))
  monkeypatch.setattr(
    tune, "attention", lambda q, k, v, *_, **__: v if tiles[-1] is None else v * factor
  )
  assert subject.agrees(DEFAULT) == (factor == 1)


def test_the_comparison_with_xla_runs_every_masked_kernel(monkeypatch):
  calls = record_kernels(monkeypatch)
  with lowering_for("gpu"):
    tune.TimedCall("float32", 16, 1, 64, 2).agrees(DEFAULT._replace(block=16))
  assert {kernel for kernel, *_ in calls} == {*tune.KERNELS}
  assert all(sizes.masks and sizes.ragged and sizes.key_mask for *_, sizes in calls)


def test_rules_give_tiles_by_dtype_and_the_nearest_wider_head(monkeypatch):
  monkeypatch.setattr(triton_attention, "find_capability", lambda: 90)
  small, large = DEFAULT._replace(block=32), DEFAULT._replace(block=16)
  tiles = {"bfloat16": {64: small, 128: large}, "float32": {64: None}}

  def find(dtype, width):
    x = jnp.zeros((1, 4, 1, width), dtype)
    with lowering_for("gpu"), choosing_by(rule.Rule("any", "a test", {}, tiles)):
      return triton_attention.find_tiles(x, x, x)

  assert [find("bfloat16", width) for width in (16, 64, 65, 128)] == [small, small, large, large]
  assert find("float16", 64) == small
  assert find("float32", 64) is None and find("float32", 65) == triton_attention.choose_tiles(
    90, jnp.dtype("float32"), 65
  )
