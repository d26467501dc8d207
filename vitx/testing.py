"""Tests a token mixer, such as one that you wrote, in one call:

    from vitx.testing import check_token_mixer
    check_token_mixer(MyAttention, window=3)

The docstring of `check_token_mixer` says what is checked.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import ScopeParamShapeError

from vitx.attention.base import Properties
from vitx.config.errors import ConfigError
from vitx.ops.dropout import examples_at
from vitx.ops.layout import TokenLayout

LAYOUTS = (TokenLayout((4, 4)), TokenLayout((4, 4), prefix=1))  # N = 16 and an odd N


# For programs that run once on a few tokens, almost all of the time is compilation.
UNOPTIMIZED = {"xla_backend_optimization_level": 0}


def check_token_mixer(
  module: type[nn.Module],
  *,
  properties: Properties | None = None,
  layouts: tuple[TokenLayout, ...] = LAYOUTS,
  width: int = 16,
  num_heads: int = 2,
  pairwise: bool = False,
  tolerance: float = 2e-5,
  half_tolerance: float = 0.06,
  **fields: Any,
) -> None:
  """Checks that a token mixer does everything that vitx expects of a token mixer.

  All implementations must agree in outputs and gradients, with and without a mask. bfloat16 must
  equal float32 up to rounding. Neither jit nor several devices may change outputs. A mask, permuted
  tokens, another number of tokens and `causal` must have the effects that `properties` states. It
  must be possible to lower the gradient for CUDA and TPU (the first step of compilation).

  Args:
    module: The class of the token mixer, which is built with num_heads, dtype, layer, depth and
      `fields`.
    properties: The properties that the mixer promises; `None` means the attribute `properties` of
      the class, if there is one.
    layouts: The layouts of the tokens on which the mixer is checked.
    width: The width C of the tokens.
    num_heads: The number of heads H.
    pairwise: Whether to check less, in order to save time: only the last layout, without XLA's
      optimizations, only jitted and on one device. If the mixer accepts a mask, gradients are
      checked and lowered only with a mask, and bfloat16 is checked only without.
    tolerance: The tolerance of float32 outputs and gradients, relative to their largest entry.
    half_tolerance: The tolerance of bfloat16 outputs, relative to their largest entry.
    **fields: The fields with which `module` is built.

  Raises:
    AssertionError: A check failed; the message says which.
  """
  if properties is None:
    bare = Properties(implementations=(), accepts_mask=False)
    properties = getattr(module, "properties", bare)
  fields = {"num_heads": num_heads, "layer": 1, "depth": 3, **fields}
  for layout in layouts[-1:] if pairwise else layouts:
    case = _Case(module, fields, layout, width, tolerance, properties, pairwise)
    case.check_results(half_tolerance)
    if properties.accepts_mask:
      case.check_mask()
  case.check_sown()
  case.check_lowering()
  if not properties.accepts_mask:
    with _refusal("a mask"):
      case.apply(case.params, case.x, case.mask)
  if properties.accepts_causal:
    case.check_causality()
  elif hasattr(module, "causal"):
    with _refusal("causal=True"):
      case.build(causal=True)
  if properties.masking_is_deletion:
    case.check_deletion()
  if properties.permutation_equivariant:
    case.check_permutation()
  if properties.fixed_length:
    longer = dataclasses.replace(layouts[-1], grid=(*case.layout.grid[:-1], 99))
    other = np.zeros((1, longer.length, width), np.float32)
    with _refusal("another length"):
      case.apply(case.params, other, layout=longer)
  if not pairwise:
    case.check_execution()


class _Case:
  """A mixer with its variables and inputs on one layout of tokens, and the checks of the mixer."""

  def __init__(self, module, fields, layout, width, tolerance, properties, fast):
    names = properties.implementations or ("auto",)
    fields = {"implementation": names[-1], **fields}  # "auto" may choose "masked" for few tokens
    # A module with one implementation need not have the field `implementation`.
    known = lambda key: properties.implementations or key != "implementation"  # noqa: E731
    self.build = lambda **more: module(
      **{key: value for key, value in {**fields, **more}.items() if known(key)}
    )
    self.layout, self.tolerance, self.fast = layout, tolerance, fast
    self.properties, self.names = properties, names
    self.masks = (False, True) if properties.accepts_mask else (False,)
    self.jit = partial(jax.jit, compiler_options=UNOPTIMIZED if fast else None)
    # The gradients are jitted so that other programs and other platforms reuse their traces.
    self.default = fields["implementation"]
    self.gradients = {n: jax.jit(partial(self._gradients, n)) for n in {*names, self.default}}
    random = np.random.default_rng(0)
    self.x, self.weight = random.normal(size=(2, 4, layout.length, width)).astype(np.float32)
    self.mask = random.random(self.x.shape[:2]) < 0.6
    self.mask[0], self.mask[1], self.mask[:, -1] = True, False, False  # example 1 is all masked
    init = self.jit(lambda key: self.build().init(key, self.x, layout, train=False))
    self.state = dict(init(jax.random.key(0)))
    # The noise makes parameters that start at zero affect the outputs.
    self.params = jax.tree.map(
      lambda x: x + (0.1 * random.normal(size=x.shape)).astype(x.dtype),
      self.state.pop("params", {}),
    )
    self.compiled = self.jit(self.everything)
    self.results = self.run(self.x, self.mask)

  def apply(self, params, x, mask=None, layout=None, **more):
    variables = {"params": params, **self.state}
    mixer = self.build(**more)
    out = mixer.apply(variables, x, layout or self.layout, mask=mask, train=False)
    assert out.shape == x.shape, f"the mixer returns {out.shape} for tokens {x.shape}"
    return out

  def run(self, x, mask):
    return jax.device_get(self.compiled(self.params, x, mask))

  def everything(self, params, x, mask):
    """Computes float32 outputs, bfloat16 outputs and gradients of each implementation.

    All are computed in one program, which compiles faster than one program for each. If `fast` is
    set, gradients are computed only with a mask if the mixer accepts one, and bfloat16 outputs only
    without a mask.

    Returns:
      Three dicts, of float32 outputs, bfloat16 outputs and gradients. The keys are (name of the
      implementation, whether a mask is given).
    """
    results: tuple[dict, dict, dict] = ({}, {}, {})
    full, half, slopes = results
    for name, masked in itertools.product(self.names, self.masks):
      key, seen = (name, masked), mask if masked else None
      if masked == self.masks[-1] or not self.fast:
        full[key], slopes[key] = self.gradients[name](params, x, seen)
      else:
        full[key] = self.apply(params, x, seen, implementation=name)
      if not (masked and self.fast):
        half[key] = self.apply(params, x, seen, implementation=name, dtype=jnp.bfloat16)
    return results

  def _gradients(self, name, params, x, mask):
    """Returns the output, and the gradients of a weighted sum over the output's unmasked tokens.

    The gradients are with respect to the parameters and to x.
    """

    def loss(params, x):
      out = self.apply(params, x, mask, implementation=name)
      weight = self.weight if mask is None else jnp.where(mask[..., None], self.weight, 0)
      scale = jax.lax.stop_gradient(jnp.max(jnp.abs(out)))
      return jnp.sum(jnp.sin(out / scale) * weight), out

    grads, out = jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)
    return out, grads

  def check_results(self, half_tolerance):
    full, half, slopes = self.results
    for (name, masked), out in full.items():
      key, first = (name, masked), (self.names[0], masked)
      message = f"{first[0]} and {name} differ {'with' if masked else 'without'} a mask: "
      self.close(out, full[first], message + "outputs")
      if key in half:
        kind = half[key].dtype
        assert kind == jnp.bfloat16, f"dtype=bfloat16 returns {kind} ({name})"
        self.close(half[key], out, f"bfloat16 is far from float32 ({name})", half_tolerance)
      if key in slopes:
        self.close(slopes[key], slopes[first], message + "gradients")

  def check_mask(self):
    """Checks that masked tokens affect no output and have no gradient, unlike unmasked tokens."""
    unmasked = self.mask[..., None]
    other = self.x + np.where(unmasked, 0, 3 * self.weight)
    full, _, slopes = self.results
    others, _, _ = self.run(other, self.mask)
    for name in self.names:
      out, moved, (_, grad) = full[name, True], others[name, True], slopes[name, True]
      pair = np.where(unmasked, out, 0), np.where(unmasked, moved, 0)
      np.testing.assert_array_equal(*pair, f"masked tokens change outputs ({name})")
      assert np.all(np.isfinite(out)), f"an example without tokens is not finite ({name})"
      hidden = np.where(unmasked, 0, grad)
      np.testing.assert_array_equal(hidden, 0, f"masked tokens have a gradient ({name})")
      seen = np.any(grad != 0, axis=2) | ~self.mask
      assert np.all(seen), f"an unmasked token has no gradient ({name})"

  def check_sown(self):
    if "masked" in self.names:
      mixer = self.build(implementation="masked")
      apply = partial(mixer.apply, train=False, mutable=["intermediates"])
      variables = {"params": self.params, **self.state}
      sown = jax.eval_shape(lambda: apply(variables, self.x, self.layout))[1]
      assert "attention" in sown.get("intermediates", {}), "'masked' sows no `attention`"

  def check_lowering(self):
    masked = self.masks[-1] if self.fast else False
    traced = self.gradients[self.default].trace(self.params, self.x, self.mask if masked else None)
    traced.lower(lowering_platforms=("cuda", "tpu"))

  def check_causality(self):
    """Checks that with `causal=True` no output depends on a later token."""
    half = self.layout.length // 2
    changed = self.x.copy()
    changed[:, half:] = 3 * self.weight[:, half:]
    for name in self.names:
      causal = partial(self.apply, causal=True, implementation=name)
      apply = jax.jit(causal, compiler_options=UNOPTIMIZED)
      a, b = (np.asarray(apply(self.params, x)) for x in (self.x, changed))
      message = f"later tokens change the outputs of earlier ones ({name})"
      size = 1e-6 * max(1.0, float(np.abs(a[:, :half]).max()))
      np.testing.assert_allclose(a[:, :half], b[:, :half], rtol=0, atol=size, err_msg=message)
      assert not np.allclose(a[:, half:], b[:, half:]), f"causal attention attends nothing ({name})"

  def check_deletion(self):
    mask = np.ones(self.mask.shape, bool)
    mask[:, -5:] = False
    whole = self.run(self.x, mask)[0][self.names[-1], True]
    layout = TokenLayout((self.layout.length - 5,))
    rest = self.jit(partial(self.apply, layout=layout))(self.params, self.x[:, :-5])
    self.close(whole[:, :-5], rest, "masking tokens is not deleting them")

  def check_permutation(self):
    order = np.random.default_rng(5).permutation(self.layout.length)
    permuted, plain = self.run(self.x[:, order], self.mask)[0], self.results[0]
    key = self.names[-1], False
    self.close(permuted[key], plain[key][:, order], "permuted tokens do not give permuted outputs")

  def check_execution(self):
    """Checks that neither jit nor several devices change the output."""
    plain = self.apply(self.params, self.x)
    self.close(self.jit(self.apply)(self.params, self.x), plain, "jit changes the result")
    if jax.device_count() > 1:
      self.close(self._on_devices(), plain, "several devices differ from one")

  def _on_devices(self) -> np.ndarray:
    # The import is here because few users of this file need `vitx.training`.
    from vitx.runtime import parallel

    rows = jax.local_device_count() * -(-len(self.x) // jax.local_device_count())
    x = np.resize(self.x, (rows, *self.x.shape[1:]))

    def share(params, x, index):
      with examples_at(index):
        return self.apply(params, x)

    arguments = (parallel.replicate(self.params), *parallel.split((x, np.arange(rows))))
    out = parallel.compile_for(arguments, share)(*arguments)
    return parallel.join(out)[: len(self.x)]

  def close(self, values, expected, message: str, tolerance: float | None = None):
    tolerance = self.tolerance if tolerance is None else tolerance
    trees = ([np.asarray(y, np.float32) for y in jax.tree.leaves(t)] for t in (values, expected))
    pairs = list(zip(*trees, strict=True))
    # A gradient that is zero in theory (a key's bias) is compared at the scale of the largest one.
    largest = max(np.abs(b).max() for _, b in pairs)
    for a, b in pairs:
      size = max(np.abs(b).max(), 0.05 * largest)
      np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * size, err_msg=message)


@contextlib.contextmanager
def _refusal(subject: str) -> Iterator[None]:
  """Checks that the `with` block raises ConfigError, or Flax's error for a shape."""
  try:
    yield
  except (ConfigError, ScopeParamShapeError):
    return
  raise AssertionError(f"{subject} must raise ConfigError")
