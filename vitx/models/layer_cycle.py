"""Runs repeating layers in a loop, so that a deep network compiles only one cycle of layers."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vitx.config.errors import ConfigError, listing
from vitx.models import names
from vitx.models.stacked import stack
from vitx.ops.layout import TokenLayout


def run_cycle(trunk: Any, x: jax.Array, layout: TokenLayout, train: bool) -> jax.Array:
  """Applies all blocks of a network to tokens, as a loop over cycles of layers.

  The loop needs stacked parameters (`vitx.models.stacked`). If the parameters have the names
  `block_0`, `block_1`, ... that `Trunk.run_blocks` gives them, this function stacks them first. The
  loop sows no intermediate values, and its dropout draws other values than `Trunk.run_blocks`.

  Args:
    trunk: A bound `Trunk` with the fields `depth`, `num_heads`, `mlp_dim` and `layer_cycle`, the
      number of layers after which the mixers repeat.
    x: The tokens, (B, N, C).
    layout: The arrangement of all tokens.
    train: Whether dropout is active.

  Returns:
    The tokens after the last block, (B, N, C).
  """
  cycle, depth = trunk.layer_cycle, trunk.depth
  sizes = {"depth": depth, "num_heads": trunk.num_heads, "mlp_dim": trunk.mlp_dim}
  blocks = [trunk.make_block(i, **sizes, name=None, parent=None) for i in range(depth)]
  _check_repeats(blocks, layout, cycle)
  blocks = blocks[:cycle]
  if trunk.is_initializing():
    _make_parameters(trunk, blocks, x, layout, depth)
  params = trunk.variables["params"]
  if names.CYCLES not in params:
    params = stack(params, cycle)
  stacked = [params[names.CYCLES][f"{names.BLOCK}_{i}"] for i in range(cycle)]
  key = trunk.make_rng("dropout") if train and trunk.has_rng("dropout") else None

  def apply(block: nn.Module, params: Any, x: jax.Array, layer: jax.Array) -> jax.Array:
    rngs = None if key is None else {"dropout": jax.random.fold_in(key, layer)}
    out: Any = block.apply({"params": params}, x, layout, train=train, rngs=rngs)
    return out

  def body(x: jax.Array, entry: Any) -> tuple[jax.Array, None]:
    number, params = entry
    for i, block in enumerate(blocks):
      # The block is bound beforehand, so that recomputation stores only the block's input.
      run = partial(apply, block)
      x = (jax.checkpoint(run) if trunk.remat else run)(params[i], x, number * cycle + i)
    return x, None

  return jax.lax.scan(body, x, (jnp.arange(depth // cycle), stacked))[0]


def _check_repeats(blocks: list[Any], layout: TokenLayout, cycle: int) -> None:
  """Refuses a cycle after which the attention patterns do not repeat."""
  mixers = [block.token_mixer(parent=None) for block in blocks]
  if not all(hasattr(mixer, "full_pattern") for mixer in mixers):
    return
  patterns = [mixer.full_pattern(layout) for mixer in mixers]
  for layer in range(cycle, len(patterns)):
    if patterns[layer] != patterns[layer % cycle]:
      raise ConfigError(
        f"model.layer_cycle={cycle} gives layer {layer} the attention pattern of layer"
        f" {layer % cycle}, but model.token_mixer has another one there; choose 0, or a number of"
        " layers after which the patterns repeat."
      )


def _make_parameters(
  trunk: Any, blocks: list[nn.Module], x: jax.Array, layout: TokenLayout, depth: int
) -> None:
  """Makes the parameters of all layers and stores them in `trunk` as `block_0`, `block_1`, ....

  Layers that are one cycle apart have equal structure, so one vmapped `init` makes them together.
  """
  base = trunk.make_rng("params")
  for first, block in enumerate(blocks):
    layers = range(first, depth, len(blocks))
    keys = jax.vmap(lambda layer: jax.random.fold_in(base, layer))(jnp.asarray(layers))
    init = lambda key, block=block: block.init(key, x, layout, train=False)  # noqa: E731
    collections = dict(jax.vmap(init)(keys))
    params = collections.pop("params")
    if collections:
      raise ConfigError(
        f"model.layer_cycle={len(blocks)}: a loop over layers keeps no state, but the blocks have"
        f" {listing(collections)}; set model.layer_cycle=0."
      )
    for number, layer in enumerate(layers):
      of_layer = jax.tree.map(lambda leaf, number=number: leaf[number], params)
      trunk.put_variable("params", f"{names.BLOCK}_{layer}", of_layer)
