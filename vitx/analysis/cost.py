"""The cost of a function before it runs: its FLOPs, and the memory that the compiler plans."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

# These count one operation per element of the result, transcendental functions included. So softmax
# counts its maximum, difference, exponential, sum and quotient; GELU counts its products and its
# erf or tanh.
ELEMENTWISE = frozenset(
  {
    *("abs", "add", "add_any", "ceil", "clamp", "div", "floor", "max", "min", "mul", "neg", "rem"),
    *("round", "sign", "sub"),
    *("cbrt", "integer_pow", "pow", "rsqrt", "sqrt", "square"),
    *("exp", "exp2", "expm1", "log", "log1p", "logistic"),
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh"),
    *("cos", "cosh", "sin", "sinh", "tan", "tanh"),
    *("digamma", "erf", "erf_inv", "erfc", "lgamma"),
  }
)
# These count one operation per element of the reduced array.
REDUCING = frozenset(
  {
    *("argmax", "argmin", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"),
    *("reduce_max", "reduce_min", "reduce_prod", "reduce_sum"),
  }
)
# These count one operation per element that they add, compare or multiply into the result.
SCATTERING = frozenset(f"scatter{how}" for how in ("-add", "-max", "-min", "-mul", "-sub"))
WINDOWED = frozenset(f"reduce_window_{how}" for how in ("max", "min", "sum"))
SINGLE = ELEMENTWISE | REDUCING | SCATTERING | WINDOWED


def flops(function: Callable, *args: Any, elementwise: bool = False) -> int:
  """Counts the floating-point operations of matrix products, convolutions and Fourier transforms.

  The function is traced, not run. A multiply-add counts as two operations. The Fourier transform of
  n complex numbers counts as 5 n log2 n operations, and of n real numbers as half of that. The body
  of a loop counts once per iteration, although the compiler's own estimate counts it only once.
  A `while` loop without a known trip count counts once. Of the branches of a conditional, only the
  most expensive counts.

  Args:
    function: The function; all functions that it calls are counted too.
    *args: The arguments of the function, arrays or `jax.ShapeDtypeStruct`.
    elementwise: Whether elementwise arithmetic on floating-point numbers counts too. Functions in
      `ELEMENTWISE`, sums as well as exponentials, then count one operation per element of their
      result, and reductions one per element that they combine. Comparisons, choices, conversions
      and moves never count, and neither does the work on integers and random bits.
  """
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  # Unused results, such as a gradient of the images, do not count: the compiler drops them too.
  alive, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  return _count(alive, elementwise)


def _count(jaxpr: Any, elementwise: bool) -> int:
  return sum(_equation(equation, elementwise) for equation in jaxpr.eqns)


def _equation(equation: Any, elementwise: bool) -> int:
  name, params = equation.primitive.name, equation.params
  if name == "dot_general":
    (contracted, _), _ = params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return 2 * equation.outvars[0].aval.size * math.prod(shape[axis] for axis in contracted)
  if name == "conv_general_dilated":
    kernel = equation.invars[1].aval.shape
    features = kernel[params["dimension_numbers"].rhs_spec[0]]
    spread = math.prod(params["lhs_dilation"])  # Products with the zeros that it inserts are free.
    return 2 * equation.outvars[0].aval.size * math.prod(kernel) // (features * spread)
  if name == "fft":
    return _fourier(equation.invars[0].aval, equation.outvars[0].aval, params["fft_lengths"])
  if name == "cond":
    return max(_count(branch.jaxpr, elementwise) for branch in params["branches"])
  if name in SINGLE:  # Some scatters contain a function, which must not count a second time.
    return _single(name, equation) if elementwise else 0
  times = params["length"] if name == "scan" else 1
  if name == "pallas_call":  # Its jaxpr is that of one program; a dynamic axis counts as one.
    times = math.prod(n for n in params["grid_mapping"].grid if isinstance(n, int))
  return times * sum(_count(inner, elementwise) for inner in _list_jaxprs(params))


def _single(name: str, equation: Any) -> int:
  """Counts the operations of an elementwise, reducing or scattering primitive; 0 on integers."""
  operand, result = equation.invars[0].aval, equation.outvars[0].aval
  if not jnp.issubdtype(operand.dtype, jnp.inexact):
    return 0
  if name in ELEMENTWISE:
    return result.size
  if name in REDUCING:
    return operand.size
  if name in SCATTERING:
    return equation.invars[2].aval.size
  return result.size * math.prod(equation.params["window_dimensions"])


def _fourier(operand: Any, result: Any, lengths: tuple[int, ...]) -> int:
  points = math.prod(lengths)
  batch = math.prod(operand.shape[: len(operand.shape) - len(lengths)])
  complex_to_complex = operand.dtype == result.dtype
  return round(batch * (5 if complex_to_complex else 2.5) * points * math.log2(points))


def _list_jaxprs(params: dict[str, Any]):
  for value in params.values():
    for item in value if isinstance(value, tuple | list) else (value,):
      if isinstance(item, jax.extend.core.ClosedJaxpr):
        yield item.jaxpr
      elif isinstance(item, jax.extend.core.Jaxpr):
        yield item


def tree_bytes(tree: Any) -> int:
  """Returns the number of bytes of all arrays, or `jax.ShapeDtypeStruct`, in a tree."""
  return sum(math.prod(x.shape) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))


def compiled_bytes(compiled: Any) -> int | None:
  """Returns the peak memory in bytes of a compiled function on one device, or `None` if unknown.

  The number is the sum of arguments, results and temporaries, minus shared buffers. A number from
  the CPU's compiler says nothing about a GPU.
  """
  analysis = compiled.memory_analysis()
  if analysis is None:
    return None
  return (
    analysis.argument_size_in_bytes
    + analysis.output_size_in_bytes
    + analysis.temp_size_in_bytes
    - analysis.alias_size_in_bytes
  )
