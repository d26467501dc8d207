"""The alignment of a network's layers with those of a frozen network."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.drawn import draw_variables
from tests.slow import all_but
from tests.training import small
from vitx.attention import MIXERS
from vitx.models import create_model
from vitx.ops.layout import TokenLayout
from vitx.tasks.alignment import Alignment
from vitx.tasks.base import Teacher, init_variables
from vitx.tasks.classification import Classification

DEPTH, HEADS = 2, 2
BATCH = small.batch(0, rows=4) | {"mask": np.array([True, True, True, False])}
MIXER = "linear_transformer"


def network(**fields):
  sizes = dict(width=16, depth=DEPTH, num_heads=HEADS, mlp_dim=32)
  return create_model("vit", num_classes=small.CLASSES, **sizes | fields)


@cache
def make(target, student=None):
  """Returns a task, and the variables of the student and of the teacher."""
  base = small.task({})
  plain = {f.name: getattr(base, f.name) for f in dataclasses.fields(Classification)}
  taught = Teacher("there", network(), base.input_spec, needs_head=False)
  fields = plain | {"model": student or network(token_mixer=MIXER)}
  task = Alignment(**fields, teacher=taught, target=target)
  ours, theirs = (
    draw_variables(partial(init_variables, x), seed=i) for i, x in enumerate((task, taught))
  )
  return task, ours, theirs


@partial(jax.jit, static_argnums=0)
def differentiate(task, variables, teacher):
  """Returns the loss of a batch, its gradient by the parameters, and the sums of an evaluation."""
  key, constants = jax.random.key(3, impl="threefry2x32"), {"teacher": teacher}

  def loss(params):
    return task.loss(params, {}, constants, BATCH, key, jnp.int32(0))[0]

  params = variables["params"]
  return *jax.value_and_grad(loss)(params), task.evaluate(params, {}, constants, BATCH)["sums"]


def compute_errors(task, variables, teacher):
  """Returns the relative errors (L, B) of an evaluation, from the outputs that Flax captures."""
  images = task.model_inputs(BATCH)

  def capture(model, variables):
    apply = jax.jit(partial(model.apply, train=False, capture_intermediates=True))
    return apply(variables, images)[1]["intermediates"]

  theirs = capture(task.teacher.model, teacher)
  ours = capture(task.model, variables) if task.target == "features" else None
  errors = []
  for layer in range(DEPTH):
    block, name = theirs[f"block_{layer}"], f"block_{layer}"
    if task.target == "attention":
      (x,), (goal,) = block["mixer_norm"]["__call__"], block["token_mixer"]["__call__"]
      mixer = MIXERS[MIXER](num_heads=HEADS, layer=layer, depth=DEPTH)
      layout = TokenLayout((4, 4), prefix=1)
      output = mixer.apply(
        {"params": variables["params"][name]["token_mixer"]}, x, layout, train=False
      )
    else:
      (goal,), (output,) = block["__call__"], ours[name]["__call__"]
    square = lambda x: np.sum(np.square(np.asarray(x, np.float64)), axis=(1, 2))  # noqa: E731
    errors.append(square(output - goal) / square(goal))
  return np.array(errors)


@pytest.mark.parametrize("target", all_but("attention", of=("attention", "features")))
def test_the_error_is_that_of_outputs_which_flax_captures(target):
  task, variables, teacher = make(target)
  loss, gradient, sums = differentiate(task, variables, teacher)
  errors = compute_errors(task, variables, teacher)
  np.testing.assert_allclose(loss, errors.mean(), rtol=1e-5)
  expected = errors[:, BATCH["mask"]]
  np.testing.assert_allclose(sums["alignment_errors"], expected.sum(axis=1), rtol=1e-5)
  figures = task.summarize(sums)
  assert figures["examples"] == 3
  np.testing.assert_allclose(figures["alignment_error"], expected.mean(), rtol=1e-5)
  learned = {name for name, x in flatten_dict(gradient, sep="/").items() if np.any(x != 0)}
  if target == "attention":  # the key has no bias that its error depends on in every mixer
    assert learned and all("/token_mixer/" in name for name in learned)
  else:
    assert {"stem/embed/kernel", "posemb/table", "block_1/mlp/down/kernel"} <= learned
    assert not any(name.startswith(("norm/", "head/")) for name in learned)


def test_the_attention_of_a_layer_does_not_depend_on_the_layers_before():
  task, variables, teacher = make("attention")
  changed = jax.tree.map(np.copy, variables)
  changed["params"]["block_0"]["token_mixer"]["value"]["kernel"] *= 2.0
  changed["params"]["block_0"]["mlp"]["up"]["kernel"] *= 2.0
  before, after = (
    differentiate(task, x, teacher)[2]["alignment_errors"] for x in (variables, changed)
  )
  assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.parametrize("target", all_but("attention", of=("attention", "features")))
def test_a_network_with_the_weights_of_its_teacher_has_no_error(target):
  task, _, teacher = make(target, student=network(remat=True))
  loss, gradient, _ = differentiate(task, teacher, teacher)
  assert loss == 0 and all(np.all(x == 0) for x in jax.tree.leaves(gradient))


def test_without_the_weights_of_the_teacher_there_is_nothing_to_compare():
  task, variables, _ = make("attention")
  sums = jax.jit(task.evaluate)(variables["params"], {}, {}, BATCH)["sums"]
  assert task.summarize(sums) == {"examples": 3}
