"""The contract of a token mixer, as one call on any module, a user's own included.

from vitx.testing import check_token_mixer
check_token_mixer(MyAttention, window=3)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vitx.attention.properties import Properties
from vitx.errors import ConfigError
from vitx.ops.dropout import examples_at
from vitx.ops.layout import TokenLayout

LAYOUTS = (TokenLayout((4, 4)), TokenLayout((4, 4), prefix=1))  # N aligned, and odd


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
  """Runs the contract of a token mixer (`vitx.attention`).

  Implementations agree in outputs and gradients, with and without a mask; bfloat16 is float32 but
  for rounding; jit equals no jit; two devices equal one; a mask, permutations and another length do
  what `properties` says; the gradient lowers for CUDA and TPU.

  Args:
    module: a token mixer; built with num_heads, dtype, layer, depth and `fields`.
    properties: what the mixer promises; none: the class's own `properties`, or nothing.
    layouts: of the tokens it is run on.
    width: C.
    num_heads: H.
    pairwise: in a hurry, each check on one layout only, with or without a mask.
    tolerance: of float32 outputs and gradients, relative to their largest entry.
    half_tolerance: the same for bfloat16 outputs.
    **fields: of the module.

  Raises:
    AssertionError: a promise is broken; the message says which.
  """
  if properties is None:
    bare = Properties(implementations=(), accepts_mask=False)
    properties = getattr(module, "properties", bare)
  fields = {"num_heads": num_heads, "layer": 1, "depth": 3, **fields}
  cases = [_Case(module, fields, layout, width, tolerance) for layout in layouts]
  for number, case in enumerate(cases):
    last = number == len(cases) - 1
    if not (pairwise and last and properties.accepts_mask):
      case.check_implementations(properties, masked=False)
    if properties.accepts_mask and (last or not pairwise):
      case.check_implementations(properties, masked=True)
      case.check_mask(properties)
    if last or not pairwise:
      case.check_half(properties, half_tolerance)
  if not properties.accepts_mask:
    _refused(lambda: case.forward(case.x, case.mask), "a mask must raise ConfigError")
  if properties.masking_is_deletion:
    case.check_deletion()
  if properties.permutation_equivariant:
    case.check_permutation()
  if properties.fixed_length:
    longer = dataclasses.replace(layouts[-1], grid=(*case.layout.grid[:-1], 99))
    other = jnp.zeros((1, longer.length, width))
    _refused(lambda: case.forward(other, layout=longer), "another length must raise ConfigError")
  cases[0].check_execution()


class _Case:
  """A mixer, its variables and its input on one layout."""

  def __init__(self, module, fields, layout, width, tolerance):
    self.build = lambda **more: module(**{**fields, **more})
    self.layout, self.tolerance = layout, tolerance
    keys = jax.random.split(jax.random.key(0), 4)
    self.x = jax.random.normal(keys[0], (4, layout.length, width))
    self.weight = jax.random.normal(keys[1], self.x.shape)
    mask = jax.random.bernoulli(keys[2], 0.6, self.x.shape[:2])
    self.mask = mask.at[0].set(True).at[1].set(False).at[:, -1].set(False)  # one example sees none
    init = jax.jit(lambda key: self.build().init(key, self.x, layout, train=False))
    variables = dict(init(keys[3]))
    self.params = _moved(variables.pop("params", {}), keys[3])
    self.state = variables
    self.compiled: dict[tuple[str, bool], Callable] = {}

  def apply(self, params, x, mask=None, layout=None, **more):
    variables = {"params": params, **self.state}
    return self.build(**more).apply(variables, x, layout or self.layout, mask=mask, train=False)

  def forward(self, x, mask=None, layout=None, **more):
    run = jax.jit(lambda params, x, mask: self.apply(params, x, mask, layout, **more))
    return run(self.params, x, mask)

  def gradients(self, name, x, mask):
    """Output, and gradients by parameters and input of a weighted sum over what is not masked."""

    def loss(params, x, mask):
      out = self.apply(params, x, mask, implementation=name)
      kept = self.weight if mask is None else jnp.where(mask[..., None], self.weight, 0)
      scale = jax.lax.stop_gradient(jnp.max(jnp.abs(out)))
      return jnp.sum(jnp.sin(out / scale) * kept), out

    key = name, mask is None
    if key not in self.compiled:
      self.compiled[key] = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, out), grads = self.compiled[key](self.params, x, mask)
    return out, grads

  def check_implementations(self, properties, masked):
    names = properties.implementations or ("auto",)
    mask = self.mask if masked else None
    results = [self.gradients(name, self.x, mask) for name in names]
    for name, result in zip(names, results, strict=True):
      what = f"{names[0]} and {name} differ {'with' if masked else 'without'} a mask: "
      self.close(result[0], results[0][0], what + "outputs")
      self.close(result[1], results[0][1], what + "gradients")

  def check_half(self, properties, tolerance):
    for name in properties.implementations or ("auto",):
      seen = self.mask if properties.accepts_mask else None
      full, _ = self.gradients(name, self.x, seen)
      half = self.forward(self.x, seen, implementation=name, dtype=jnp.bfloat16)
      assert half.dtype == jnp.bfloat16, f"dtype=bfloat16 returns {half.dtype} ({name})"
      self.close(half, full, f"bfloat16 is far from float32 ({name})", tolerance)
      if name == "masked":
        mixer = self.build(implementation=name)
        apply = lambda p, mixer=mixer: mixer.apply(  # noqa: E731
          {"params": p, **self.state}, self.x, self.layout, train=False, mutable=["intermediates"]
        )
        sown = jax.eval_shape(apply, self.params)[1]
        assert "attention" in sown.get("intermediates", {}), "masked sows no `attention`"

  def check_mask(self, properties):
    """Masked tokens change nothing, and nothing depends on them."""
    kept = self.mask[..., None]
    other = self.x + jnp.where(kept, 0, 3 * self.weight)
    for name in properties.implementations or ("auto",):
      out, (_, grad) = self.gradients(name, self.x, self.mask)
      moved, _ = self.gradients(name, other, self.mask)
      same = jnp.where(kept, out, 0), jnp.where(kept, moved, 0)
      np.testing.assert_array_equal(*same, f"masked tokens change outputs ({name})")
      assert np.all(np.isfinite(out)), f"an example without tokens is not finite ({name})"
      hidden = jnp.where(kept, 0, grad)
      np.testing.assert_array_equal(hidden, 0, f"masked tokens have a gradient ({name})")
      seen = np.any(np.asarray(grad) != 0, axis=2) | ~np.asarray(self.mask)
      assert np.all(seen), f"an unmasked token has no gradient ({name})"

  def check_deletion(self):
    mask = jnp.ones(self.mask.shape, bool).at[:, -5:].set(False)
    whole = self.forward(self.x, mask)[:, :-5]
    layout = TokenLayout((self.layout.length - 5,))
    rest = self.forward(self.x[:, :-5], layout=layout)
    self.close(whole, rest, "masking tokens is not deleting them")

  def check_permutation(self):
    order = jax.random.permutation(jax.random.key(5), self.layout.length)
    found, expected = self.forward(self.x[:, order]), self.forward(self.x)[:, order]
    self.close(found, expected, "permuted tokens do not give permuted outputs")

  def check_execution(self):
    """jit equals no jit, two devices equal one, and the gradient lowers for other platforms."""
    plain = self.apply(self.params, self.x)
    self.close(self.forward(self.x), plain, "jit changes the result")
    if jax.device_count() > 1:
      self.close(self._on_devices(), plain, "several devices differ from one")
    loss = jax.jit(jax.grad(lambda p, x: jnp.sum(self.apply(p, x)), argnums=(0, 1)))
    for platform in ("cuda", "tpu"):
      loss.trace(self.params, self.x).lower(lowering_platforms=(platform,))

  def _on_devices(self) -> np.ndarray:
    # Here, because only a few of the users of this file want the training room.
    from vitx.training import parallel

    rows = jax.local_device_count() * -(-len(self.x) // jax.local_device_count())
    x = np.resize(np.asarray(self.x), (rows, *self.x.shape[1:]))

    def share(params, x, index):
      with examples_at(index):
        return self.apply(params, x)

    arguments = (parallel.replicate(self.params), *parallel.split((x, np.arange(rows))))
    out = parallel.compile_for(arguments, share)(*arguments)
    return parallel.join(out)[: len(self.x)]

  def close(self, found, expected, message: str, tolerance: float | None = None):
    tolerance = self.tolerance if tolerance is None else tolerance
    trees = ([np.asarray(y, np.float32) for y in jax.tree.leaves(t)] for t in (found, expected))
    pairs = list(zip(*trees, strict=True))
    # A gradient that is zero in exact arithmetic (a key's bias) is measured by the others.
    largest = max(np.abs(b).max() for _, b in pairs)
    for a, b in pairs:
      size = max(np.abs(b).max(), 0.05 * largest)
      np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * size, err_msg=message)


def _moved(params, key):
  """Parameters that start at zero must matter too."""
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(key, max(len(leaves), 1))
  moved = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=False)]
  return jax.tree.unflatten(tree, moved)


def _refused(call, message: str) -> None:
  try:
    call()
  except ConfigError:
    return
  raise AssertionError(message)
