"""A state that cannot be saved or restored is refused with the reason; no checkpoint is lost."""

import errno
import logging
import resource
import shutil

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.checkpoints.test_store import assert_same, failing, fill, small
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.errors import CheckpointError, ShapeMismatch
from vitx.checkpoints.store import CheckpointStore
from vitx.config.errors import ConfigError


def test_an_earlier_step_is_refused_and_the_newest_is_replaced(tmp_path):
  with CheckpointStore(tmp_path) as store:
    fill(store, [5])
    with pytest.raises(CheckpointError, match=r"cannot save step 4 .* step 5"):
      store.save(4, small(4), {})
    assert_same(store.restore(5).state, small(5))
    store.save(5, small(6), {})
    assert_same(store.restore(5).state, small(6))
  assert [path.name for path in tmp_path.iterdir()] == ["5"]


def test_a_checkpoint_stays_until_the_one_that_replaces_it_is_complete(tmp_path, monkeypatch):
  with CheckpointStore(tmp_path) as store:
    fill(store, [5])
    with monkeypatch.context() as patch:
      patch.setattr(ocp.JsonCheckpointHandler, "finalize", failing(OSError("no space")))
      store.save(5, small(6), {})
      with pytest.raises(CheckpointError, match="The last one, 5, is untouched"):
        store.wait()
    assert_same(store.restore(5).state, small(5))
    monkeypatch.setattr(Directory, "replace", lambda self: None)  # a kill leaves both
    store.save(5, small(6), {})
    store.wait()
    assert_same(store.restore(5).state, small(5))
  monkeypatch.undo()
  shutil.copytree(tmp_path, tmp_path / "killed" / "between")
  shutil.rmtree(tmp_path / "killed" / "between" / "5")  # a kill between the two renames
  for place in (tmp_path, tmp_path / "killed" / "between"):
    with CheckpointStore(place) as store:
      assert_same(store.restore(5).state, small(6))
    assert {path.name for path in place.iterdir()} <= {"5", "killed"}


def test_restoring_a_missing_step_is_refused(tmp_path):
  with CheckpointStore(tmp_path) as store:
    fill(store, [1, 2])
    with pytest.raises(ConfigError, match=r"has no checkpoint 7, only the steps \[1, 2\]"):
      store.restore(7)


def test_another_shape_is_listed_and_nothing_is_set_aside(tmp_path):
  state = {"params": {f"w{i:02}": np.zeros((2, 3), np.float32) for i in range(12)}}
  target = {"params": {f"w{i:02}": np.zeros((2, 4), np.float32) for i in range(11)}}
  target["params"]["other"] = np.zeros((), np.int32)
  with CheckpointStore(tmp_path) as store:
    store.save(1, state, {})
    with pytest.raises(ShapeMismatch) as caught:
      store.restore_latest(target)
    assert store.steps() == [1]
  message = str(caught.value)
  assert "params/w00: float32[2, 3] in the checkpoint, float32[2, 4] wanted" in message
  assert "13 leaves differ" in message and message.count(" wanted") == 10
  assert isinstance(caught.value, ConfigError)


def test_missing_and_extra_leaves_and_dtypes_are_listed(tmp_path):
  with CheckpointStore(tmp_path) as store:
    store.save(1, {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}, {})
    with pytest.raises(ShapeMismatch) as caught:
      store.restore(1, {"a": np.zeros(2, jnp.bfloat16), "c": np.zeros(2, np.float32)})
  message = str(caught.value)
  assert "a: float32[2] in the checkpoint, bfloat16[2] wanted" in message
  assert "b: float32[2] in the checkpoint, nothing wanted" in message
  assert "c: nothing in the checkpoint, float32[2] wanted" in message


def test_names_that_orbax_would_store_in_one_file_are_refused(tmp_path):
  with CheckpointStore(tmp_path) as store, pytest.raises(ConfigError, match="differ only in"):
    store.save(1, {"a.b": np.ones(2), "a": {"b": np.ones(2)}}, {})


def test_a_full_disk_is_named_and_the_last_checkpoint_stays(tmp_path, caplog):
  """A full disk is imitated: for a moment, no file of this process may grow above 64 KiB."""
  small = {"w": np.arange(100, dtype=np.float32)}
  large = {"w": np.random.default_rng(0).normal(size=100_000)}
  whole = resource.getrlimit(resource.RLIMIT_FSIZE)
  with CheckpointStore(tmp_path) as store:
    store.save(10, small, {"rows": 1})
    store.wait()
    try:
      resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, whole[1]))
      store.save(20, large, {"rows": 2})
      with pytest.raises(CheckpointError) as caught:
        store.wait()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    assert store.steps() == [10]
    store.save(20, large, {"rows": 2})  # there is space again
  message = str(caught.value)
  assert f"checkpoint 20 could not be written to {tmp_path}" in message
  assert "MiB were free there. The last one, 10, is untouched." in message
  # One error, not one per thread of Orbax.
  assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
  with CheckpointStore(tmp_path) as store:
    assert store.steps() == [10, 20]
    assert_same(store.restore(10).state, small)
    assert store.restore(20).record == {"rows": 2}


def test_a_failed_save_hides_no_later_error(tmp_path, monkeypatch):
  """The directory of a failed save cannot be removed, as Orbax's threads may still write to it."""
  busy = failing(OSError(errno.ENOTEMPTY, "Directory not empty"))
  with CheckpointStore(tmp_path) as store:
    store.save(1, small(1), {})
    store.wait()
    with monkeypatch.context() as patch:
      patch.setattr(ocp.JsonCheckpointHandler, "finalize", failing(OSError("no space")))
      patch.setattr(Directory, "remove_leftovers", busy)
      store.save(2, small(2), {})
      with pytest.raises(CheckpointError, match=r"no space.*The last one, 1, is untouched"):
        store.wait()
    assert len(list(tmp_path.iterdir())) == 2
    store.save(2, small(2), {})  # over what was left
  assert [path.name for path in sorted(tmp_path.iterdir())] == ["1", "2"]


def test_a_failure_while_another_error_ends_the_run_does_not_hide_it(tmp_path, monkeypatch):
  monkeypatch.setattr(ocp.JsonCheckpointHandler, "finalize", failing(OSError("no space")))
  with pytest.raises(KeyError, match="first"), CheckpointStore(tmp_path) as store:
    store.save(1, small(1), {})
    raise KeyError("first")
  with pytest.raises(CheckpointError, match="no space"), CheckpointStore(tmp_path) as store:
    store.save(1, small(1), {})


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(CheckpointError, match="cannot open"):
    CheckpointStore(tmp_path / "file" / "checkpoints")
