"""The checkpoint store: what is saved comes back bit for bit, and the right checkpoints stay."""

import itertools
import json
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from vitx.checkpoints import tree
from vitx.checkpoints.errors import CheckpointError
from vitx.checkpoints.store import CheckpointStore

FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn")
INTEGERS = ("int4", "int8", "int32", "int64", "uint8", "uint32", "bool")


def small(seed: int) -> dict:
  rng = np.random.default_rng(seed)
  return {"params": {"w": rng.normal(size=(3, 4)).astype(np.float32)}, "step": np.int32(seed)}


def fill(store: CheckpointStore, steps, stay=()) -> None:
  for step in steps:
    store.save(step, small(step), {"rows": step}, stay=stay)
  store.wait()


def assert_same(state, expected) -> None:
  """Asserts that two states have equal names, shapes, dtypes and bytes."""
  state, expected = tree.name_arrays(state), tree.name_arrays(expected)
  assert state.keys() == expected.keys()
  for name, array in expected.items():
    assert (state[name].dtype, state[name].shape) == (array.dtype, array.shape), name
    assert state[name].tobytes() == array.tobytes(), name


def failing(error: Exception):
  """Returns a function that raises the error."""

  def fail(self, *args, **kwargs):
    raise error

  return fail


@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (0, 3)])
def test_every_dtype_comes_back_bit_for_bit(tmp_path, shape):
  rng = np.random.default_rng(0)
  state = {name: rng.integers(0, 7, shape).astype(jnp.dtype(name)) for name in FLOATS + INTEGERS}
  state["other"] = np.ones(2)
  with CheckpointStore(tmp_path) as store:
    store.save(3, state, {})
    assert_same(store.restore(3, state).state, state)
    assert_same(store.restore(3).state, state)


def test_unusual_values_come_back_bit_for_bit(tmp_path):
  payload = np.array([0x7FC00001, 0xFF800001, 0x80000000, 0x00000001], np.uint32)
  state = {
    "float": payload.view(np.float32),
    "fill": np.zeros((40, 40)),
    "ones": np.ones((7,), bool),
  }
  with CheckpointStore(tmp_path) as store:
    store.save(0, state, {})
    assert_same(store.restore(0, state).state, state)


def test_optimizer_state_comes_back_in_its_own_types(tmp_path):
  params = {"blocks_0": {"kernel": jnp.ones((2, 3), jnp.bfloat16)}, "table": jnp.zeros((4,))}
  labels = {"blocks_0": "a", "table": "b"}
  optimizer = optax.multi_transform({"a": optax.adamw(1e-3), "b": optax.set_to_zero()}, labels)
  state = {"params": params, "opt": (optimizer.init(params), [None, {}]), "ema": None}
  with CheckpointStore(tmp_path) as store:
    store.save(1, state, {})
    restored = store.restore(1, state).state
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    from_shapes = store.restore(1, shapes).state
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  assert jax.tree.structure(from_shapes) == jax.tree.structure(state)
  assert_same(restored, state)
  assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(from_shapes))


def test_a_record_comes_back_as_it_was_saved(tmp_path):
  record = {
    "best": 0.1 + 0.2,
    "nan": float("inf"),
    "none": None,
    "window": [1.5, 2],
    "é": {"a": "ü"},
  }
  with CheckpointStore(tmp_path) as store:
    store.save(1, small(1), record)
    assert store.restore(1).record == record


def test_the_state_may_change_as_soon_as_save_returns(tmp_path):
  state = {"w": np.arange(300_000, dtype=np.float32)}
  expected = {"w": state["w"].copy()}
  with CheckpointStore(tmp_path) as store:
    store.save(1, state, {})
    state["w"][:] = -1
    assert_same(store.restore(1).state, expected)


def test_saves_overlap_and_closing_at_once_loses_none(tmp_path):
  with CheckpointStore(tmp_path, keep=4) as store:
    for step in range(4):
      store.save(step, small(step), {"rows": step})
  with CheckpointStore(tmp_path, read_only=True) as store:
    assert store.steps() == [0, 1, 2, 3]
    for step in range(4):
      assert_same(store.restore(step).state, small(step))


def test_save_returns_before_the_write_is_done(tmp_path, monkeypatch):
  may_write = threading.Event()
  original = ocp.JsonCheckpointHandler.finalize

  def held(self, directory):
    assert may_write.wait(60)
    return original(self, directory)

  monkeypatch.setattr(ocp.JsonCheckpointHandler, "finalize", held)
  with CheckpointStore(tmp_path) as store:
    store.save(1, small(1), {})
    assert store.steps() == []  # not complete, so it does not count
    may_write.set()
    store.wait()
    assert store.steps() == [1]


def test_the_newest_and_the_best_checkpoints_stay(tmp_path):
  with CheckpointStore(tmp_path, keep=2) as store:
    fill(store, [1, 2, 3, 4, 5], stay=(2,))
    assert store.steps() == [2, 4, 5]
    fill(store, [6], stay=(6,))
    assert store.steps() == [5, 6]
    store.save(7, small(7), {}, stay=(6,))
  assert store.steps() == [6, 7]
  assert sorted(path.name for path in tmp_path.iterdir()) == ["6", "7"]


def test_the_old_best_checkpoint_goes_only_when_the_new_one_is_complete(tmp_path, monkeypatch):
  with CheckpointStore(tmp_path, keep=2) as store:
    fill(store, [1, 2, 3, 4], stay=(1,))
    monkeypatch.setattr(ocp.JsonCheckpointHandler, "finalize", failing(OSError("no space")))
    store.save(5, small(5), {}, stay=(5,))
    with pytest.raises(CheckpointError):
      store.wait()
    assert store.steps() == [1, 3, 4]


def test_reopening_a_store_deletes_nothing(tmp_path):
  with CheckpointStore(tmp_path, keep=3) as store:
    fill(store, [1, 2, 3])
  with CheckpointStore(tmp_path, keep=2) as store:
    store.restore_latest()
    assert store.steps() == [1, 2, 3]


def test_the_remains_of_killed_saves_and_deletions_are_ignored_and_removed(tmp_path):
  with CheckpointStore(tmp_path) as store:
    fill(store, [1, 2])
  leftovers = ["3.orbax-checkpoint-tmp", "4.orbax-checkpoint-tmp-1234", "deleted-1"]
  for name in leftovers:
    (tmp_path / name / "state").mkdir(parents=True)
    (tmp_path / name / "state" / "part").write_text("x")
  (tmp_path / "corrupt-7").mkdir()
  (tmp_path / "notes").mkdir()
  with CheckpointStore(tmp_path, read_only=True) as store:
    assert store.steps() == [1, 2]
    assert store.restore_latest().step == 2
    assert all((tmp_path / name).exists() for name in leftovers)
  with CheckpointStore(tmp_path) as store:
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "corrupt-7", "notes"]
    fill(store, [3])
    assert store.steps() == [2, 3]


def test_a_read_only_store_changes_nothing(tmp_path):
  store = CheckpointStore(tmp_path / "none", read_only=True)
  assert store.steps() == [] and store.latest() is None and store.restore_latest() is None
  assert not (tmp_path / "none").exists()
  with pytest.raises(CheckpointError, match="read-only"):
    store.save(1, small(1), {})


def test_part_of_the_state_is_restored(tmp_path):
  state = {**small(1), "opt": {"mu": np.ones(4)}}
  with CheckpointStore(tmp_path) as store:
    store.save(1, state, {"rows": 2})
    part = store.restore(1, only=("params", "ema"))
    assert_same(part.state, {"params": state["params"]})
    assert part.record == {"rows": 2}
    assert_same(
      store.restore_latest({"opt": state["opt"]}, only=["opt"]).state["opt"], state["opt"]
    )


def test_orbax_alone_reads_a_checkpoint(tmp_path):
  with CheckpointStore(tmp_path) as store:
    store.save(4, small(4), {"rows": 9})
  items = ocp.args.Composite(state=ocp.args.StandardRestore(), record=ocp.args.JsonRestore())
  with ocp.CheckpointManager(tmp_path) as manager:
    assert list(manager.all_steps()) == [4]
    restored = manager.restore(4, args=items)
  assert_same(restored["state"], small(4))
  assert restored["record"]["record"] == {"rows": 9}
  assert json.loads((tmp_path / "4" / "record" / "metadata").read_text())["step"] == 4


@pytest.mark.parametrize("jump", [lambda n: n, lambda n: -n, lambda n: n * (-1) ** n])
def test_a_clock_that_jumps_ends_no_save(tmp_path, monkeypatch, jump):
  """Each reading of the clock is off by more years: ahead, back, or alternately both."""
  year, looks, now = 365 * 24 * 3600, itertools.count(), time.time

  monkeypatch.setattr(time, "time", lambda: now() + year * jump(next(looks)))
  with CheckpointStore(tmp_path) as store:
    for step in (1, 2):
      store.save(step, small(step), {"rows": step})
  assert next(looks) > 10
  assert CheckpointStore(tmp_path, read_only=True).restore_latest().step == 2
