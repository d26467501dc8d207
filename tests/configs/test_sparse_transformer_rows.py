"""The Sparse Transformer's rows: parameters of the paper and of the released code."""

import functools
import importlib

import pytest

from tests.configs.test_vix_rows import count_by_layers
from tests.slow import all_but
from vitx.data.dataset import ArraySpec, DatasetInfo
from vitx.tasks import build_task, task_class
from vitx.tasks.density import Density
from vitx.tasks.settle import complete_config, resolve

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


SAME = [("cifar10", "fixed"), ("cifar10", "dense"), ("cifar10", "c10_58m"), ("enwik8", "dense")]


@functools.cache
def counted(name, row):
  return count_by_layers(get_config(name, f"{row},model.layer_cycle=0"))


@pytest.mark.parametrize(
  ("name", "row"), all_but("c10_15m", "enwik8", of=[pair for pair in COUNTS if pair not in SAME])
)
def test_rows_have_these_numbers_of_parameters(name, row):
  assert counted(name, row) == COUNTS[name, row]


@pytest.mark.parametrize(("name", "row"), all_but("c10_58m", of=SAME))
def test_patterns_have_the_same_parameters(name, row):
  """Patterns differ in their edges alone."""
  other = {"cifar10": "strided", "enwik8": "fixed"}[name]
  a, b = (get_config(name, pattern).model.to_dict() for pattern in (row, other))
  assert a | {"token_mixer": b["token_mixer"]} == b
  assert COUNTS[name, row] == COUNTS[name, other]
  if a != b:
    assert counted(name, row) == counted(name, other)


def test_counts_are_near_the_published_ones_and_windows_in_the_tasks_range():
  for (name, row), parameters in COUNTS.items():
    published = importlib.import_module(f"configs.sparse_transformer_{name}").PUBLISHED[row]
    assert parameters / 1e6 == pytest.approx(published["parameters_m"], abs=1.7), (name, row)
  for row, _ in MUSIC:
    task = get_config("music", row).task
    assert task_class(task) is Density and task.window == int(row[1:]), row


MUSIC = [("n65536", 0.01), ("n262144", 0.06), ("n1048576", 0.25)]


@pytest.mark.parametrize(("row", "most"), all_but("n65536", of=MUSIC))
def test_extrapolated_counts_of_music_are_near_the_published_ones(row, most):
  """The count is extrapolated from two short sequences.

  Only the position tables depend on the length; they grow with the sides of the grid.
  """
  published = importlib.import_module("configs.sparse_transformer_music").PUBLISHED[row]
  side = get_config("music", row).model.grid[0]
  short = "{row},model.grid=({n},{n}),token_mixer.stride={n},task.window={m},model.layer_cycle=0"
  two = [get_config("music", short.format(row=row, n=n, m=n * n)) for n in (8, 16)]
  a, b = map(count_by_layers, two)
  assert (a + (side - 8) * (b - a) / 8) / 1e6 == pytest.approx(published["parameters_m"], rel=most)


@pytest.mark.parametrize(("name", "row"), [("cifar10", "strided"), ("enwik8", "fixed")])
def test_a_summary_needs_no_data(name, row):
  task = build_task(complete_config(get_config(name, row)))
  assert task.length == {"cifar10": 3072, "enwik8": 12288}[name]
  assert task.figures[0].title() == {"cifar10": "bits/dim", "enwik8": "bits/byte"}[name]


def test_the_released_cycle_of_the_largest_begins_with_a_local_layer():
  mixer = get_config("cifar10", "c10_150m").model.token_mixer
  assert mixer.first == 1 and mixer.local_layers == 3


def test_enwik8_works_with_another_data_set():
  config = get_config("enwik8", "fixed")
  info = DatasetInfo("bytes:x", {"tokens": ArraySpec((None,), "uint8")}, vocabulary=256)
  assert resolve(config, info).model.grid == (96, 128)
