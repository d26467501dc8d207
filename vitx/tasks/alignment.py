"""Alignment: the layers of a network learn the outputs of a frozen network's layers.

It prepares a trained network in which another token mixer has replaced the old one, as in ViT-AdaLA
(arXiv 2603.16063) and in the attention transfer of LoLCATs (arXiv 2410.10254).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.fields import RunSettings
from vitx.models import names
from vitx.models.sown import collect
from vitx.tasks.base import Task, Teacher, run_model
from vitx.tasks.classification import Classification, resolve_images
from vitx.tasks.distillation import check_places, make_teacher
from vitx.tasks.figures import Figure

RECORD = "alignment"  # the collection of the recorded inputs and outputs of modules
Outputs = Literal["attention", "features"]


@dataclasses.dataclass(frozen=True)
class Alignment(Classification):
  """The regression of each layer on the layer of a frozen network, the teacher.

  The error of a layer is the squared difference of the two outputs, divided by the squared norm of
  the teacher's output, for each example. The loss is the mean over layers and examples. Both
  networks see the same augmented images, and run as in evaluation. The data need no labels.

  Attributes:
    target: The outputs that are compared. "attention" stands for the outputs of the token mixers,
      each of which gets the inputs of the teacher's mixer in its layer; so no layer depends on
      another, and only mixers learn. "features" stands for the tokens after each block.
  """

  teacher: Teacher | None = None
  target: Outputs = "attention"

  targets: ClassVar[tuple[str, ...]] = ()
  figures = (Figure("alignment_error", "min", label="error of the layers"),)
  predictions = Task.predictions

  @classmethod
  def resolve(cls, config, source):
    """Sets sizes, channels, mean and standard deviation from the data.

    The teacher's head is not used; if its number of classes is not set, it is that of the data.
    """
    resolve_images(config, source, {})
    if (model := config.task.get("teacher_model")) is not None:
      model.num_classes = model.get("num_classes") or config.model.num_classes

  @classmethod
  def from_config(  # type: ignore[override]  # its loss is no loss of classes
    cls,
    config: RunSettings,
    *,
    teacher: str = "",
    teacher_model: Mapping[str, Any] | None = None,
    target: Outputs = "attention",
  ) -> Self:
    """Returns the task of resolved settings.

    Args:
      config: The resolved settings.
      teacher: A workdir, "phase:NAME" for another phase of the run, or a file of weights.
      teacher_model: The teacher's network, like `config.model`; None takes it from the workdir.
      target: The outputs that are compared: "attention", those of the token mixers for the
        teacher's inputs, or "features", the tokens after each block.
    """
    task = super().from_config(config)
    source = make_teacher(teacher, teacher_model, task.input_spec, needs_head=False)
    if target == "features":
      check_places(task.model, "model", "task.target='features'")
      check_places(source.model, "task.teacher_model", "task.target='features'")
    return dataclasses.replace(task, teacher=source, target=target)

  def loss(self, params, state, constants, batch, key, step):
    """Computes the mean error of the layers for an augmented batch."""
    images, _ = self.augmented(batch, key)
    inputs, outputs = self._teach(constants, images)
    with self._recording(inputs):
      _, new_state, sown = run_model(
        self.model, params, state, images, batch, key, train=False, also=(RECORD,)
      )
    errors = compare(collect(new_state.pop(RECORD), "output"), outputs)
    return jnp.mean(errors) + sown, (new_state, {})

  def evaluate(self, params, state, constants, batch):
    """Returns the sums of the error of each layer, and the mean error of each example.

    Without the teacher's weights, as after training, there is nothing to compare.
    """
    sums, rows = {"count": jnp.sum(batch["mask"], dtype=jnp.float32)}, {}
    if "teacher" in constants:
      images = self.model_inputs(batch)
      inputs, outputs = self._teach(constants, images)
      with self._recording(inputs):
        _, sown = self.model.apply(
          {"params": params, **state}, images, train=False, mutable=[RECORD]
        )
      errors = compare(collect(sown[RECORD], "output"), outputs)
      rows["alignment_error"] = jnp.mean(errors, axis=0)
      sums["alignment_errors"] = jnp.sum(errors, axis=1, where=batch["mask"])
    return {"sums": sums, "rows": rows}

  def summarize(self, sums):
    """Returns `alignment_errors`, the error of each layer, and their mean `alignment_error`."""
    count = float(sums["count"])
    figures: dict[str, Any] = {"examples": int(count)}
    if "alignment_errors" in sums:
      errors = (sums["alignment_errors"] / count).tolist()
      figures |= {"alignment_error": sum(errors) / len(errors), "alignment_errors": errors}
    return figures

  def _teach(self, constants: Any, images: jax.Array) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the inputs and the outputs of the teacher's modules, by their paths."""
    assert self.teacher is not None
    with self._recording():
      _, sown = self.teacher.model.apply(
        constants["teacher"], images, train=False, mutable=[RECORD]
      )
    sown = jax.lax.stop_gradient(sown[RECORD])
    return collect(sown, "input"), collect(sown, "output")

  def _recording(self, inputs: Mapping[str, jax.Array] | None = None) -> Any:
    """Returns a context in which the compared modules sow their inputs and outputs.

    With `inputs` and the target "attention", the modules get these inputs in place of their own.
    """
    is_compared = names.is_mixer if self.target == "attention" else names.is_block
    replaced = inputs if inputs is not None and self.target == "attention" else {}

    def run(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
      module = context.module
      if context.method_name != "__call__" or not is_compared(module.path):
        return call(*args, **kwargs)
      if replaced:
        args = (replaced["/".join(module.path)], *args[1:])
      outputs = call(*args, **kwargs)
      tokens = outputs[0] if isinstance(outputs, tuple) else outputs
      module.sow(RECORD, "input", args[0])
      module.sow(RECORD, "output", tokens)
      return outputs

    return nn.intercept_methods(run)


def compare(outputs: Mapping[str, jax.Array], goals: Mapping[str, jax.Array]) -> jax.Array:
  """Returns the relative squared error of each of L layers for each example, float32 (L, B).

  Args:
    outputs: The tokens (B, N, C) of each layer, by the path of its module.
    goals: The tokens (B, N, C) that they should equal.
  """
  errors = []
  for path, goal in goals.items():
    goal = goal.astype(jnp.float32)
    error = jnp.sum(jnp.square(outputs[path].astype(jnp.float32) - goal), axis=(1, 2))
    errors.append(error / jnp.sum(jnp.square(goal), axis=(1, 2)))
  return jnp.stack(errors)
