"""Compares the attention kernels on a GPU with the masked path, for `vitx benchmark gpu`."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vitx.analysis import markdown
from vitx.config.errors import UserError
from vitx.ops import TokenLayout, attention
from vitx.ops.implementation import choosing_by, current_rule
from vitx.ops.patterns import PATTERNS, Axial, Causal, GivenBlocks, Global, Pattern, RandomBlocks
from vitx.ops.rule import Rule
from vitx.ops.sparse import triton_attention

DTYPES = ("bfloat16", "float32")
Say = Callable[[str], None]
# The layout of the checks: a prefix token and a grid, together 301 tokens, which no tile divides.
LAYOUT = TokenLayout((15, 20), prefix=1)
# In half precision cuDNN computes these; the order of its sums, and so the last bits, may change.
DENSE = ("full", "causal")
CHECKED = (
  *(*DENSE, "attention_free", "window_causal", "window_and_class"),
  *("dilated_window_per_head", "longformer", "bigbird_etc", "bbvit_random_global"),
  *("strided_merged_code", "strided_per_head", "fixed_distinct_summaries", "axial_per_head"),
  *("neighborhood", "shifted_window_plain", "erdos_renyi_symmetric", "watts_strogatz"),
)
CHECK_SIZES = (2, 4, 64)  # B, H and D; in the examples of patterns four heads differ
# The allowed error is TOLERANCE times the values, plus FACTOR times the error of the masked path.
TOLERANCE, FACTOR = 1e-5, 3
CUSTOM_CALL = "triton_kernel_call"  # the name of a kernel in a lowered program


class Check(NamedTuple):
  """The comparison of one kernelized call of attention with a masked one, in outputs and gradients.

  Attributes:
    name: The name of the call.
    dtype: The dtype of q, k and v.
    share: The largest error divided by the allowed error.
    repeats: Whether a second run gives equal bits.
    has_kernel: Whether the kernelized program contains the GPU kernels of attention.
  """

  name: str
  dtype: str
  share: float
  repeats: bool
  has_kernel: bool

  @property
  def passed(self) -> bool:
    """Returns whether no error exceeds the allowed one.

    A second run must also give equal bits, and the program must contain the kernels if the device
    can run them. These two demands do not apply to the calls in `DENSE`.
    """
    ran = self.has_kernel >= (triton_attention.find_capability() is not None)
    return self.share <= 1 and (self.name in DENSE or (self.repeats and ran))


def list_calls() -> dict[str, Callable]:
  """Returns the calls of `attention` that are checked, by name.

  Each call is a function (implementation, q, k, v) -> output.
  """

  def along(pattern: Pattern, **options: Any) -> Callable:
    return lambda implementation, q, k, v: attention(
      q, k, v, pattern, LAYOUT, implementation=implementation, **options
    )

  def drawn(implementation, q, k, v):
    blocks = RandomBlocks(2, 16, heads=CHECK_SIZES[1]).indices(LAYOUT)
    is_empty = np.arange(blocks.shape[1])[:, None] % 5 == 2
    blocks = np.where(is_empty, -1, blocks)
    return along(GivenBlocks(jnp.asarray(blocks), 16))(implementation, q, k, v)

  def narrow(implementation, q, k, v):
    wide, slim = 5 * q.shape[-1] // 8, 3 * v.shape[-1] // 8
    out = along(PATTERNS["neighborhood"])(
      implementation, q[..., :wide], k[..., :wide], v[..., :slim]
    )
    return jnp.pad(out, [(0, 0)] * 3 + [(0, v.shape[-1] - slim)])

  seen = np.random.default_rng(0).random((CHECK_SIZES[0], LAYOUT.length)) < 0.7
  masked = along(PATTERNS["window_and_class"], key_mask=jnp.asarray(seen))
  calls = {name: along(PATTERNS[name]) for name in CHECKED}
  return calls | {
    "axial, causal": along((Axial(0) | Global(prefix=True)) & Causal()),
    "window_and_class with a key mask": masked,
    "neighborhood with other widths of heads": narrow,
    "blocks drawn at run time": drawn,
  }


def check(
  say: Say, calls: Mapping[str, Callable] | None = None, dtypes: Sequence[str] = DTYPES
) -> str:
  """Checks calls of `attention` by `check_call` in several dtypes, and returns a table.

  Args:
    say: A function called with messages on the progress.
    calls: The calls by name; `None` means those of `list_calls`.
    dtypes: The dtypes of q, k and v.

  Raises:
    UserError: A check has not passed. The message has the table.
  """
  rows, failed = [("call", "dtype", "error / allowed", "bits repeat", "kernels", "")], []
  for (name, call), dtype in itertools.product((calls or list_calls()).items(), dtypes):
    result = check_call(name, call, dtype)
    failed += [] if result.passed else [f"{name} in {dtype}"]
    say(f"{name}, {dtype}: {'passed' if result.passed else 'FAILED'}")
    flags = str(result.repeats), str(result.has_kernel), "" if result.passed else "X"
    rows.append((name, dtype, f"{result.share:.2g}", *flags))
  table = markdown.table(rows)
  if failed:
    raise UserError(
      f"{table}\n{len(failed)} checks of attention failed: {', '.join(failed)}. Report them;"
      " until then use implementation='masked', or remove the package jax-triton."
    )
  return table


def check_call(name: str, call: Callable, dtype: str) -> Check:
  """Compares the kernelized path of one call of attention with the masked path.

  The masked path in float32, with exact matrix products, gives the exact results. The root mean
  square error of the output and of each gradient may be at most `FACTOR` times the error of the
  masked path in `dtype` with default matrix products, plus `TOLERANCE` times the larger of 1 and
  the root mean square of the exact result.

  Args:
    name: The name of the call.
    call: A function (implementation, q, k, v) -> output.
    dtype: The dtype of q, k and v.
  """
  batch, heads, width = CHECK_SIZES
  shape = (4, batch, LAYOUT.length, heads, width)
  arrays = jax.random.normal(jax.random.key(0), shape).astype(dtype)  # q, k, v, the cotangent
  with jax.default_matmul_precision("highest"):
    exact = _differentiate(partial(call, "masked"))(*arrays.astype(jnp.float32))
  with jax.default_matmul_precision("default"), choosing_by(_drop_xla(current_rule())):
    masked = _differentiate(partial(call, "masked"))(*arrays)
    lowered = _differentiate(partial(call, "kernelized")).lower(*arrays)
    program = lowered.compile()
    kernelized, repeated = program(*arrays), program(*arrays)
  exact, masked, kernelized, repeated = jax.device_get((exact, masked, kernelized, repeated))
  shares = [
    _norm(result - target) / (FACTOR * _norm(other - target) + TOLERANCE * max(1.0, _norm(target)))
    for result, other, target in zip(kernelized, masked, exact, strict=True)
  ]
  repeats = all(map(np.array_equal, kernelized, repeated))
  has_kernel = CUSTOM_CALL in lowered.as_text()
  return Check(name, dtype, float(np.max(shares)), repeats, has_kernel)  # NaN stays NaN.


def _drop_xla(rule: Rule) -> Rule:
  """Returns a copy of a rule without the entries that leave attention to XLA."""
  measured = {
    dtype: {width: tiles for width, tiles in widths.items() if tiles is not None}
    for dtype, widths in rule.tiles.items()
  }
  return dataclasses.replace(rule, tiles=measured)


def _differentiate(attend: Callable) -> Any:
  """Returns a jitted function (q, k, v, cotangent) -> [out, dq, dk, dv] with float32 results."""

  def run(q, k, v, d_out):
    out, pull = jax.vjp(attend, q, k, v)
    return [x.astype(jnp.float32) for x in (out, *pull(d_out))]

  return jax.jit(run)


def _norm(x: np.ndarray) -> float:
  """Returns the root mean square of an array's values."""
  return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))
