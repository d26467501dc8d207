"""A user's own task, source, mixer, pattern and optimizer work in all commands.

This file defines them: digits turned by an angle, the page's regression of that angle whose first
figure is good when low, attention along a pattern that states its own permutation, and an
optimizer that only optax has. The run trains, resumes, evaluates, predicts and is exported.
"""

import contextlib
import csv
import dataclasses
import io
import json
import math
import shutil
from typing import ClassVar

import flax.linen as nn
import jax
import numpy as np
import pytest
from scipy import ndimage
from sklearn import datasets

from tests import documents, programs, runs
from vitx import ops
from vitx.attention import AttentionModule, Properties, from_heads
from vitx.cli.main import main
from vitx.data.dataset import ArraySpec, Dataset, DatasetInfo
from vitx.tasks.base import Task

SIDE = 8
PAGE = "docs/extending.md"


class Turned:
  """Digits turned by a known angle in radians, float32; they have no classes."""

  labels = None

  def __init__(self):
    pictures = datasets.load_digits().images[:480].astype(np.float32) / 16
    self.angles = np.random.default_rng(0).uniform(-1, 1, len(pictures)).astype(np.float32)
    self.pictures = [
      ndimage.rotate(picture, math.degrees(angle), reshape=False, order=1)
      for picture, angle in zip(pictures, self.angles, strict=True)
    ]

  def __len__(self):
    return len(self.pictures)

  def __getitem__(self, i):
    return {"picture": self.pictures[i][..., None], "angle": self.angles[i]}

  def name(self, i):
    return f"digit {i}"


def turned_digits(data) -> Dataset:
  """Opens the source `tests.test_extension:turned_digits`."""
  spec = {"picture": ArraySpec((SIDE, SIDE, 1), "float32"), "angle": ArraySpec((), "float32")}
  info = DatasetInfo(name=data["source"], spec=spec)
  return Dataset(info, splits=("train",), open_split=lambda split: Turned())


# The class `Turns` of the page.
exec(next(text for language, text in documents.blocks(PAGE) if language == documents.PYTHON))


@dataclasses.dataclass(frozen=True)
class Diagonals(ops.patterns.Pattern):
  """Every token attends its own wrapped diagonal; the permutation turns diagonals into blocks."""

  def allows(self, layout, q, k, head=0):
    side = layout.grid[-1]
    return (q // side + q % side) % side == (k // side + k % side) % side

  def permutation(self, layout):
    tokens = np.arange(layout.length)
    side = layout.grid[-1]
    return np.argsort((tokens // side + tokens % side) % side, kind="stable")


class DiagonalAttention(AttentionModule):
  """Softmax attention along the diagonals of a square grid, without a class token."""

  properties: ClassVar = Properties(flops_exponent=1.5)

  @nn.compact
  def __call__(self, x, layout, *, mask=None, train):
    q, k, v = self.project(x)
    out, matrix = ops.attention_with_weights(
      q, k, v, Diagonals(), layout, key_mask=mask, implementation=self.implementation
    )
    self.sow_matrix(matrix)
    return from_heads(x.shape[-1], dtype=self.dtype)(out)


HERE = "tests.test_extension"
CONFIG = ",".join(
  (
    "configs/digits.py:softmax",
    f"dataset={HERE}:turned_digits",
    f"task={HERE}:Turns",
    "task.noise=0.02",
    f"token_mixer={HERE}:DiagonalAttention",
    "optimizer=optax:adabelief",
    "optimizer.b1=0.8",
    "model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=32,model.dropout=0.1",
    "stem=linear,stem.patch=1,batch_size=32,learning_rate=3e-3",
    "duration=90 steps,evaluation.every=30 steps,checkpoint.every=15 steps,log_every=10 steps",
  )
)


def test_the_task_of_the_page_defines_eight_members_and_predicts_by_default():
  turns = globals()["Turns"]
  defined, members = (
    {name for name in {*vars(cls), *cls.__annotations__} if name[0] != "_"} for cls in (turns, Task)
  )
  assert len(defined & members) == 8 and len(members) <= 24
  rows = {"predicted": np.float32([0.3]), "features": np.zeros((1, 5))}
  columns = turns(None, 0.0).predictions((), {"angle": np.float32([0.1])}, rows)
  assert columns == {"angle": [0.1], "predicted": [0.3]}
  assert turns(None, 0.0).input_spec.shape == (1, SIDE, SIDE, 1)


def vitx(*arguments) -> str:
  """Runs a command in this process; returns the text that it printed."""
  output = io.StringIO()
  with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), programs.shared():
    assert main([str(argument) for argument in arguments]) == 0, output.getvalue()[-3000:]
  return output.getvalue()


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """An uninterrupted run."""
  directory = tmp_path_factory.mktemp("toy") / "whole"
  output = vitx("train", "--config", CONFIG, "--workdir", directory)
  assert "test (checkpoint" in output and "off by" in output
  return directory


@pytest.mark.slow  # two runs
def test_a_run_that_lost_its_end_repeats_it_bit_for_bit(workdir, tmp_path):
  errors = {r["step"]: r["degrees"] for r in runs.rows(workdir) if r["kind"] == "validation"}
  assert errors[90] < 0.8 * errors[30]
  shutil.copytree(workdir, tmp_path, dirs_exist_ok=True)
  shutil.rmtree(tmp_path / "checkpoints" / "90")
  assert "at step 75" in vitx("train", "--config", CONFIG, "--workdir", tmp_path)
  assert runs.rows(tmp_path) == runs.rows(workdir)
  restored = [jax.tree.leaves(runs.final_state(folder)) for folder in (tmp_path, workdir)]
  jax.tree.map(np.testing.assert_array_equal, *restored)


@pytest.mark.slow
def test_the_run_evaluates_and_predicts_by_command(workdir, tmp_path):
  table, figures = tmp_path / "rows.csv", tmp_path / "figures.json"
  arguments = ("--workdir", workdir, "--trust_code", "--predictions", table, "--json", figures)
  assert "degrees" in vitx("evaluate", *arguments)
  (test,) = (row for row in runs.rows(workdir) if row["kind"] == "test")
  evaluated = json.loads(figures.read_text())
  assert evaluated["degrees"] == pytest.approx(test["degrees"], rel=1e-5)
  with open(table, newline="") as file:
    head, *lines = csv.reader(file)
  assert head == ["name", "angle", "predicted"] and len(lines) == test["examples"]
  off = [abs(float(angle) - float(predicted)) for _, angle, predicted in lines]
  assert math.degrees(np.mean(off)) == pytest.approx(test["degrees"], rel=1e-4)
  digit = Turned()[7]
  (tmp_path / "digits" / "more").mkdir(parents=True)
  # The file does not state the angle.
  np.savez(tmp_path / "digits" / "more" / "digit.npz", picture=digit["picture"])
  answer = tmp_path / "told.json"
  arguments = ("--workdir", workdir, "--trust_code", "--json", answer)
  vitx("predict", tmp_path / "digits", *arguments)
  (prediction,) = json.loads(answer.read_text())
  assert abs(prediction["predicted"] - float(digit["angle"])) < 0.8
  out = tmp_path / "turned.jaxprogram"
  vitx("export", "--workdir", workdir, "--out", out, "--trust_code")
  angle = jax.export.deserialize(bytearray(out.read_bytes())).call(digit["picture"][None])[
    "predicted"
  ]
  assert float(angle[0]) == pytest.approx(prediction["predicted"], abs=1e-5)
