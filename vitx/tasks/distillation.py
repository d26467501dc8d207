"""Distillation: classification guided by a teacher's logits, tokens or attention."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

import flax
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from ml_collections import ConfigDict

from vitx.config.checks import NonNegative, Positive, Probability, Range
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings
from vitx.models import find_mixer, model_from_config
from vitx.models.sown import collect
from vitx.tasks.base import Teacher, follow_source, run_model
from vitx.tasks.classification import Classification
from vitx.tasks.classification_figures import agreement, classification_sums, cross_entropy
from vitx.tasks.distillation_terms import (
  attention_errors,
  basis_norm,
  divergence,
  token_error,
  zero_share,
)
from vitx.tasks.figures import Figure

SEEN = ("image_size", "channels", "mean", "std")  # with equal values both networks see equal images
SPARSITIES = {"coefficient_sparsity": "coefficients", "basis_sparsity": "pruned_basis"}


@dataclasses.dataclass(frozen=True)
class Distillation(Classification):
  """Classification with a teacher (DeiT: Touvron et al. 2021; Sparsifiner: Wei et al. 2023).

  The teacher sees the student's augmented images, runs as in evaluation and has no gradient. The
  logits that are compared with the teacher's are those of the student's distillation token, or its
  class logits if it has no such token. An LV-ViT, as a student or a teacher, is compared by the
  logits of its class token, and its patch logits take the place of patch tokens, as in
  Sparsifiner's released code.

  The attention that Sparsifiner's mixers predict, without thresholds, is compared with the
  teacher's attention matrices. The error is the sum of the squared differences over heads, queries
  of the grid and keys, averaged over layers and examples. If this error is part of the loss, it
  chooses the best checkpoint.

  Attributes:
    weights: The weights of the terms of the loss, by their names in `loss`; a term that is absent
      or has the weight 0 is not computed.
    temperature: The temperature T that divides logits in the KL divergence.
    basis_l1_decay_steps: The number of steps in which the weight of `basis_l1` falls to zero along
      a cosine; 0 keeps the weight constant.
    train_mode: Whether the network runs as in training; False, for a frozen backbone, keeps batch
      statistics unchanged and drops nothing.
  """

  teacher: Teacher | None = None
  weights: Mapping[str, float] = FrozenDict(classes=1.0)
  temperature: float = 1.0
  basis_l1_decay_steps: int = 0
  train_mode: bool = True

  @classmethod
  def resolve(cls, config, source):
    """Sets the fields of a classification, and the teacher's number of classes.

    If `attention_weight` is not 0, the teacher's mixer gets the implementation "masked".
    """
    super().resolve(config, source)
    task, classes = config.task, config.model.num_classes
    model = task.get("teacher_model")
    if model is None:
      return
    follow_source(model, "num_classes", classes, config.data.source, "task.teacher_model")
    mixer = find_mixer(model)
    if mixer and task.get("attention_weight", 0.0):
      mixer["implementation"] = "masked"  # the loss reads its matrices
      task.teacher_model = ConfigDict({**model.to_dict(), "token_mixer": mixer})

  @classmethod
  def from_config(  # type: ignore[override]  # its terms have losses and weights of their own
    cls,
    config: RunSettings,
    *,
    teacher: str = "",
    teacher_model: Mapping[str, Any] | None = None,
    label_smoothing: Probability = 0.0,
    class_weight: NonNegative = 1.0,
    hard_weight: NonNegative = 0.0,
    logits_weight: NonNegative = 0.0,
    token_weight: NonNegative = 0.0,
    attention_weight: NonNegative = 0.0,
    basis_l1: NonNegative = 0.0,
    basis_l1_decay_steps: Annotated[int, Range("[0, inf)")] = 0,
    temperature: Positive = 1.0,
    train_mode: bool = True,
  ) -> Self:
    """Returns the task of resolved settings.

    Args:
      config: The resolved settings.
      teacher: A workdir, "phase:NAME" for another phase of the run, or a file of weights.
      teacher_model: The teacher's network, like `config.model`; None takes it from the workdir.
      label_smoothing: The smoothing e; targets are (1 - e) one-hot + e / K.
      class_weight: The weight of the cross-entropy against the (mixed, smoothed) labels.
      hard_weight: The weight of the cross-entropy against the class that the teacher predicts
        (Touvron et al. 2021, equation 3).
      logits_weight: The weight of the KL divergence between the teacher's and the student's class
        probabilities, times temperature squared (equation 2; DeiT's code also divides it by the
        number of classes).
      token_weight: The weight of the mean squared error of the last patch tokens.
      attention_weight: The weight of the squared error of the attention that the student's
        Sparsifiner layers predict, against the teacher's attention.
      basis_l1: The weight of the sum of the absolute values of the bases of all Sparsifiner layers.
      basis_l1_decay_steps: The number of steps in which the weight `basis_l1` falls to zero along a
        cosine; 0 keeps the weight constant.
      temperature: The temperature of the KL divergence.
      train_mode: Whether the network runs as in training; False is for a frozen backbone.
    """
    weights: FrozenDict[str, float] = FrozenDict(
      classes=class_weight,
      hard=hard_weight,
      logits=logits_weight,
      tokens=token_weight,
      attention=attention_weight,
      basis_l1=basis_l1,
    )
    if not any(weights.values()):
      raise ConfigError(
        "every weight of task.name='distillation' is zero; set task.class_weight=1."
      )
    task = super().from_config(config, label_smoothing=label_smoothing)
    source = make_teacher(teacher, teacher_model, task.input_spec)
    if token_weight:
      check_places(task.model, "model", "task.token_weight")
      check_places(source.model, "task.teacher_model", "task.token_weight")
    return dataclasses.replace(
      task,
      teacher=source,
      weights=weights,
      temperature=temperature,
      basis_l1_decay_steps=basis_l1_decay_steps,
      train_mode=train_mode,
    )

  @property
  def figures(self):
    """Returns a classifier's figures and Sparsifiner's.

    If the error of the attention is part of the loss, it is the first.
    """
    first = (Figure("attention_error", "min"),) if self.weights.get("attention") else ()
    shares = (Figure(name, None, "{:.2%}", place="table") for name in SPARSITIES)
    return *first, *super().figures, *shares

  def loss(self, params, state, constants, batch, key, step):
    """Computes the weighted sum of the terms whose weight is not zero.

    The metrics are the top-1 accuracy and each term.
    """
    images, targets = self.draw(batch, key)
    logits, new_state, sown = run_model(
      self.model, params, state, images, batch, key, train=self.train_mode, also=("intermediates",)
    )
    student = _Outputs.of(logits, new_state.pop("intermediates", {}), is_teacher=False)
    teacher = self._teach(constants, images)
    decided = jax.nn.one_hot(jnp.argmax(teacher.classes, axis=-1), self.num_classes)
    makers: dict[str, Callable[[], jax.Array]] = {
      "classes": lambda: cross_entropy(student.classes, targets),
      "hard": lambda: cross_entropy(student.to_teacher, decided),
      "logits": lambda: divergence(teacher.classes, student.to_teacher, self.temperature),
      "tokens": lambda: token_error(student.tokens, teacher.tokens),
      "attention": lambda: jnp.mean(attention_errors(student.sown, teacher.sown)),
      "basis_l1": lambda: basis_norm(params),
    }
    terms = {name: make() for name, make in makers.items() if self.weights.get(name)}
    loss = sown + sum(self._weight(name, step) * term for name, term in terms.items())
    return loss, (new_state, {"top1": agreement(logits, targets), **terms})

  def evaluate(self, params, state, constants, batch):
    """Evaluates a batch as `Classification` does, and adds sums about Sparsifiner's predictors."""
    images = self.model_inputs(batch)
    logits, collections = self.model.apply(
      {"params": params, **state}, images, train=False, mutable=["intermediates"]
    )
    result = classification_sums(logits, batch["label"], batch["mask"], self.num_classes)
    count, sown = result["sums"]["count"], collections.get("intermediates", {})
    for figure, name in SPARSITIES.items():
      layers = collect(sown, name).values()
      if layers:
        shares = [zero_share(x, batch["mask"]) for x in layers]
        result["sums"][figure] = jnp.mean(jnp.stack(shares)) * count
    if self.weights.get("attention") and "teacher" in constants:
      errors = attention_errors(sown, self._teach(constants, images).sown)
      result["sums"]["attention_error"] = jnp.sum(jnp.where(batch["mask"], errors, 0.0))
    return result

  def summarize(self, sums):
    """Returns a classifier's metrics, such as `top1`, and those of Sparsifiner's predictors."""
    figures, count = super().summarize(sums), float(sums["count"])
    for name in (*SPARSITIES, "attention_error"):
      if name in sums:
        figures[name] = float(sums[name]) / count
    return figures

  def _teach(self, constants: Any, images: jax.Array) -> "_Outputs":
    """Returns the teacher's outputs for images, without gradient; it runs as in evaluation."""
    assert self.teacher is not None
    variables = jax.lax.stop_gradient(constants["teacher"])
    logits, collections = self.teacher.model.apply(
      variables, images, train=False, mutable=["intermediates"]
    )
    outputs = _Outputs.of(logits, collections.get("intermediates", {}), is_teacher=True)
    return jax.lax.stop_gradient(outputs)

  def _weight(self, name: str, step: jax.Array) -> jax.Array | float:
    weight, steps = self.weights[name], self.basis_l1_decay_steps
    if name != "basis_l1" or not steps:
      return weight
    done = jnp.minimum(step.astype(jnp.float32) / steps, 1.0)
    return weight * 0.5 * (1 + jnp.cos(math.pi * done))


@flax.struct.dataclass
class _Outputs:
  """The outputs of a network for a batch.

  Attributes:
    classes: The class logits (B, K). A student's are compared with the labels; a teacher's are the
      targets of the student.
    to_teacher: The logits (B, K) of a student that are compared with the teacher's `classes`.
    tokens: The patch tokens (B, N - prefix, C), or LV-ViT's patch logits (B, N - prefix, K); None
      for a network without such tokens.
    sown: The collection "intermediates".
  """

  classes: jax.Array
  to_teacher: jax.Array
  tokens: jax.Array | None
  sown: Any

  @classmethod
  def of(cls, logits: jax.Array, sown: Mapping[str, Any], *, is_teacher: bool) -> "_Outputs":
    def first(name: str) -> jax.Array | None:
      return sown[name][0] if name in sown else None

    classes, patches = first("class_logits"), first("patch_logits")
    if classes is None or (is_teacher and patches is None):
      classes = logits  # a distilled teacher teaches by the mean of both heads
    distilled = first("distillation_logits")
    return cls(
      classes=classes,
      to_teacher=classes if distilled is None else distilled,
      tokens=first("patch_tokens") if patches is None else patches,
      sown=sown,
    )


def make_teacher(
  source: str,
  model: Mapping[str, Any] | None,
  input_spec: jax.ShapeDtypeStruct,
  *,
  needs_head: bool = True,
) -> Teacher:
  """Returns a teacher that sees the images of the run.

  Args:
    source: A workdir or a file of weights.
    model: The config of the teacher's network; it is `None` if nothing describes the network.
    input_spec: The shape and dtype of the images, for a batch of one example.
    needs_head: Whether the loss reads the teacher's logits.
  """
  if model is None:
    raise ConfigError(
      f"task.teacher={source!r} does not describe its network; name a workdir, or set"
      " task.teacher_model to the teacher's config.model."
    )
  return Teacher(source, model_from_config(model), input_spec, SEEN, needs_head)


def check_places(network: Any, field: str, compared_by: str) -> None:
  """Checks that the patch tokens of a network have places, unlike after merging.

  Args:
    network: The network.
    field: The field of the config that describes the network.
    compared_by: The field by which the tokens of two networks are compared.
  """
  reduction = getattr(network, "token_reduction", lambda: None)()  # a user's network may have none
  if reduction is not None and reduction.layers and not reduction.keeps_places:
    raise ConfigError(
      f"{compared_by} compares the patch tokens at equal places, which {field}.token_reduction"
      f" drops; use {field}.token_reduction='none' or 'zeroed', or leave {compared_by} out."
    )
