"""The terms that a teacher adds to the loss, against NumPy, and parameters that stay frozen."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict

from configs.sparsifiner_imagenet import BACKBONE, PREDICTOR
from tests import runs
from tests.drawn import draw_variables
from tests.training import small
from vitx.checkpoints.tree import name_arrays
from vitx.models import create_model
from vitx.tasks import build_task
from vitx.tasks.base import Teacher, init_variables
from vitx.tasks.classification import Classification
from vitx.tasks.distillation import Distillation
from vitx.tasks.figures import table
from vitx.training.experiment import make_experiment
from vitx.training.optim.optimizers import make_optimizer
from vitx.training.step import Rates

KEY = jax.random.key(3, impl="threefry2x32")
SPARSE = dict(name="sparsifiner", slots=3, keep=0.4, coefficient_threshold=0.3)
WIDE = dict(width=16, depth=1, num_heads=2, mlp_dim=32)


def network(name="vit", **fields):
  return create_model(name, num_classes=small.CLASSES, **(WIDE | fields))


def make(student, teacher, **fields):
  """Returns a task, the student's parameters and state, and the constants."""
  base = small.task({})
  plain = {f.name: getattr(base, f.name) for f in dataclasses.fields(Classification)}
  weights = FrozenDict(fields.pop("weights", {}))
  taught = Teacher("there", teacher, base.input_spec)
  task = Distillation(**plain | {"model": student}, teacher=taught, weights=weights, **fields)
  variables = draw_variables(partial(init_variables, task))
  constants = {"teacher": draw_variables(partial(init_variables, taught))}
  return task, variables.pop("params"), variables, constants


def compare(task, params, state, constants):
  """Returns the loss, metrics and targets, and the outputs of student and teacher.

  The outputs are logits and intermediates.
  """

  @jax.jit
  def run(params, state, constants):
    batch = small.batch(0)
    loss, (_, metrics) = task.loss(params, state, constants, batch, KEY, jnp.int32(0))
    images, targets = task.draw(batch, KEY)
    pairs = (task.model, {"params": params, **state}), (task.teacher.model, constants["teacher"])
    outputs = [m.apply(v, images, train=False, mutable=["intermediates"]) for m, v in pairs]
    return loss, metrics, targets, [(x, collections["intermediates"]) for x, collections in outputs]

  double = lambda x: np.asarray(x, float)  # noqa: E731
  return jax.tree.map(double, run(params, state, constants))


def log_softmax(x):
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.slow
def test_every_term_follows_its_definition():
  weights = dict(classes=0.3, hard=0.7, logits=0.5, tokens=2.0)
  task, params, state, constants = make(
    network(), network(mlp_dim=48), weights=weights, temperature=2.0
  )
  value, metrics, targets, outputs = compare(task, params, state, constants)
  (ours, sown), (theirs, taught) = outputs
  log_ours, hot, log_hot = log_softmax(ours), log_softmax(theirs / 2), log_softmax(ours / 2)
  decided = np.eye(small.CLASSES)[theirs.argmax(-1)]
  tokens = [x["patch_tokens"][0] for x in (sown, taught)]
  expected = {
    "classes": -(targets * log_ours).sum(-1).mean(),
    "hard": -(decided * log_ours).sum(-1).mean(),
    "logits": 4 * (np.exp(hot) * (hot - log_hot)).sum(-1).mean(),
    "tokens": np.square(tokens[0] - tokens[1]).mean(),
  }
  for name, term in expected.items():
    np.testing.assert_allclose(metrics[name], term, rtol=1e-5, err_msg=name)
  total = sum(weights[name] * term for name, term in expected.items())
  np.testing.assert_allclose(value, total, rtol=1e-5)


@pytest.mark.slow  # compiles two networks, and an evaluation
def test_predicted_attention_is_compared_by_layer_head_query_and_key():
  fields = dict(depth=2, token_mixer=SPARSE | {"sparse": False})
  teacher = network(depth=2, token_mixer=dict(name="softmax", implementation="masked"))
  task, params, state, constants = make(network(**fields), teacher, weights={"attention": 3.0})
  assert (task.figures[0].name, task.figures[0].direction) == ("attention_error", "min")
  value, metrics, _, ((_, sown), (_, taught)) = compare(task, params, state, constants)
  errors = []
  for block in ("block_0", "block_1"):
    predicted = sown[block]["token_mixer"]["approximation"][0]
    real = taught[block]["token_mixer"]["attention"][0][:, :, 1:]
    errors.append(np.square(predicted - real).sum((1, 2, 3)))
  np.testing.assert_allclose(metrics["attention"], np.mean(errors), rtol=1e-4)
  np.testing.assert_allclose(value, 3 * np.mean(errors), rtol=1e-4)
  batch = small.batch(0) | {"mask": np.arange(16) < 10}
  sums = jax.jit(task.evaluate)(params, state, constants, batch)["sums"]
  unmasked = np.mean(errors, axis=0)[:10].sum()  # nothing is augmented
  np.testing.assert_allclose(sums["attention_error"], unmasked, rtol=1e-4)
  without = jax.eval_shape(task.evaluate, params, state, {}, batch)["sums"]
  assert "attention_error" not in without


def test_a_teacher_has_no_gradient_and_sees_no_dropout():
  setup = make(network(), network(dropout=0.3), weights={"logits": 1.0})
  task, params, state, constants = setup

  @jax.jit
  def run(key):
    def loss(params, constants):
      return task.loss(params, state, constants, small.batch(0), key, jnp.int32(0))[0]

    return jax.value_and_grad(loss, argnums=(0, 1))(params, constants)

  (value, (ours, theirs)), (again, _) = run(KEY), run(jax.random.fold_in(KEY, 1))
  assert all(np.any(np.asarray(x)) for x in jax.tree.leaves(ours["block_0"]))
  assert not any(np.any(np.asarray(x)) for x in jax.tree.leaves(theirs))
  assert value == again  # with dropout, it would depend on the key


@pytest.mark.slow  # compiles networks of two heads
def test_networks_with_two_heads_teach_and_learn_by_the_right_ones():
  distilled, lv = network("distilled_vit"), network("lv_vit", stem="linear")

  def divergence(theirs, ours):
    theirs, ours = log_softmax(theirs), log_softmax(ours)
    return (np.exp(theirs) * (theirs - ours)).sum(-1).mean()

  setup = make(distilled, lv, weights={"classes": 1.0, "logits": 1.0})
  _, metrics, targets, ((_, sown), (_, taught)) = compare(*setup)
  log_p = log_softmax(sown["class_logits"][0])
  np.testing.assert_allclose(metrics["classes"], -(targets * log_p).sum(-1).mean(), rtol=1e-5)
  expected = divergence(taught["class_logits"][0], sown["distillation_logits"][0])
  np.testing.assert_allclose(metrics["logits"], expected, rtol=1e-5)
  # A distilled network teaches by both heads, and LV-ViT by its outputs for the patches.
  _, metrics, _, ((ours, _), (theirs, _)) = compare(
    *make(network(), distilled, weights={"logits": 1.0})
  )
  np.testing.assert_allclose(metrics["logits"], divergence(theirs, ours), rtol=1e-5)
  _, metrics, _, ((_, sown), (_, taught)) = compare(
    *make(lv, lv, weights={"logits": 1.0, "tokens": 1.0})
  )
  expected = divergence(taught["class_logits"][0], sown["class_logits"][0])
  np.testing.assert_allclose(metrics["logits"], expected, rtol=1e-5)
  error = np.square(sown["patch_logits"][0] - taught["patch_logits"][0]).mean()
  np.testing.assert_allclose(metrics["tokens"], error, rtol=1e-5)


@pytest.mark.slow  # compiles a network
def test_the_norm_of_the_bases_falls_by_a_cosine():
  student = network(depth=2, token_mixer=SPARSE)
  task, params, state, constants = make(
    student, network(), weights={"basis_l1": 0.1}, basis_l1_decay_steps=8
  )
  bases = [params[f"block_{layer}"]["token_mixer"]["basis"] for layer in (0, 1)]
  norm = sum(np.abs(np.asarray(x, float)).sum() for x in bases)
  loss = jax.jit(partial(task.loss, params, state, constants, small.batch(0), KEY))
  for step, share in ((0, 1.0), (4, 0.5), (8, 0.0), (20, 0.0)):
    value, (_, metrics) = loss(jnp.int32(step))
    np.testing.assert_allclose(metrics["basis_l1"], norm, rtol=1e-5)
    np.testing.assert_allclose(value, 0.1 * share * norm, rtol=1e-5, atol=1e-6)


@pytest.mark.slow  # compiles an evaluation
def test_sparsity_is_the_share_of_zeros_of_unmasked_examples():
  task, params, state, constants = make(network(depth=2, token_mixer=SPARSE), network(), weights={})
  batch = small.batch(0) | {"mask": np.arange(16) % 3 > 0}

  @jax.jit
  def run(params):
    images, variables = task.preprocess(batch["image"]), {"params": params, **state}
    collections = task.model.apply(variables, images, train=False, mutable=["intermediates"])[1]
    return collections, task.evaluate(params, state, constants, batch)["sums"]

  collections, sums = run(params)
  layers = [collections["intermediates"][f"block_{n}"]["token_mixer"] for n in (0, 1)]
  shares = [np.mean(np.asarray(x["coefficients"][0])[batch["mask"]] == 0) for x in layers]
  bases = [np.mean(np.asarray(x["pruned_basis"][0]) == 0) for x in layers]
  figures = task.summarize(sums)
  assert 0 < figures["coefficient_sparsity"] < 1
  assert figures["coefficient_sparsity"] == pytest.approx(np.mean(shares), rel=1e-5)
  assert figures["basis_sparsity"] == pytest.approx(np.mean(bases), abs=1e-6)
  assert "coefficient sparsity" in table(task.figures, figures, "abcde")


@pytest.mark.slow  # compiles a step of LV-ViT with Sparsifiner
@pytest.mark.usefixtures("whole_runs")  # its dtypes are promoted as usual
@pytest.mark.parametrize("phase", [1, 2])
def test_a_phase_leaves_frozen_parameters_unchanged_bit_for_bit(phase):
  fields = dict(stem=dict(name="normalized", patch=4, strides=(1, 1, 1)))
  mixer = SPARSE | {"use_bias": False, "sparse": phase == 2}
  dense = dict(name="softmax", use_bias=False, implementation="masked")
  terms = {"attention": 1.0} if phase == 1 else {"classes": 1.0, "logits": 0.5, "tokens": 0.5}
  task, params, state, constants = make(
    network("lv_vit", token_mixer=mixer, **fields),
    network("lv_vit", token_mixer=dense, **fields),
    weights=terms,
    train_mode=phase == 2,
  )
  config = runs.tiny().to_dict() | {"freeze": (BACKBONE if phase == 1 else PREDICTOR,)}
  config["weight_decay_mask"] = "all"
  optimizer = make_optimizer(config, params)
  step = small.make_step(task, optimizer=optimizer, ema_decay=0.9)
  before = after = jax.jit(step.begin)({"params": params, **state})
  update = jax.jit(step.train)
  for number in range(3):
    after, _, _ = update(after, Rates.create(7), constants, small.batch(number), jnp.int32(0))
  old, new = (name_arrays(x.params) for x in (before, after))
  predictor = {name for name in old if "token_mixer/" in name and is_of_predictor(name)}
  assert len(predictor) == 6
  for name in old:
    changed = np.any(np.asarray(old[name]) != np.asarray(new[name]))
    assert changed == ((name in predictor) == (phase == 1)), name
  moves = name_arrays(after.model_state), name_arrays(before.model_state)
  assert len(moves[0]) == 6
  for name, x in moves[0].items():
    assert np.array_equal(x, moves[1][name]) == (phase == 1), name


def is_of_predictor(name):
  return any(f"/{part}" in name for part in ("reduce_query", "reduce_key", "down", "basis"))


@pytest.mark.usefixtures("whole_runs")
@pytest.mark.parametrize(
  ("overrides", "message"),
  [
    ("task=distillation", "task.teacher='' does not describe its network; name a workdir"),
    ("task.teacher_model.num_classes=7", r"task\.teacher_model\.num_classes=7 contradicts"),
    ("task.class_weight=0.0", "every weight of task.name='distillation' is zero"),
    ("task.token_weight=1.0,model.width=8", r"patch tokens are \[4, 16\].*\[4, 8\]"),
    ("task.attention_weight=1.0,model.num_heads=1,token_mixer=sparsifiner", "the teacher's is"),
    ("task.token_weight=1.0,model.token_reduction=tome", "which model.token_reduction drops"),
    ("task.basis_l1=1.0", "no token mixer has a basis"),
  ],
)
def test_a_contradiction_to_the_teacher_is_refused(overrides, message):
  dense = dict(runs.tiny().model.to_dict(), token_mixer="softmax", num_classes=10)
  teacher = ["task=distillation", "task.teacher=there", f"task.teacher_model={dense!r}"]
  items = overrides.split(",")
  if items[0] == "task=distillation":
    teacher = []
  with pytest.raises(ValueError, match=message):
    make_experiment(runs.tiny(*teacher, *items))


@pytest.mark.usefixtures("whole_runs")
def test_the_config_has_the_teachers_network_with_masked_attention():
  config = runs.tiny("task=distillation", "task.teacher=there", "token_mixer=sparsifiner")
  dense = dict(runs.tiny().model.to_dict(), token_mixer="softmax")
  with config.unlocked():
    config.task.update(teacher_model=dense, attention_weight=1.0, class_weight=0.0)
    config.model.token_mixer.update(slots=3, sparse=False)
  experiment = make_experiment(config, is_trial=True)
  model = experiment.settings.task.teacher_model
  assert model.token_mixer.implementation == "masked" and model.num_classes == 10
  weights = jax.tree.leaves(experiment.constants["teacher"])
  assert not any(leaf.any() for leaf in weights)  # not read yet
  assert "teacher" not in str(jax.tree.structure(experiment.shapes))
  assert build_task(experiment.settings).teacher.source == "there"
