"""Several runs in one program: each is the run alone, whichever others there are."""

import contextlib
import copy
import dataclasses
import functools
import json
import os

import jax
import numpy as np
import optax
import pytest

from tests import runs
from tests.training import small
from tests.training.test_loop import same
from vitx.checkpoints import lock
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.store import CheckpointStore
from vitx.checkpoints.workdir import locate_checkpoints
from vitx.config.errors import ConfigError
from vitx.config.loader import load_config
from vitx.data.batches import TrainBatches
from vitx.sweeps.sweep import Point, group_points
from vitx.training import failures, loop, members, parallel, together
from vitx.training.failures import NonFiniteError
from vitx.training.members import Member
from vitx.training.record.progress import Progress

# The program


def variant(rate: float, decay: float):
  # Not Adam: it makes steps of a gradient that is nothing but rounding, as that of key biases.
  optimizer = optax.chain(optax.trace(0.9), optax.add_decayed_weights(decay))
  schedule = lambda step: rate * (1 - step / 100)  # noqa: E731
  return small.make_step(small.task(depth=1), optimizer=optimizer, schedule=schedule)


VARIANTS = [variant(1e-2, 0.0), variant(5e-3, 0.1)]
PLACES, ROOM = 2, 4


@functools.cache
def initial():
  return jax.device_get(small.initial(VARIANTS[0]))


@functools.cache
def program(form):
  states = parallel.deal([initial()], PLACES)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(members, "_train_in_turn", getattr(members, form))
    return members.compile_members(VARIANTS, states, parallel.replicate({}), small.batch(0), ROOM)


def train_together(which, form="_train_in_turn", steps=3):
  """Losses (steps, members) and states of members after some steps in one dispatch."""
  states = parallel.deal([initial() for _ in which], PLACES)
  fed = [[small.batch(10 * member.seed + at) for at in range(steps)] for member in which]
  states, metrics, _, _ = program(form)(states, parallel.replicate({}), which, fed, False)
  losses = np.stack(parallel.collect(metrics["loss"], len(which)), axis=1)
  np.testing.assert_array_equal(losses[steps:], 0)
  return losses[:steps], parallel.collect(states, len(which))


@functools.cache
def train_alone(number, steps=3):
  member = THREE[number]
  step, mean = VARIANTS[member.variant], member.found[0].tolist()
  step = dataclasses.replace(step, seed=member.seed, task=small.task(mean=mean, depth=1))
  state, losses = initial(), []
  train = jax.jit(step.train)
  for at in range(steps):
    state, metrics, _ = train(state, {}, small.batch(10 * member.seed + at), np.int32(0))
    losses.append(metrics["loss"])
  return np.array(losses), jax.device_get(state)


def found(mean):
  return np.array([mean], np.float32), np.array([0.25], np.float32)


THREE = [Member(3, 0, found(0.5)), Member(4, 1, found(0.4)), Member(2**32 - 1, 0, found(0.5))]


@pytest.mark.slow  # compiles the program and that of a run alone; whole runs are compared below
@pytest.mark.parametrize("form", ["_train_in_turn", "_train_side_by_side"])
def test_a_member_is_the_run_alone(form):
  """With its own seed, batches, mean color, learning rate and weight decay."""
  losses, states = train_together(THREE, form)
  for i in range(3):
    expected, state = train_alone(i)
    np.testing.assert_allclose(losses[:, i], expected, rtol=1e-5)
    assert states[i].step == state.step == 3
    for x, y in zip(jax.tree.leaves(states[i]), jax.tree.leaves(state), strict=True):
      np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
  assert len(set(losses[1])) == 3


@pytest.mark.slow  # a program; sweeps that are killed keep the property
def test_a_member_has_the_same_bits_whoever_else_is_there():
  losses, states = train_together(THREE)
  for which in ([THREE[1]], [THREE[2], THREE[1]]):
    own, others = train_together(which)
    np.testing.assert_array_equal(own[:, -1], losses[:, 1])
    for x, y in zip(jax.tree.leaves(others[-1]), jax.tree.leaves(states[1]), strict=True):
      np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_members_are_dealt_to_devices_in_turn(count):
  places = parallel.count_places(count)
  trees = [{"x": np.full((2, 3), i, np.float32), "n": np.int32(i)} for i in range(count)]
  dealt = parallel.deal(trees, places + 1)
  assert dealt["x"].shape == (jax.local_device_count(), places + 1, 2, 3)
  for tree, found in zip(trees, parallel.collect(dealt, count), strict=True):
    jax.tree.map(np.testing.assert_array_equal, tree, found)
  here = np.asarray(parallel.members_here(count))
  assert here.sum() == count and here.max() - here.min() <= 1 and here.max() == places


# Which runs one program trains


def points(*texts):
  return [Point(f"{i}", "m", i, load_config(f"digits.py:{text}")) for i, text in enumerate(texts)]


def test_runs_that_differ_in_seeds_and_scalars_are_grouped():
  found = points(
    "softmax,seed=0",
    "fnet,seed=0",
    "softmax,seed=1,learning_rate=1e-3",
    "softmax,seed=2,optimizer.weight_decay=0.0",
    "softmax,seed=3,init_seed=8,data_seed=9,graph_seed=4",
    "softmax,seed=0,batch_size=32",
    "softmax,seed=0,optimizer.b1=0.8",
    "fnet,seed=1",
    "softmax,seed=0,phases.a={'duration': '2 steps'}",
    "softmax,seed=1,phases.a={'duration': '2 steps'}",
  )
  named = lambda groups: [[point.name for point in group] for group in groups]  # noqa: E731
  four = named(group_points(found, 4))
  assert four == [["0", "2", "3", "4"], ["1", "7"], ["5"], ["6"], ["8"], ["9"]]
  assert named(group_points(found, 3))[:3] == [["0", "2", "3"], ["1", "7"], ["4"]]
  assert named(group_points(found, 1)) == [[point.name] for point in found]


def test_random_graphs_are_part_of_a_program():
  own = points("bigbird,seed=0", "bigbird,seed=1")
  one = points("bigbird,seed=0,graph_seed=5", "bigbird,seed=1,graph_seed=5")
  assert len(group_points(own, 8)) == 2 and len(group_points(one, 8)) == 1


# Whole runs


ENTROPY = "attention_entropy/block_00"
SHORT = ("duration=12 steps", "evaluation.every=6 steps", "checkpoint.every=4 steps")


def configs(*overrides):
  """Three runs: two seeds, and another rate and decay; what is told of a mixer is told of each."""
  told = ("token_mixer=shaped", "evaluation.attention_entropy=5", "log_every=3 steps")
  others = ((), ("seed=1",), ("learning_rate=5e-4", "optimizer.weight_decay=0.3"))
  return [runs.tiny(*SHORT, *told, *overrides, *each) for each in others]


def rows(workdir):
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(own, whole):
  """The same rows but for the times, and the same bits of the last state."""
  assert runs.rows(own) == runs.rows(whole)
  same(runs.final_state(own), runs.final_state(whole))


@contextlib.contextmanager
def fed():
  """Yields the examples, their order and their bytes that trainings take, by data seed and step."""
  found: dict[tuple[int, int], dict[str, bytes]] = {}
  batch = TrainBatches.batch

  def take(self, step):
    made = batch(self, step)
    found[self._seed, step] = {name: value.tobytes() for name, value in made.items()}
    return made

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(TrainBatches, "batch", take)
    yield found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Three runs that were trained together, how they ended, and what they were fed."""
  place = tmp_path_factory.mktemp("together")
  workdirs = [place / name for name in "abc"]
  shares, share = [], Progress.share
  with fed() as batches, pytest.MonkeyPatch.context() as patch:
    patch.setattr(Progress, "share", lambda self, runs: (shares.append(runs), share(self, runs)))
    ended = together.train(configs(), [str(each) for each in workdirs])
  assert shares == [3, 3, 3]  # the machine worked once for all of them
  return workdirs, ended, batches


def test_each_has_an_ordinary_workdir(trained, tmp_path):
  """All that the run alone leaves, with the same data bit for bit and the same figures."""
  workdirs, ended, together_fed = trained
  number, alone = 2, tmp_path / "alone"  # the one with a rate and a decay of its own
  with fed() as own_fed:
    result = loop.train(configs()[number], alone)
  assert len(own_fed) == 12
  assert {step: together_fed[step] for step in own_fed} == own_fed
  assert ended[number].finished and ended[number].step == result.step == 12
  assert ended[number].test["top1"] == pytest.approx(result.test["top1"], abs=0.01)
  for own, expected in zip(rows(workdirs[number]), rows(alone), strict=True):
    assert (own["kind"], own["step"]) == (expected["kind"], expected["step"])
    assert set(own) == set(expected)
    for name in ("loss", "alpha/block_00", ENTROPY) if own["kind"] == "train" else ("nll",):
      assert own[name] == pytest.approx(expected[name], rel=2e-4)
  left = [
    {path.relative_to(place) for path in [*place.glob("*"), *place.glob("*/*")]}
    for place in (alone, workdirs[number])
  ]
  assert left[0] == left[1]
  config = (workdirs[number] / "config.json").read_text()
  assert config == (alone / "config.json").read_text()
  log = (workdirs[0] / "log.txt").read_text()
  assert "of 3 runs of a program" in log and "step 12  validation" in log
  assert str(workdirs[1]) not in log


def stop_at(step, monkeypatch):
  class StopAt(failures.StopRequest):
    times = 0

    def asked(self):
      StopAt.times += 1
      return StopAt.times >= step - 2

  monkeypatch.setattr(together, "StopRequest", StopAt)


@pytest.mark.slow  # whole runs, compiled anew
def test_runs_that_were_stopped_go_on_to_the_same_bits(trained, tmp_path, monkeypatch):
  """Also where one of them goes on without the others."""
  workdirs, *_ = trained
  own = [tmp_path / name for name in "abc"]
  with monkeypatch.context() as patch:
    stop_at(11, patch)
    ended = together.train(configs("steps_per_dispatch=1"), [str(each) for each in own])
  assert [(each.finished, each.step) for each in ended] == [(False, 11)] * 3
  ended = together.train(configs(), [None, str(own[1]), None])
  assert ended[0] is None and ended[1].finished
  ended = together.train(configs(), [str(own[0]), None, str(own[2])])
  assert [each and each.finished for each in ended] == [True, None, True]
  for each, whole in zip(own, workdirs, strict=True):
    assert_same_run(each, whole)


@pytest.mark.slow  # whole runs, compiled anew
def test_an_evaluation_is_broken_off_and_made_up_for(trained, tmp_path, monkeypatch):
  """In the second of three: the first is saved, the others are evaluated when they go on."""
  workdirs, *_ = trained
  own, validate = [tmp_path / name for name in "abc"], together.validate
  seen = []

  def broken(run, evaluate, state, step):
    seen.append(step)
    if len(seen) == 2:
      run.request.received = failures.signal.SIGTERM
    return validate(run, evaluate, state, step)

  with monkeypatch.context() as patch:
    patch.setattr(together, "validate", broken)
    ended = together.train(configs(), [str(each) for each in own])
  assert [each.finished for each in ended] == [False] * 3 and seen == [6, 6]
  kinds = [[row["kind"] for row in rows(each)] for each in own]
  assert ["validation" in each for each in kinds] == [True, False, False]
  ended = together.train(configs(), [str(each) for each in own])
  assert all(each.finished for each in ended)
  for each, whole in zip(own, workdirs, strict=True):
    assert_same_run(each, whole)


@pytest.mark.slow  # whole runs, compiled anew
def test_runs_at_another_step_wait(trained, tmp_path):
  """Their fellows come first; then they go on as they would have."""
  workdirs, *_ = trained
  own = [tmp_path / name for name in "abc"]
  short = [copy.deepcopy(config) for config in configs()]
  assert together.train(short, [str(own[0]), None, None])[0].finished
  with CheckpointStore(locate_checkpoints(str(own[0]))) as store:
    assert store.latest() == 12
  ended = together.train(short, [str(each) for each in own])
  assert ended[0].finished and ended[1:] == [None, None]
  ended = together.train(short, [None, *(str(each) for each in own[1:])])
  assert ended[0] is None and all(each.finished for each in ended[1:])
  assert_same_run(own[2], workdirs[2])


@pytest.mark.slow  # whole runs, compiled anew
def test_a_loss_that_is_not_finite_ends_one_run_alone(trained, tmp_path):
  workdirs, *_ = trained
  wild = configs()
  wild[2].learning_rate = 1e30
  own = [tmp_path / name for name in "abc"]
  ended = together.train(wild, [str(each) for each in own])
  assert isinstance(ended[2], NonFiniteError) and ended[0].finished and ended[1].finished
  assert "is" in str(ended[2]) and "NonFiniteError" in (own[2] / "log.txt").read_text()
  np.testing.assert_allclose(
    [row["loss"] for row in rows(own[0]) if row["kind"] == "train"],
    [row["loss"] for row in rows(workdirs[0]) if row["kind"] == "train"],
  )


@pytest.mark.slow  # a whole run, compiled anew
def test_a_workdir_in_use_is_left_alone(tmp_path):
  busy = tmp_path / "b"
  busy.mkdir()
  with lock.hold(busy):
    ended = together.train(configs(), [str(tmp_path / "a"), str(busy), None])
  assert ended[0].finished and isinstance(ended[1], lock.WorkdirInUseError) and ended[2] is None
  assert os.listdir(busy) == []  # the lock is given back


@pytest.mark.slow  # whole runs, compiled anew
def test_a_workdir_that_is_taken_over_ends_one_run_alone(tmp_path, monkeypatch):
  own, validate = [tmp_path / name for name in "abc"], together.validate

  def take(run, evaluate, state, step):
    if run.workdir == str(own[1]):
      holder = json.loads((own[1] / lock.TRAIN).read_text())
      (own[1] / lock.TRAIN).write_text(json.dumps(holder | {"token": "b" * 16, "host": "other"}))
    return validate(run, evaluate, state, step)

  monkeypatch.setattr(together, "validate", take)
  ended = together.train(configs(), [str(each) for each in own])
  assert isinstance(ended[1], lock.WorkdirInUseError)
  assert ended[0].finished and ended[2].finished
  assert all(row["kind"] == "train" for row in rows(own[1]))  # what came after went nowhere


@pytest.mark.slow  # whole runs, compiled anew
def test_an_earlier_end_is_that_of_runs_beyond_it_too(tmp_path, monkeypatch):
  own = [str(tmp_path / name) for name in "abc"]
  with monkeypatch.context() as patch:
    stop_at(8, patch)
    ended = together.train(configs("steps_per_dispatch=1"), own)
  (step,) = {each.step for each in ended}
  assert step > 4
  ended = together.train(configs("stop_after=4 steps"), own)
  assert [(each.finished, each.step) for each in ended] == [(True, step)] * 3


@pytest.mark.slow  # whole runs, compiled anew
def test_runs_that_end_early_and_go_on_leave_what_runs_leave_that_never_did(tmp_path):
  settings = ("schedule={'name':'plateau','patience':0,'threshold':10.0}", "log_every=20")
  both = {name: [str(tmp_path / f"{name}_{i}") for i in range(3)] for name in ("whole", "parts")}
  together.train(configs(*settings), both["whole"])
  ended = together.train(configs(*settings, "stop_after=7 steps"), both["parts"])
  assert [(each.finished, each.step) for each in ended] == [(True, 7)] * 3
  together.train(configs(*settings), both["parts"])
  for whole, parts in zip(*both.values(), strict=True):
    assert runs.rows(whole) == runs.rows(parts)
    stores = [Directory(locate_checkpoints(each)).steps() for each in (whole, parts)]
    assert stores[0] == stores[1]
    same(runs.final_state(whole), runs.final_state(parts))


def keeps_more(decay_mask, *, weight_decay: float = 0.0):
  """A user's optimizer whose state depends on the decay."""
  return optax.trace(0.9) if weight_decay else optax.identity()


def test_an_optimizer_whose_state_depends_on_the_decay(tmp_path):
  name = f"{__name__}:keeps_more"
  both = [
    runs.tiny(*SHORT, f"optimizer={{'name': {name!r}, 'weight_decay': {decay}}}")
    for decay in (0.0, 0.1)
  ]
  with pytest.raises(ConfigError, match="--together 1"):
    together.train(both, [str(tmp_path / "a"), str(tmp_path / "b")])
  assert not list(tmp_path.iterdir())
