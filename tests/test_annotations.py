"""Ops and mixers have annotations of types and shapes, and calls agree with them."""

import functools
import importlib
import inspect
import pkgutil
import types
import typing

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from tests.attention.test_contract import CASES
from vitx import ops
from vitx.attention import MIXERS

B, N, H, D, C = 2, 16, 2, 4, 8
LAYOUT = ops.TokenLayout((4, 4))
KERNELS = "triton_kernels"  # Triton compiles its functions, and is not installed everywhere
MODULES = [
  importlib.import_module(module.name)
  for module in pkgutil.walk_packages(ops.__path__, "vitx.ops.")
  if not module.name.endswith(KERNELS)
]
# A mixer that is first imported while its ops are replaced would keep the replacements.
assert all(MIXERS.values())


def allows(hint: typing.Any, value: typing.Any) -> bool:
  """Returns whether an array has the dtype and shape of its jaxtyping annotation."""
  kind, axes = hint.__metadata__
  arrays = typing.get_args(hint.__origin__) or (hint.__origin__,)
  return any(isinstance(value, getattr(jaxtyping, kind)[array, axes]) for array in arrays)


def verify(value: typing.Any, hint: typing.Any, name: str) -> None:
  """Checks the arrays of a value, whose axes bind letters in the enclosing jaxtyping context.

  Raises:
    TypeError: An array is of another kind or shape.
  """
  kind, inner = typing.get_origin(hint), typing.get_args(hint)
  if kind is typing.Annotated:
    if not allows(hint, value):
      raise TypeError(f"{name} is {jnp.asarray(value).dtype}{value.shape}, not {hint.__metadata__}")
  elif kind in (types.UnionType, typing.Union):
    for part in (part for part in inner if typing.get_origin(part) and value is not None):
      verify(value, part, name)
  elif kind is tuple and Ellipsis not in inner:
    for i, (item, part) in enumerate(zip(value, inner, strict=True)):
      verify(item, part, f"{name}[{i}]")


@functools.cache
def checked(function: typing.Callable) -> typing.Callable:
  """Returns a function that refuses arrays which the annotations of another do not allow."""
  hints = typing.get_type_hints(function, include_extras=True)

  @functools.wraps(function)
  def call(*args, **kwargs):
    with jaxtyping.jaxtyped("context"):
      bound = inspect.signature(function).bind(*args, **kwargs)
      for name, value in bound.arguments.items():
        if name != "self":
          verify(value, hints[name], f"{function.__name__}: {name}")
      out = function(*args, **kwargs)
      verify(out, hints["return"], f"{function.__name__}: the result")
    return out

  return call


@pytest.fixture(autouse=True)
def every_op_checked(monkeypatch):
  """Checks each call of an annotated public function of `vitx.ops`, wherever it is imported."""
  for module in [ops, *MODULES]:
    for name, value in list(vars(module).items()):
      if inspect.isfunction(value) and value.__module__.startswith("vitx.ops.") and name[0] != "_":
        monkeypatch.setattr(module, name, checked(value))


def shape(*sizes, dtype=np.float32):
  return jax.ShapeDtypeStruct(sizes, dtype)


HEADS, HIDDEN, IMAGE = shape(B, N, H, D), shape(B, N, dtype=bool), shape(B, N, C)
REGIONS = shape(B, 1, 4, 2, dtype=np.int32), shape(B, 1, 4, 2, dtype=bool)
PREDICTED = shape(B, H, N, 3), shape(N, 3)
# Every op: its arrays, and its other arguments.
OPS = {
  "attention": ((HEADS,) * 3, {"pattern": ops.patterns.Window(3)}),
  "attention_with_weights": ((HEADS,) * 3, {}),
  "bilevel_attention": ((*(HEADS,) * 3, *REGIONS), {"layout": LAYOUT, "regions": 2}),
  "fourier_mixing": ((IMAGE,), {}),
  "linear_attention": ((HEADS,) * 3, {}),
  "linformer_attention": ((*(HEADS,) * 3, shape(N, 4), shape(N, 4)), {}),
  "local_attention": ((HEADS,) * 3, {"window": 4}),
  "nystrom_attention": ((HEADS,) * 3, {"landmarks": 4}),
  "predicted_attention": ((*(HEADS,) * 3, *PREDICTED), {"budget": 4}),
  "predicted_block_attention": ((*(HEADS,) * 3, *PREDICTED), {"budget": 2, "block": 4}),
  "shaped_attention": ((*(HEADS,) * 3, *(shape(H),) * 3), {}),
}


def run(name: str, arrays, **options):
  return jax.eval_shape(lambda *arrays: getattr(ops, name)(*arrays, **options), *arrays)


def test_every_op_with_arrays_is_called_here():
  annotated = {name for name in ops.__all__ if inspect.isfunction(getattr(ops, name))}
  assert annotated - OPS.keys() == {"dense_mask", "plan", "recording_implementations"}
  assert ops.dense_mask(ops.patterns.Window(3), LAYOUT, H).shape == (1, N, N)


@pytest.mark.parametrize("implementation", ["masked", "kernelized"])
@pytest.mark.parametrize("name", OPS)
def test_ops_keep_their_annotations_and_refuse_other_shapes(name, implementation):
  arrays, options = OPS[name]
  options = {**options, "implementation": implementation}
  run(name, arrays, **options)
  for i, array in enumerate(arrays):
    flat = shape(*array.shape[1:], dtype=array.dtype)
    with pytest.raises(TypeError, match=rf"^{name}: \w+ is .*, not \("):
      run(name, (*arrays[:i], flat, *arrays[i + 1 :]), **options)


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_keep_their_annotations_and_refuse_other_shapes(name, monkeypatch):
  kind = MIXERS[name]
  monkeypatch.setattr(kind, "__call__", checked(kind.__call__))
  fields = CASES.get(name, [{}])[0]
  mixer = kind(num_heads=H, **{k: v for k, v in fields.items() if k != "half_tolerance"})

  def call(x, mask=None):
    make = functools.partial(mixer.init_with_output, layout=LAYOUT, train=False)
    return jax.eval_shape(lambda x, mask: make(jax.random.key(0), x, mask=mask)[0], x, mask)

  assert call(IMAGE).shape == IMAGE.shape
  with pytest.raises(TypeError, match=r"__call__: x is float32.*'B N C'"):
    call(shape(N, C))
  with pytest.raises(TypeError, match=r"__call__: mask is bool.*'B N'"):
    call(IMAGE, shape(B, N - 1, dtype=bool))
