"""The initial weights of a new run, from another run or from a published file."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import numpy as np
from absl import logging

from vitx.checkpoints import digest, tree
from vitx.checkpoints.load import Loaded
from vitx.config import registry
from vitx.config.errors import ConfigError, naming
from vitx.config.fields import RunSettings, find, find_lora
from vitx.config.loader import load_config
from vitx.interop import foreign
from vitx.interop.published import look_up
from vitx.interop.repository import is_weights, load, load_shapes
from vitx.interop.transfer import LISTED, MatchClasses, Report, describe_sizes, transfer
from vitx.models import lora, names, token_layout
from vitx.ops.layout import TokenLayout

TRANSFERRED = ("params", "batch_stats")  # The collections that belong to the weights.
# The fields of a config that choose the test examples of a data set, and those that choose the
# validation examples alone.
_OF_TEST = ("data.splits.train", "data.splits.test", "data.folds", "data.fold", "data.groups")
_OF_VALIDATION = (
  *("data.splits.validation", "data.validation", "data.validation_choice"),
  "data.calibration",
)
_DIVISION = (*_OF_TEST, *_OF_VALIDATION, "data_seed")


@dataclasses.dataclass(frozen=True)
class Fit:
  """The conditions under which a new run begins with given weights.

  Attributes:
    allowed: Regular expressions of names, in vitx or in the file, that need not fit.
    network: The new run's network. If a file of weights has no parameters of positions, the
      position embedding of this network is compared with the published one; `None` compares
      nothing.
    layout: The layout of the new run's tokens to which positions are added, see `transfer`; `None`
      if there is none.
    new_head: Whether a head may be left as initialized if the source lacks it or has other classes.
    match_classes: A function that finds the run's classes among the source's, see
      `transfer.MatchClasses`; `None` if the run has no classes.
    may_add: Whether the network may have parameters, beside those of its head, that another run
      lacks. Training learns them; without training they would stay random.
    settings: The new run's settings.
    fingerprint: The fingerprint of the new run's data; "" if they are unknown. If another run has
      the same data, its division into train, validation and test is compared with the new one.
  """

  allowed: Iterable[str] = ()
  network: nn.Module | None = None
  layout: TokenLayout | None = None
  new_head: bool = True
  match_classes: MatchClasses | None = None
  may_add: bool = True
  settings: RunSettings = dataclasses.field(default_factory=RunSettings)
  fingerprint: str = ""

  def check(self, report: Report, source: str, *, is_run: bool) -> None:
    """Checks that the parameters of a network and of a source fit, except for allowed ones.

    Args:
      report: The report of `transfer`.
      source: The name of the file or run, for the error.
      is_run: Whether the source is another run. Its parameters that the network lacks may be
        unused.
    """
    patterns = [re.compile(pattern) for pattern in self.allowed]
    new = [] if is_run and self.may_add else report.new
    new = [name for name in new if not (self.new_head and names.is_head(name))]
    reasons = dict.fromkeys([] if is_run else report.unused, "has no place in this network")
    reasons |= {**dict.fromkeys(new, "is not in the source"), **report.skipped}
    reasons |= {} if self.new_head else report.head
    wrong = [
      f"{name} ({reason})"
      for name, reason in reasons.items()
      if not any(pattern.fullmatch(name) for pattern in patterns)
    ]
    if wrong:
      more = f", and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
      raise ConfigError(
        f"init_from={source!r} does not fit this network: {describe_sizes(report.sizes)}"
        f"{', '.join(wrong[:LISTED])}{more}. To accept parameters that do not fit, match their"
        " names, such as init_from_except=('.*/token_mixer/.*',)."
      )


def initial_variables(source: str, variables: Mapping[str, Any], fit: Fit = Fit()) -> Any:
  """Fills a new run's variables with the weights of another run or of a published file.

  A head for other classes keeps its random values; a position table for another grid is resized. A
  report on each parameter is printed, and a warning if another run may have been trained on
  examples that the new run evaluates. Code that the other run's config names is imported only
  as `registry.trusting` allows.

  Args:
    source: The workdir of another run, whose best checkpoint is loaded; a repository that vitx
      wrote; a file of weights; or `hf:OWNER/NAME` or `timm:NAME` for a file on the Hugging Face
      Hub.
    variables: The freshly initialized collections. Parameters, batch statistics and any other state
      that the source has in equal shapes, such as the features of Performer, are filled.
    fit: The conditions.

  Raises:
    ConfigError: The source cannot be read, or parameters do not fit and are not allowed.
  """
  filled, report, loaded = _transfer(source, variables, fit)
  place = source if loaded is None else f"{source}, checkpoint {loaded.step}"
  print(f"init_from {place}:\n{report}", flush=True)
  if loaded is not None:
    warn_of_seen_examples(loaded, f"init_from={source!r}", fit.settings, fit.fingerprint)
  fit.check(report, source, is_run=loaded is not None)
  return tree.fill(dict(variables), tree.name_leaves(variables) | tree.name_leaves(filled))


def read_base(settings: RunSettings, task: Any, shapes: Mapping[str, Any]) -> tuple[Any, str]:
  """Reads the weights of `init_from` to which a run's adapters belong.

  Args:
    settings: The settings of the run.
    task: The task of the run.
    shapes: The shapes and dtypes of the network's variables.

  Returns:
    The base as constants of a program, with zeros for parameters that the source lacks; and the
    digest of the source's weights.

  Raises:
    ConfigError: The source cannot be read, does not fit, or has another digest than the settings.
  """
  source, network, adapters = settings.init_from or "", task.model, find_lora(settings.model)
  assert adapters is not None
  layout = token_layout(network, task.input_spec.shape)
  fit = Fit(settings.init_from_except, network, layout, may_add=False)
  filled, report, loaded = _transfer(source, tree.zeros(shapes), fit)
  fit.check(report, source, is_run=loaded is not None)
  actual = digest.digest_json(digest.describe(report.arrays))
  if adapters.base not in (None, actual):
    raise ConfigError(
      f"init_from={source!r} has the digest {actual}, and the adapters belong to weights with the"
      f" digest {adapters.base}; restore these weights."
    )
  return lora.make_constants(adapters, filled["params"]), actual


def _transfer(
  source: str, variables: Mapping[str, Any], fit: Fit
) -> tuple[Any, Report, Loaded | None]:
  """Returns filled variables, a report, and the run that the source is; `None` for a file."""
  if is_weights(source):
    return *_transfer_file(source, variables, fit), None
  loaded = load(source)
  return *_transfer_run(loaded, source, variables, fit), loaded


def check_source(source: str, shapes: Mapping[str, Any], fit: Fit = Fit()) -> None:
  """Checks that the initial weights fit a new run, without initializing the run's network.

  The weights of another run are not read: their shapes follow from its config. `shapes` has the
  shapes and dtypes of the variables. `initial_variables` describes the rest.
  """
  if is_weights(source):
    _, report = _transfer_file(source, tree.zeros(shapes), fit)
    fit.check(report, source, is_run=False)
    return
  with naming(f"init_from={source!r}"):
    loaded = load_shapes(source)
  check_run(loaded, source, shapes, fit)


def check_run(loaded: Loaded, source: str, shapes: Mapping[str, Any], fit: Fit) -> None:
  """Checks that the parameters of another run fit a new run, before either is trained.

  The variables of `loaded` have zeros in place of weights. `check_source` describes the rest.
  """
  _, report = _transfer_run(loaded, source, tree.zeros(shapes), fit)
  fit.check(report, source, is_run=True)


def warn_of_seen_examples(
  loaded: Loaded, where: str, settings: RunSettings, fingerprint: str
) -> None:
  """Warns if another run may have been trained on examples that a new run evaluates.

  Args:
    loaded: The other run.
    where: The new run's field that names it, with its value.
    settings: The new run's settings.
    fingerprint: The fingerprint of the new run's data; "" if they are unknown.
  """
  names = (*_DIVISION, "data.source", "data.exclude")
  before, now = ({name: find(x, name) for name in names} for x in (loaded.settings, settings))
  # A set keeps its division if examples are excluded, though not its fingerprint.
  is_same_set = before["data.source"] == now["data.source"]
  excludes_others = is_same_set and before["data.exclude"] != now["data.exclude"]
  if not fingerprint or not (excludes_others or loaded.fingerprint == fingerprint):
    return
  differing = [name for name in _DIVISION if (before[name] or None) != (now[name] or None)]
  if differing:
    logging.warning(
      "%s was trained on the same data, divided in another way (%s): %s of this run may"
      " have examples on which it was trained, and figures that are too good",
      where,
      ", ".join(f"{name}={before[name]!r}, here {now[name]!r}" for name in differing),
      "validation" if set(differing).isdisjoint(_OF_TEST) else "validation and test",
    )


def _transfer_run(
  loaded: Loaded, source: str, variables: Mapping[str, Any], fit: Fit
) -> tuple[Any, Report]:
  """Returns a new run's parameters and state, filled from another run, and a report."""
  target = _find_target(variables, loaded.variables)
  with registry.trusting(False):
    before = token_layout(loaded.model, loaded.task.input_spec.shape)
  trained = {name: loaded.variables[name] for name in target if name in loaded.variables}
  class_names = loaded.class_names if loaded.knows_class_names else None
  indices = _match_classes(fit.match_classes, class_names, trained)
  with naming(f"init_from={source!r}"):
    filled, report = transfer(target, trained, fit.layout, before, indices)
  differing = _compare_positions(_read_positions(loaded), fit.network)
  return filled, dataclasses.replace(report, skipped={**report.skipped, **differing})


def _transfer_file(source: str, variables: Mapping[str, Any], fit: Fit) -> tuple[Any, Report]:
  """Returns a new run's parameters and state, filled from a published file, and a report."""
  heads = foreign.count_heads(variables["params"])
  trained, extra, ignored, posemb, grid = foreign.read_variables(source, heads)
  target = _find_target(variables, trained)
  indices = _match_classes(fit.match_classes, None, trained)
  if not grid and fit.layout is not None and look_up(source) is None:
    grid = fit.layout.grid  # a table of equal length is one of an equal grid
  before = foreign.guess_layout(trained, grid)
  with naming(f"init_from={source!r}"):
    filled, report = transfer(target, trained, fit.layout, before, indices)
  unused = {**report.unused, **dict.fromkeys(extra, "")}
  skipped = {**report.skipped, **_compare_positions(posemb, fit.network)}
  skipped |= _compare_heads(source, target)
  return filled, dataclasses.replace(report, unused=unused, ignored=ignored, skipped=skipped)


def _find_target(variables: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the variables to fill: those of `TRANSFERRED`, and what the source has of any other.

  The random features of Performer are such others. Features of another shape stay those of the run.
  """
  stored = tree.name_leaves(trained)
  return tree.nest(
    {
      name: x
      for name, x in tree.name_leaves(variables).items()
      if name.split("/")[0] in TRANSFERRED or (name in stored and stored[name].shape == x.shape)
    }
  )


def _read_positions(loaded: Loaded) -> dict[str, Any]:
  """Returns the fields of a run's position embedding; {} if it has parameters, which show it."""
  network: Any = loaded.task.model
  part = names.POSITIONS
  table = getattr(network, "PARTS", {}).get(part, ({},))[0]
  if not table or part in loaded.variables["params"]:
    return {}
  posemb = getattr(network, part)(parent=None)
  fields = {name: getattr(posemb, name) for name in ("kind", "base") if hasattr(posemb, name)}
  return next(({"name": name, **fields} for name, x in table.items() if type(posemb) is x), {})


def _compare_positions(wanted: Mapping[str, Any], network: nn.Module | None) -> dict[str, str]:
  """Returns {"posemb": reason} if a network's positions are not the published ones, or {}."""
  part = names.POSITIONS
  parts: Any = getattr(network, "PARTS", {})
  if not wanted or part not in parts:
    return {}
  posemb = getattr(network, part)(parent=None)
  is_kind = isinstance(posemb, parts[part][0][wanted["name"]])
  if is_kind and all(getattr(posemb, key) == wanted[key] for key in wanted.keys() - {"name"}):
    return {}
  fields = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
  return {part: f"set model.posemb=dict({fields}), with which these weights were trained"}


def _compare_heads(source: str, target: Mapping[str, Any]) -> dict[str, str]:
  """Returns {first query kernel: reason} if known weights have another number of heads, or {}.

  The arrays of a file split into any number of heads that divides their width.
  """
  known = look_up(source)
  wanted = load_config(known.row).model.get("num_heads") if known else None
  for name, x in tree.name_leaves(target).items():
    if wanted and name.endswith("query/kernel") and x.ndim == 3:
      reason = f"these weights were trained with model.num_heads={wanted}, not {x.shape[1]}"
      return {} if x.shape[1] == wanted else {name: reason}
  return {}


def _match_classes(
  find: MatchClasses | None, class_names: Sequence[str] | None, variables: Mapping[str, Any]
) -> np.ndarray | str | None:
  """Returns the result of `find` for the head in `variables`; `None` without head or `find`."""
  heads = [x for name, x in tree.name_arrays(variables["params"]).items() if names.is_head(name)]
  return None if find is None or not heads else find(class_names, heads[0].shape[-1])
