"""The terms of a distillation's loss, as functions of the outputs of two networks."""

from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from vitx.config.errors import ConfigError
from vitx.models.sown import collect

BASIS = "basis"  # the parameter name of Sparsifiner's basis over the tokens


def divergence(teacher: jax.Array, student: jax.Array, temperature: float) -> jax.Array:
  """Returns the mean over the batch of T² KL(p, q), for logits (B, K) and the temperature T.

  p is the softmax of teacher / T, and q is the softmax of student / T.
  """
  ours = jax.nn.log_softmax(student / temperature)
  theirs = jax.nn.log_softmax(teacher / temperature)
  divergence = jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
  return temperature**2 * jnp.mean(divergence)


def token_error(student: jax.Array | None, teacher: jax.Array | None) -> jax.Array:
  """Returns the mean squared difference of all elements of patch tokens."""
  if student is None or teacher is None or student.shape != teacher.shape:
    theirs, ours = (None if x is None else list(x.shape[1:]) for x in (teacher, student))
    raise ConfigError(
      f"task.token_weight: the teacher's patch tokens are {theirs}, the network's {ours}; choose a"
      " teacher of the same size, or task.token_weight=0."
    )
  return jnp.mean(jnp.square(student.astype(jnp.float32) - teacher.astype(jnp.float32)))


def attention_errors(student: Any, teacher: Any) -> jax.Array:
  """Returns the squared error of the attention that a student predicts, for each example, (B,).

  The error is summed over heads, queries and keys, and averaged over layers.

  Args:
    student: The student's collection "intermediates", with the predicted attention.
    teacher: The teacher's collection "intermediates", with its attention matrices.
  """
  predicted, real = collect(student, "approximation"), collect(teacher, "attention")
  errors = []
  for module, approximation in predicted.items():
    matrix = real[module][:, :, -approximation.shape[2] :]
    if matrix.shape != approximation.shape:
      raise ConfigError(
        f"task.attention_weight: {module} predicts attention {list(approximation.shape[1:])}, but"
        f" the teacher's is {list(matrix.shape[1:])}; choose a teacher of the same size."
      )
    error = approximation - matrix.astype(jnp.float32)
    errors.append(jnp.sum(jnp.square(error), axis=(1, 2, 3)))
  return jnp.mean(jnp.stack(errors), axis=0)


def zero_share(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Returns the share of zeros in `x`; if `x` has a batch axis, only in the unmasked examples."""
  zero = (x == 0).astype(jnp.float32)
  if x.ndim == 2:  # a basis has no axis of examples
    return jnp.mean(zero)
  share = jnp.mean(zero.reshape(x.shape[0], -1), axis=1)
  count = jnp.sum(mask, dtype=jnp.float32)
  return jnp.sum(jnp.where(mask, share, 0.0)) / jnp.maximum(count, 1.0)


def basis_norm(params: Any) -> jax.Array:
  """Returns the sum of the absolute values in the bases of all Sparsifiner mixers."""
  flat = flatten_dict(params, sep="/")
  bases = [leaf for path, leaf in flat.items() if path.endswith(f"/{BASIS}")]
  if not bases:
    raise ConfigError(
      "task.basis_l1: no token mixer has a basis; use 'sparsifiner', or set it to 0."
    )
  return sum((jnp.sum(jnp.abs(basis)) for basis in bases), jnp.float32(0))
