"""A new run's first weights: those of another run, or of a published file."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vitx.checkpoints import tree
from vitx.checkpoints.directory import Directory
from vitx.checkpoints.load import load, read_task
from vitx.checkpoints.workdir import find_run, locate_checkpoints, read_config
from vitx.config import registry
from vitx.config.errors import ConfigError
from vitx.interop import foreign
from vitx.interop.transfer import FindPlaces, Report, check_fit, transfer
from vitx.models import names
from vitx.ops.layout import TokenLayout

STATISTICS = ("batch_stats",)  # state that belongs to the weights


def initial_variables(
  source: str,
  params: Any,
  model_state: Mapping[str, Any],
  layout: TokenLayout | None,
  *,
  allowed: Iterable[str] = (),
  mixer: str = "",
  new_head: bool = True,
  find_places: FindPlaces | None = None,
) -> tuple[Any, dict[str, Any]]:
  """Returns a new run's parameters and state with weights of another run, or of a published file.

  A head for other classes starts anew, a position table for another grid is resized. What became of
  each parameter is printed. Code that the other run's config names is imported inside
  `registry.trusting(True)` alone.

  Args:
    source: the workdir of the other run, whose best checkpoint is taken, a file of weights, or
      `hf:NAME` for one on the Hugging Face Hub.
    params: freshly initialized.
    model_state: the other collections, of which batch statistics are taken over, and what else a
      file has of them.
    layout: of the new run's tokens that positions are added to; None where there are none.
    allowed: regular expressions of names, ours or a file's own, that need not fit the file.
    mixer: name of the network's token mixer, for errors.
    new_head: whether a head of other classes than a file's may start anew.
    find_places: finds the run's classes among the source's; None where there are none.

  Raises:
    ConfigError: the source cannot be read, or names of a file do not fit and are not allowed to.
    MissingExtraError: a package is missing that reads the file.
  """
  if foreign.is_file(source):
    filled, report = _transfer_file(source, params, model_state, layout, find_places)
    print(f"init_from {source}:\n{report}", flush=True)
    check_fit(report, source, allowed, mixer, new_head=new_head)
  else:
    target = {"params": params}
    target |= {name: model_state[name] for name in STATISTICS if name in model_state}
    loaded = load(source)
    with registry.trusting(False):
      before = loaded.task.token_layout()
    found = {name: loaded.variables[name] for name in target if name in loaded.variables}
    known = loaded.class_names if loaded.knows_class_names else None
    places = _find_places(find_places, known, found)
    filled, report = transfer(target, found, layout, before, places)
    print(f"init_from {source}, checkpoint {loaded.step}:\n{report}", flush=True)
  state = dict(model_state)
  for name in state.keys() & filled.keys():
    old = tree.name_leaves(state[name])
    state[name] = tree.fill(state[name], old | tree.name_leaves(filled[name]))
  return filled["params"], state


def check_source(
  source: str,
  params: Any,
  model_state: Mapping[str, Any],
  layout: TokenLayout | None,
  *,
  allowed: Iterable[str] = (),
  mixer: str = "",
  new_head: bool = True,
  find_places: FindPlaces | None = None,
) -> None:
  """Raises what `initial_variables` would raise, as far as it shows without reading a checkpoint.

  Args:
    source: see `initial_variables`, as are the arguments that are not described here.
    params: the shapes and dtypes of the parameters; nothing is compiled.
    model_state: the shapes and dtypes of the other collections.
  """
  if foreign.is_file(source):
    blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), (params, model_state))
    _, report = _transfer_file(source, blank[0], blank[1], layout, find_places)
    check_fit(report, source, allowed, mixer, new_head=new_head)
    return
  try:
    run = find_run(source)
    with registry.trusting(False):
      read_task(read_config(run), run)
  except ConfigError as error:
    raise ConfigError(f"init_from={source!r}: {error}") from error
  if not Directory(locate_checkpoints(run)).steps():
    raise ConfigError(f"init_from={source!r} has no checkpoint yet; let that run save one")


def _transfer_file(
  source: str,
  params: Any,
  model_state: Mapping[str, Any],
  layout: TokenLayout | None,
  find_places: FindPlaces | None,
) -> tuple[Any, Report]:
  """Fills parameters, batch statistics and what else of the state a published file has."""
  found, left, ignored = foreign.read_variables(source, foreign.count_heads(params))
  told = tree.name_leaves({name: x for name, x in found.items() if name != "params"})
  state = {
    name: x
    for name, x in tree.name_leaves(dict(model_state)).items()
    if name in told or name.split("/")[0] in STATISTICS
  }
  target = {"params": params, **tree.nest(state)}
  places = _find_places(find_places, None, found)
  filled, report = transfer(target, found, layout, foreign.guess_layout(found), places)
  return filled, dataclasses.replace(report, unused=(*report.unused, *left), ignored=ignored)


def _find_places(
  find: FindPlaces | None, class_names: Sequence[str] | None, variables: Mapping[str, Any]
) -> np.ndarray | str | None:
  """Returns where a network's classes stand among those of the head of some variables."""
  heads = [x for name, x in tree.name_arrays(variables["params"]).items() if names.is_head(name)]
  return None if find is None or not heads else find(class_names, heads[0].shape[-1])
