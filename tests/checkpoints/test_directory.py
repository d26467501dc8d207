"""In object stores, where no rename is atomic, a marker file shows that a save is complete."""

import pytest
from etils import epath

from vitx.checkpoints.directory import COMMITTED, Directory


@pytest.fixture
def remote(tmp_path):
  """A local directory treated as an object store."""
  directory = Directory(tmp_path)
  directory.remote = True
  for step in (1, 2, 30):
    (tmp_path / str(step)).mkdir()
    (tmp_path / str(step) / COMMITTED).write_text("")
  (tmp_path / "40").mkdir()  # no marker: a save was killed
  return directory


def test_only_checkpoints_with_the_marker_count_in_an_object_store(remote):
  assert remote.steps() == [1, 2, 30]
  remote.remove_leftovers()
  assert sorted(path.name for path in remote.path.iterdir()) == ["1", "2", "30"]


def test_a_deletion_removes_the_marker_first(remote, monkeypatch):
  removed = []
  monkeypatch.setattr(type(remote.path), "rmtree", lambda self: removed.append(self.name))
  remote.delete(2)
  assert removed == ["2"] and remote.steps() == [1, 30]


def test_names_that_are_no_steps_are_ignored(tmp_path):
  for name in ("7", "07", "-1", "1.orbax-checkpoint-tmp", "corrupt-3", "deleted-4", "x5", "0"):
    (tmp_path / name).mkdir()
  (tmp_path / "9").write_text("a file")
  assert Directory(tmp_path).steps() == [0, 7]


def test_a_relative_path_is_made_absolute_and_a_url_is_kept(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert Directory("runs/a").path == epath.Path(tmp_path / "runs" / "a")
  assert str(Directory("gs://bucket/a")) == "gs://bucket/a"
