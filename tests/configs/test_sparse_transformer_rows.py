"""The Sparse Transformer's rows: parameters of the paper and of the released code."""

import importlib

import pytest

from tests.slow import all_but
from vitx.cli.summary import complete_config
from vitx.data.dataset import ArraySpec, DatasetInfo
from vitx.models import count
from vitx.tasks import build_task, task_class
from vitx.tasks.density import Density
from vitx.training.setup import resolve

COUNTS = {
  ("cifar10", "strided"): 59_196_928,
  ("cifar10", "fixed"): 59_196_928,
  ("cifar10", "dense"): 59_196_928,
  ("cifar10", "c10_58m"): 59_196_928,
  ("cifar10", "c10_15m"): 14_910_976,
  ("cifar10", "c10_150m"): 151_612_416,
  ("imagenet64", "strided"): 151_645_184,
  ("enwik8", "fixed"): 94_949_888,
  ("enwik8", "dense"): 94_949_888,
}


def get_config(name, row):
  return importlib.import_module(f"configs.sparse_transformer_{name}").get_config(row)


@pytest.mark.parametrize(("name", "row"), all_but("strided", "enwik8", of=COUNTS))
def test_counts(name, row):
  found = count(get_config(name, row)).total
  assert found == COUNTS[name, row]
  published = importlib.import_module(f"configs.sparse_transformer_{name}").PUBLISHED[row]
  assert found / 1e6 == pytest.approx(published["parameters_m"], abs=1.7)


@pytest.mark.parametrize("row", ["n65536", "n262144", "n1048576"])
def test_the_windows_of_music_are_within_the_tasks_range(row):
  task = get_config("music", row).task
  assert task_class(task) is Density and task.window == int(row[1:])


MUSIC = [("n65536", 0.01), ("n262144", 0.06), ("n1048576", 0.25)]


@pytest.mark.parametrize(("row", "most"), all_but("n65536", of=MUSIC))
def test_music_is_guessed_to_come_near(row, most):
  published = importlib.import_module("configs.sparse_transformer_music").PUBLISHED[row]
  config = get_config("music", row)
  # Shorter sequences of the same rows and columns: tables alone depend on the length.
  found = count(config).total / 1e6
  assert found == pytest.approx(published["parameters_m"], rel=most)


@pytest.mark.parametrize(("name", "row"), [("cifar10", "strided"), ("enwik8", "fixed")])
def test_a_summary_needs_no_data(name, row):
  task = build_task(complete_config(get_config(name, row)))
  assert task.length == {"cifar10": 3072, "enwik8": 12288}[name]
  assert task.unit == {"cifar10": "dim", "enwik8": "byte"}[name]


def test_the_released_cycle_of_the_largest_begins_with_a_local_layer():
  mixer = get_config("cifar10", "c10_150m").model.token_mixer
  assert mixer.first == 1 and mixer.local_layers == 3


def test_enwik8_in_other_hands():
  config = get_config("enwik8", "fixed")
  info = DatasetInfo("bytes:x", {"tokens": ArraySpec((None,), "uint8")}, vocabulary=256)
  assert resolve(config, info).model.grid == (96, 128)
