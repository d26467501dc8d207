"""A user's own task, source, mixer, pattern and optimizer work in all commands.

This file defines them: digits turned by an angle, a regression of that angle whose primary
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
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage
from sklearn import datasets

from tests import programs, runs
from vitx import ops
from vitx.attention import AttentionModule, Properties, from_heads
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.data.dataset import ArraySpec, Dataset, DatasetInfo
from vitx.models import initialize, model_from_config
from vitx.ops.dropout import examples_at
from vitx.tasks.base import Task

SIDE = 8


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
    return {"picture": self.pictures[i], "angle": self.angles[i]}

  def name(self, i):
    return f"digit {i}"


def turned_digits(data) -> Dataset:
  """Opens the source `tests.test_extension:turned_digits`."""
  spec = {"picture": ArraySpec((SIDE, SIDE), "float32"), "angle": ArraySpec((), "float32")}
  info = DatasetInfo(name=data["source"], spec=spec)
  return Dataset(info, splits=("train",), open_split=lambda split: Turned())


@dataclasses.dataclass(frozen=True)
class Pairs:
  """A transform that returns an example's arrays unchanged."""

  draws: ClassVar[bool] = False

  def __call__(self, example, bits=None):
    return example


@dataclasses.dataclass(frozen=True)
class AngleRegression(Task):
  """Regression of a picture's angle by the squared error of its cosine and sine."""

  model: nn.Module
  noise: float

  primary: ClassVar[str] = "degrees"
  mode: ClassVar[Literal["max", "min"]] = "min"
  targets: ClassVar[tuple[str, ...]] = ("angle",)

  @classmethod
  def resolve(cls, config, source):
    info = getattr(source, "info", source)
    if "angle" not in info.spec:
      raise ConfigError(f"data.source={info.name!r} has no angles")
    config.model.num_classes = 2

  @classmethod
  def from_config(cls, config, *, noise: float = 0.0):
    return cls(model_from_config(config.model), noise)

  @property
  def element_spec(self):
    return {
      "picture": jax.ShapeDtypeStruct((SIDE, SIDE), np.float32),
      "angle": jax.ShapeDtypeStruct((), np.float32),
    }

  @property
  def input_spec(self):
    return jax.ShapeDtypeStruct((1, SIDE, SIDE, 1), np.float32)

  def transform(self, *, train):
    return Pairs()

  def init(self, key, batch):
    return initialize(self.model, key, batch["picture"][:1, ..., None], train=False)

  def loss(self, params, state, constants, batch, key, step):
    with examples_at(batch["index"]):
      x = batch["picture"] + self.noise * jax.random.normal(key, batch["picture"].shape[1:])
      out, state = self.model.apply(
        {"params": params, **state},
        x[..., None],
        train=True,
        rngs={"dropout": key},
        mutable=list(state),
      )
    wanted = jnp.stack([jnp.cos(batch["angle"]), jnp.sin(batch["angle"])], axis=-1)
    loss = jnp.mean(jnp.sum(jnp.square(out - wanted), axis=-1))
    return loss, (dict(state), {"squared": loss})

  def evaluate(self, params, state, constants, batch):
    out = self.model.apply({"params": params, **state}, batch["picture"][..., None], train=False)
    angle = jnp.arctan2(out[:, 1], out[:, 0])
    weight = batch["mask"].astype(jnp.float32)
    off = jnp.abs(angle - batch["angle"]) * (180 / math.pi)
    sums = {"count": jnp.sum(weight), "off": jnp.sum(weight * off)}
    return {"sums": sums, "rows": {"angle": angle}}

  def summarize(self, sums):
    return {"examples": int(sums["count"]), "degrees": float(sums["off"] / sums["count"])}

  def plateau_figure(self, mode):
    return "degrees"

  def describe(self, figures):
    return f"off by {figures['degrees']:.1f} degrees"

  def prediction_columns(self, data):
    return ["angle", "predicted"]

  def prediction_rows(self, data, batch, rows):
    return zip(batch["angle"].tolist(), rows["angle"].tolist(), strict=True)


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
    f"task={HERE}:AngleRegression",
    "task.noise=0.02",
    f"token_mixer={HERE}:DiagonalAttention",
    "optimizer=optax:adabelief",
    "optimizer.b1=0.8",
    "model.width=16,model.depth=1,model.num_heads=2,model.mlp_dim=32,model.dropout=0.1",
    "stem=linear,stem.patch=1,batch_size=32,learning_rate=3e-3",
    "duration=90 steps,evaluation.every=30 steps,checkpoint.every=15 steps,log_every=10 steps",
  )
)


def vitx(*arguments) -> str:
  """Runs a command in this process; returns the text that it printed."""
  told = io.StringIO()
  with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told), programs.shared():
    assert main([str(argument) for argument in arguments]) == 0, told.getvalue()[-3000:]
  return told.getvalue()


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
  restored = [jax.tree.leaves(runs.final_state(each)) for each in (tmp_path, workdir)]
  jax.tree.map(np.testing.assert_array_equal, *restored)


@pytest.mark.slow
def test_the_run_evaluates_and_predicts_by_command(workdir, tmp_path):
  table, figures = tmp_path / "rows.csv", tmp_path / "figures.json"
  arguments = ("--workdir", workdir, "--trust_code", "--predictions", table, "--json", figures)
  assert "degrees" in vitx("evaluate", *arguments)
  (test,) = (row for row in runs.rows(workdir) if row["kind"] == "test")
  found = json.loads(figures.read_text())
  assert found["degrees"] == pytest.approx(test["degrees"], rel=1e-5)
  with open(table, newline="") as file:
    head, *lines = csv.reader(file)
  assert head == ["name", "angle", "predicted"] and len(lines) == test["examples"]
  off = [abs(float(angle) - float(predicted)) for _, angle, predicted in lines]
  assert math.degrees(np.mean(off)) == pytest.approx(test["degrees"], rel=1e-4)
  digit = Turned()[7]
  (tmp_path / "digits" / "more").mkdir(parents=True)
  # The file does not state the angle.
  np.savez(tmp_path / "digits" / "more" / "digit.npz", picture=digit["picture"])
  told = tmp_path / "told.json"
  arguments = ("--workdir", workdir, "--trust_code", "--json", told)
  vitx("predict", tmp_path / "digits", *arguments)
  (prediction,) = json.loads(told.read_text())
  assert abs(prediction["predicted"] - float(digit["angle"])) < 0.8
  out = tmp_path / "turned.jaxprogram"
  vitx("export", "--workdir", workdir, "--out", out, "--trust_code")
  angle = jax.export.deserialize(bytearray(out.read_bytes())).call(digit["picture"][None])["angle"]
  assert float(angle[0]) == pytest.approx(prediction["predicted"], abs=1e-5)
