"""A damaged checkpoint is reported, and the one before it is loaded instead of wrong data."""

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints.test_store import assert_same, fill, small
from vitx.checkpoints import reading
from vitx.checkpoints.errors import CheckpointError, CorruptCheckpoint
from vitx.checkpoints.store import CheckpointStore

KERNEL = np.random.default_rng(3).bytes(4096)  # incompressible, so that a file has its bytes


def state(step: int) -> dict:
  kernel = np.frombuffer(KERNEL, np.uint8) + np.uint8(step)
  return {
    "params": {"kernel": kernel.reshape(64, 64), "scale": np.full(9, step, np.float32)},
    "opt": [{"count": np.int32(step)}, {"mu": np.zeros((5, 5), np.float32)}],
  }


def record(step: int) -> dict:
  return {"rows": step, "best_value": 0.5}


@pytest.fixture
def saved(tmp_path):
  """A directory with the checkpoints 1 and 2."""
  directory = tmp_path / "checkpoints"
  with CheckpointStore(directory) as store:
    for step in (1, 2):
      store.save(step, state(step), record(step))
  return directory


def files(checkpoint: Path) -> list[Path]:
  return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def holding(checkpoint: Path, content: bytes) -> tuple[Path, int]:
  """Returns the file of a checkpoint that contains the bytes, and their offset in the file."""
  offsets = [(path, path.read_bytes().find(content)) for path in files(checkpoint)]
  (place,) = [(path, at) for path, at in offsets if at >= 0]
  return place


def kernel_place(directory: Path) -> tuple[Path, int]:
  return holding(directory / "2", state(2)["params"]["kernel"].tobytes()[100:200])


def flip(path: Path, at: int, bit: int) -> None:
  content = bytearray(path.read_bytes())
  content[at] ^= 1 << bit
  path.write_bytes(content)


def assert_intact(restored) -> None:
  assert_same(restored.state, state(restored.step))
  assert restored.record == record(restored.step)


@pytest.mark.slow
def test_one_flipped_bit_anywhere_never_gives_other_data(saved, warnings):
  rng = np.random.default_rng(0)
  store = CheckpointStore(saved, read_only=True)
  outcomes = {1: 0, 2: 0}
  for path in files(saved / "2"):
    size = path.stat().st_size
    for at in {0, size - 1, *range(rng.integers(97), size, 97)}:
      content = path.read_bytes()
      flip(path, at, rng.integers(8))
      warnings.clear()
      restored = store.restore_latest(state(2))
      path.write_bytes(content)
      assert_intact(restored)  # the flip hit nothing that is read, or ...
      assert bool(warnings) == (restored.step == 1)  # ... was reported
      outcomes[restored.step] += 1
  assert outcomes[1] > 20


def test_every_flip_within_the_values_is_noticed_and_names_the_leaf(saved):
  path, start = kernel_place(saved)
  store = CheckpointStore(saved, read_only=True)
  for at in range(start, start + 100, 21):
    flip(path, at, at % 8)
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint 2 in .*leaf 'params/kernel'"):
      store.restore(2, state(2))
    flip(path, at, at % 8)
  assert_intact(store.restore(2, state(2)))


def test_a_flip_outside_the_part_that_is_read_does_not_matter(saved):
  flip(*kernel_place(saved), 3)
  store = CheckpointStore(saved, read_only=True)
  assert_same(store.restore(2, only=["opt"]).state, {"opt": state(2)["opt"]})


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "altered"])
def test_damage_is_reported_and_set_aside(saved, warnings, damage):
  path, at = kernel_place(saved)
  if damage == "missing":
    path.unlink()
  elif damage == "altered":
    flip(path, at, 0)
  else:
    path.write_bytes(path.read_bytes()[: 1000 if damage == "truncated" else 0])
  with CheckpointStore(saved) as store:
    assert_intact(store.restore_latest(state(1)))
    assert store.steps() == [1]
    assert (saved / "corrupt-2").is_dir()
    assert "checkpoint 2 in" in warnings[0] and "params" in warnings[0]
    assert "corrupt-2" in warnings[1]
    # The run goes on, and saves the same step again.
    store.save(2, state(2), record(2))
    store.save(3, state(3), record(3))
  with CheckpointStore(saved) as store:
    assert store.steps() == [2, 3]
    assert_intact(store.restore_latest(state(1)))


def test_a_missing_file_never_gives_other_data(saved, warnings):
  store = CheckpointStore(saved, read_only=True)
  for path in files(saved / "2"):
    content = path.read_bytes()
    path.unlink()
    warnings.clear()
    restored = store.restore_latest(state(2))
    assert_intact(restored)
    assert bool(warnings) == (restored.step == 1)
    path.write_bytes(content)


def test_an_altered_record_is_noticed(saved, warnings):
  path = saved / "2" / "record" / "metadata"
  path.write_text(path.read_text().replace('"rows": 2', '"rows": 3'))
  with CheckpointStore(saved) as store:
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint 2 in .*: record: not what was saved"):
      store.restore(2)
    assert_intact(store.restore_latest())


def test_a_checkpoint_under_another_name_is_noticed(saved, warnings):
  (saved / "2").rename(saved / "7")
  with pytest.raises(CorruptCheckpoint, match=r"checkpoint 7 in .* it belongs to step 2"):
    CheckpointStore(saved).restore(7)


def test_the_names_of_corrupt_checkpoints_do_not_clash(saved, warnings):
  for _ in range(3):
    with CheckpointStore(saved) as store:
      flip(*kernel_place(saved), 0)
      assert store.restore_latest().step == 1
      store.save(2, state(2), record(2))
  aside = sorted(path.name for path in saved.glob("corrupt-*"))
  assert aside == ["corrupt-2", "corrupt-2-2", "corrupt-2-3"]


def test_several_corrupt_checkpoints_are_skipped(saved, warnings):
  with CheckpointStore(saved, keep=4) as store:
    store.save(3, state(3), record(3))
  for step in (2, 3):
    (saved / str(step) / "state" / "manifest.ocdbt").unlink()
  with CheckpointStore(saved) as store:
    assert_intact(store.restore_latest())
  assert sorted(path.name for path in saved.iterdir()) == ["1", "corrupt-2", "corrupt-3"]


def test_a_run_whose_checkpoints_are_all_corrupt_never_starts_afresh(saved, warnings):
  for step in (1, 2):
    (saved / str(step) / "state" / "manifest.ocdbt").unlink()
  for _ in range(2):
    with pytest.raises(CorruptCheckpoint, match=r"every checkpoint in .* is corrupt"):
      CheckpointStore(saved).restore_latest()
  assert CheckpointStore(saved).steps() == [1, 2]


def test_a_read_only_store_skips_corrupt_checkpoints_in_place(saved, warnings):
  flip(*kernel_place(saved), 0)
  before = sorted(saved.rglob("*"))
  assert_intact(CheckpointStore(saved, read_only=True).restore_latest())
  assert warnings and sorted(saved.rglob("*")) == before


@pytest.mark.parametrize(
  "error",
  [PermissionError("denied"), MemoryError("none"), ValueError("UNAVAILABLE: the network")],
)
def test_a_transient_error_does_not_make_a_checkpoint_corrupt(saved, monkeypatch, error):
  def fail(self, infos, args=None):
    raise error

  with monkeypatch.context() as patch:
    patch.setattr(reading._HostArrays, "deserialize", fail)
    with pytest.raises(CheckpointError, match="cannot read the state of checkpoint 2") as caught:
      CheckpointStore(saved).restore_latest()
  assert not isinstance(caught.value, CorruptCheckpoint)
  assert_intact(CheckpointStore(saved).restore_latest())


def test_a_deletion_that_was_cut_short_leaves_no_false_checkpoint(tmp_path, monkeypatch):
  with CheckpointStore(tmp_path) as store:
    fill(store, [1, 2])

    class Killed(BaseException):
      pass

    def killed(self, *args, **kwargs):
      raise Killed

    store.save(3, small(3), {})
    with monkeypatch.context() as patch, pytest.raises(Killed):
      patch.setattr(type(store._directory.path), "rmtree", killed)
      store.wait()
    assert store.steps() == [2, 3]
  with CheckpointStore(tmp_path) as store:
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
