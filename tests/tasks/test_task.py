"""Further parts of a task: constants, intermediates, and losses that modules sow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from sklearn import metrics as reference

from tests import runs
from tests.slow import all_but
from tests.training import small
from vitx.checkpoints.load import Loaded, load
from vitx.config.errors import ConfigError
from vitx.config.fields import read_settings
from vitx.config.settings import change
from vitx.inference import evaluate as evaluation
from vitx.runtime.evaluation import evaluation_shapes, evaluation_step
from vitx.runtime.weights import blank_constants
from vitx.tasks import build_task, settle
from vitx.tasks.base import bind, init_variables, measurements
from vitx.tasks.classification import Classification
from vitx.tasks.classification_figures import FIGURES
from vitx.tasks.figures import Figure, describe, followed, table
from vitx.tasks.multilabel import MultiLabel
from vitx.tasks.regression import Regression
from vitx.training import attention_entropy, loop, trial
from vitx.training.experiment import batch_shapes, make_step
from vitx.training.step import Rates


class Sowing(nn.Module):
  """A classifier of images with a loss and a state of its own."""

  num_classes: int

  @nn.compact
  def __call__(self, x, *, train):
    calls = self.variable("counters", "calls", lambda: jnp.int32(0))
    if train:
      calls.value = calls.value + 1
    kernel = self.param("kernel", nn.initializers.ones, (self.num_classes,))
    self.sow("losses", "first", 3.0 * jnp.sum(kernel))
    self.sow("losses", "second", jnp.float32(1.0))
    return jnp.mean(x, axis=(1, 2, 3))[:, None] * kernel


class Anchored(Classification):
  """Classification whose loss also reads a constant and the step."""

  def constants(self):
    return {"anchor": np.float32(0.25)}

  def loss(self, params, state, constants, batch, key, step):
    loss, (state, metrics) = super().loss(params, state, constants, batch, key, step)
    metrics = {**metrics, "anchor": constants["anchor"], "at": jnp.float32(step)}
    return loss + constants["anchor"], (state, metrics)


def test_a_collection_of_losses_is_added_and_is_no_state():
  task = small.task({})
  quiet = small.task({})
  object.__setattr__(task, "model", Sowing(small.CLASSES))
  key = jax.random.key(1, impl="threefry2x32")

  @jax.jit
  def run():
    state = dict(init_variables(task, jax.random.key(0)))
    assert set(state) == {"params", "counters"}
    params = state.pop("params")
    loss = lambda params: task.loss(params, state, {}, small.batch(0), key, jnp.int32(0))  # noqa: E731
    outputs, gradient = jax.value_and_grad(loss, has_aux=True)(params)
    images, targets = quiet.augment(
      jax.random.fold_in(key, 0), *(small.batch(0)[name] for name in ("index", "image", "label"))
    )
    logits = jnp.mean(images, axis=(1, 2, 3))[:, None] * params["kernel"]
    plain = -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))
    return outputs, gradient, plain

  (value, (new_state, _)), gradient, plain = run()
  assert set(new_state) == {"counters"} and new_state["counters"]["calls"] == 1
  np.testing.assert_allclose(value, plain + 3 * small.CLASSES + 1, rtol=1e-6)
  np.testing.assert_allclose(np.mean(gradient["kernel"]), 3.0, rtol=1e-2)


@pytest.mark.slow  # a whole run
@pytest.mark.usefixtures("whole_runs")
def test_constants_and_the_step_reach_the_loss(tmp_path):
  name = f"task.name={__name__}:Anchored"
  few = ("duration=4 steps", "log_every=1 steps", "schedule=constant", *runs.PLAIN)
  loop.train(runs.tiny(*few, name, "token_mixer=levit"), tmp_path)
  rows = [row for row in runs.rows(tmp_path) if row["kind"] == "train"]
  assert [row["anchor"] for row in rows] == [0.25] * 4
  assert [row["at"] for row in rows] == [0, 1, 2, 3]
  # The head starts at zero: the first loss is log(10), and the constant.
  assert rows[0]["loss"] == pytest.approx(np.log(10) + 0.25, abs=1e-5)
  state = runs.final_state(tmp_path)
  assert "anchor" not in str(jax.tree.structure(state)) and "constants" not in state
  norms = load(tmp_path, "latest", trust_code=True).variables["batch_stats"]["block_0"][
    "token_mixer"
  ]
  assert norms.keys() == {f"{name}_norm" for name in ("query", "key", "value", "out")}
  for norm in norms.values():
    assert np.all(np.isfinite(norm["var"])) and np.all(norm["mean"] != 0)


def test_figures_of_folds_are_pooled_over_examples(monkeypatch):
  """R² of all examples is no mean of the folds' R², and each fold has its own mean and spread."""
  fields = dict(num_classes=1, decode_size=2, image_size=2, channels=1)
  variables = {"params": {"kernel": np.ones(1, np.float32)}, "counters": {"calls": np.int32(0)}}
  models, folds, target, answer = [], [], [], []
  for start, (mean, std) in enumerate([(5, 3), (7, 4)]):
    fields |= dict(target_mean=mean, target_std=std)
    task = Regression(Sowing(1), lambda *_: None, lambda images: images / 255, **fields)
    models.append(Loaded(read_settings(runs.tiny()), task, variables, {}, 0, ""))
    numbers = np.arange(start, 12, 2, np.float32)
    folds.append([{"image": np.full((2, 2, 1), x, np.uint8), "target": x} for x in numbers])
    target, answer = [*target, *numbers], [*answer, *(numbers / 255 * std + mean)]
  monkeypatch.setattr(evaluation, "open_split", lambda *_: (None, None, folds.pop(0), "test"))
  figures = evaluation.evaluate_together(models)
  assert figures["r2"] == pytest.approx(reference.r2_score(target, answer), rel=1e-5)
  assert figures["mae"] == pytest.approx(reference.mean_absolute_error(target, answer), rel=1e-5)
  assert figures["examples"] == 12
  equal = {"prediction": np.ones(7), "target": np.full(7, 4.3)}
  assert models[0].task.summarize(equal)["r2"] is None


TEACHER = "task.teacher=weights.npz,task.teacher_model={'name':'vit','depth':1}"
FILLED = (
  "augment.randaugment=(1,9),augment.randaugment_operations=increasing"  # with the mean color
)
PLAIN = (*runs.PLAIN, "ema_decay=0.0", "optimizer=sgd")
WEIGHTS = {"task.class_weights": [(2.0, 0.5, 1.0), (1.0, 3.0, 1.0)]}
PIXELS = {"data.mean": [(0.4,), (0.6,)], "data.std": [(0.2,), (0.1,)]}
MEASURED = {  # fields that are computed from examples, with two values each
  f"classification,{FILLED}": PIXELS,
  "classification,task.loss=focal": WEIGHTS,
  "multilabel": WEIGHTS,
  "regression": {"task.target_mean": [40.0, 50.0], "task.target_std": [3.0, 7.0]},
  "masked_autoencoder,task.decoder_width=16,task.decoder_depth=1": PIXELS,
  f"distillation,{TEACHER}": PIXELS,
}


def make_twins(name):
  """Returns the settings of two runs that differ in numbers that are computed from examples."""
  classes = 1 if name.startswith(("regression", "masked")) else 3
  shape = f"data.image_size=8,data.channels=1,model.num_classes={classes},stem.patch=2"
  entropy = "evaluation.attention_entropy=1"
  settings = settle.complete_config(runs.tiny(*PLAIN, f"task={name}", shape, entropy))
  fields = MEASURED[name]
  return [change(settings, {path: x[i] for path, x in fields.items()}) for i in range(2)]


@pytest.mark.parametrize("name", all_but("regression", of=MEASURED))
def test_numbers_from_the_examples_are_no_part_of_the_programs(name):
  texts = []
  for settings in make_twins(name):
    task = build_task(settings)
    step, state = make_step(settings, task, lambda step: jnp.float32(1))
    constants, rows = blank_constants(task, settings), evaluation_shapes(task, 2)
    arguments = state.params, state.model_state, constants, rows
    programs = {
      step.train: (state, Rates.create(), constants, batch_shapes(task, 2), jnp.int32(0)),
      evaluation_step(task): arguments,
      attention_entropy._make_step(settings, None): arguments,
    }
    texts.append([jax.jit(f).lower(*arguments).as_text() for f, arguments in programs.items()])
  assert texts[0] == texts[1]


@pytest.mark.parametrize("name", all_but("regression", of=MEASURED))
def test_numbers_of_the_constants_replace_those_of_the_task(name):
  task, other = map(build_task, make_twins(name))
  bound = bind(task, {"measured": measurements(other)})
  key, rows = jax.random.key(0, impl="threefry2x32"), trial.draw(batch_shapes(task, 2))

  def compute(subject):
    images, targets = subject.draw(rows, key)
    loss = subject.mean_loss(targets * 2.0, targets) if subject.targets else 0.0
    return images, targets, loss, subject.model_inputs(rows)

  before, expected, results = (jax.tree.leaves(compute(x)) for x in (task, other, bound))
  for x, y in zip(expected, results, strict=True):
    np.testing.assert_array_equal(x, y)
  assert any(np.any(x != y) for x, y in zip(before, results, strict=True))


@pytest.mark.parametrize("of", ["class_top1", "class_ap"])
def test_a_table_of_many_classes_has_the_ten_worst(of):
  count, names = 1500, [f"n{k}" for k in range(1500)]
  values = [None if k == 3 else k / count for k in range(count)]
  metrics = {"map": 0.5, "f1": 0.5, "exact": 0.5, "nll": 0.5, of: values}
  figures = MultiLabel.figures if of == "class_ap" else FIGURES
  lines = table(figures, metrics, names).splitlines()
  shown = [line.split()[0] for line in lines if line.startswith("    n")]
  assert shown == ["n0", "n1", "n2", *(f"n{k}" for k in range(4, 11))] and len(lines) < 20
  assert any("10 worst of 1,500 classes; --json" in line for line in lines)
  assert len(table(figures, metrics | {of: values[:20]}, names[:20]).splitlines()) > 20


def test_all_texts_follow_from_the_declared_figures():
  gzip, counts = (Figure(name, "min", "{:.1f}", place="reference") for name in ("gzip", "counts"))
  figures = (
    Figure("bits", "min", "{:.2f}", "bits/byte"),
    Figure("r2", "max", "{:.2f}", "R²"),
    Figure("tokens", None, "{:,}", place="table"),
    *(Figure("ece", "min"), gzip, counts),
  )
  values = {"bits": 1.234, "r2": None, "tokens": 2000, "gzip": 3.0, "counts": 2.5, "other": 7.0}
  assert describe(figures, values) == "bits/byte 1.23  R² undefined  (counts: 2.5)"
  lines = table(figures, values | {"intervals": {"bits": [1.0, 1.5]}, "resamples": 9}, ()).split(
    "\n"
  )
  assert lines[0].split() == ["bits/byte", "1.23", "1.00", "to", "1.50"]
  assert [line.split()[0] for line in lines[1:5]] == ["R²", "tokens", "gzip", "counts"]
  assert [followed(figures, mode).name for mode in ("min", "max")] == ["bits", "r2"]
  with pytest.raises(ConfigError, match="'max': the bits of this task is good if low"):
    followed(figures[:1], "max")
