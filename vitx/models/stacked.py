"""Stacks the parameters of a network whose kinds of layers repeat, into one array for all cycles.

A deep network has thousands of parameters, and a training step that handles each one separately
takes minutes to compile. If the kinds of layers (not their weights) repeat after `cycle` layers,
its parameter tree has two forms. The form by name has `block_0`, ..., `block_{L-1}`; checkpoints
and all user interfaces have this form. The stacked form has instead a dict `cycles` of `block_0`,
..., `block_{cycle-1}`, whose arrays have a leading axis of length L / cycle; entry c of `block_i`
is layer c * cycle + i. A model that runs its blocks by `vitx.models.layer_cycle` takes either form.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vitx.models import names


def stack(tree: Any, cycle: int) -> Any:
  """Returns the stacked form of a tree, such as a training state.

  Args:
    tree: A tree in the form by name. Every dict of blocks in this tree is stacked, including the
      moments of an optimizer. Parts that are already stacked stay unchanged; NumPy arrays give
      NumPy arrays.
    cycle: The number of layers after which the blocks repeat; 0 leaves the tree unchanged.
  """
  if not cycle:
    return tree

  def convert(part: Any) -> Any:
    if _is_stacked(part) or not _has_blocks(part):
      return part
    depth = names.count_blocks(part)
    blocks = {
      _block(i): jax.tree.map(_stack_arrays, *(part[_block(n)] for n in range(i, depth, cycle)))
      for i in range(cycle)
    }
    return _without_blocks(part) | {names.CYCLES: blocks}

  return jax.tree.map(convert, tree, is_leaf=lambda x: _has_blocks(x) or _is_stacked(x))


def unstack(tree: Any) -> Any:
  """Returns the form by name of a stacked tree; parts that are not stacked stay unchanged."""

  def convert(part: Any) -> Any:
    if not _is_stacked(part):
      return part
    cycles = part[names.CYCLES]
    layers = {
      _block(c * len(cycles) + i): jax.tree.map(lambda x, c=c: x[c], cycles[_block(i)])
      for i in range(len(cycles))
      for c in range(len(jax.tree.leaves(cycles[_block(i)])[0]))
    }
    return {name: value for name, value in part.items() if name != names.CYCLES} | layers

  return jax.tree.map(convert, tree, is_leaf=_is_stacked)


def first_cycle(params: Any, cycle: int) -> Any:
  """Returns a tree with the structure of the stacked form, but with the first cycle's arrays.

  So the arrays have no leading axis for the cycles. Code that needs the names and axes of single
  parameters, such as an optimizer's masks, uses this tree.

  Args:
    params: The parameters in the form by name.
    cycle: The number of layers after which the blocks repeat; 0 returns `params` unchanged.
  """
  if not cycle:
    return params
  return _without_blocks(params) | {
    names.CYCLES: {_block(i): params[_block(i)] for i in range(cycle)}
  }


def _block(number: int) -> str:
  return f"{names.BLOCK}_{number}"


def _has_blocks(part: Any) -> bool:
  return isinstance(part, dict) and _block(0) in part


def _is_stacked(part: Any) -> bool:
  return isinstance(part, dict) and names.CYCLES in part


def _without_blocks(part: dict[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in part.items() if not names.count_blocks([name])}


def _stack_arrays(*arrays: Any) -> Any:
  on_host = all(isinstance(x, np.ndarray | np.generic) for x in arrays)
  return np.stack(arrays) if on_host else jnp.stack(arrays)
