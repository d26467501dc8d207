"""A new run's parameters from another run's: by name, with a report of what became of each."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitx.checkpoints import tree
from vitx.config.checks import check_pattern
from vitx.config.errors import ConfigError
from vitx.models import names, position_tables, token_tables
from vitx.ops.layout import TokenLayout

LISTED = 5  # names that an error shows before it only counts
# From the names of the classes that some weights know (None: not told) and their number to where
# each class of the network stands among them, int32 (K,), or to why they are others.
FindPlaces = Callable[[Sequence[str] | None, int], np.ndarray | str]


@dataclasses.dataclass(frozen=True)
class Report:
  """What became of each parameter, by name.

  Attributes:
    loaded: taken as they are.
    resized: position tables and weights of token mixers for another grid, a first convolution for
      gray images, heads whose classes stand in another order; and how.
    head: of other classes, left as initialized.
    skipped: of another shape, left as initialized, and why.
    new: only in the new model, left as initialized.
    unused: only in the source.
    ignored: what a file holds beside weights, and what stands in front of their names.
  """

  loaded: tuple[str, ...]
  resized: dict[str, str]
  head: dict[str, str]
  skipped: dict[str, str]
  new: tuple[str, ...]
  unused: tuple[str, ...]
  ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def __str__(self) -> str:
    rows = []
    for field in dataclasses.fields(self):
      names = getattr(self, field.name)
      rows.append(f"{field.name:<8}{len(names):>6}")
      if field.name == "loaded":
        continue  # the rule; the exceptions are worth a line each
      reasons = names if isinstance(names, Mapping) else dict.fromkeys(names, "")
      rows += [f"  {name}  {reason}".rstrip() for name, reason in reasons.items()]
    return "\n".join(rows)


def check_fit(
  report: Report, source: str, allowed: Iterable[str], mixer: str = "", *, new_head: bool = True
) -> None:
  """Raises ConfigError for parameters that a file does not fit, unless their names are allowed.

  Args:
    report: of `transfer`.
    source: the file.
    allowed: regular expressions, of which one must match the whole name.
    mixer: name of the network's token mixer, for the error; "" if it has none.
    new_head: whether a head may start anew that the file has of other classes, or has not.
  """
  patterns = [check_pattern(pattern, "init_from_except") for pattern in allowed]
  wrong = {name: "has no place in this network" for name in report.unused}
  new = [name for name in report.new if not (new_head and names.is_head(name))]
  wrong |= dict.fromkeys(new, "is not in the file") | report.skipped
  if not new_head:
    wrong |= {
      name: reason if ": " in reason else f"{reason}: of other classes"
      for name, reason in report.head.items()
    }
  wrong = {
    name: reason
    for name, reason in wrong.items()
    if not any(pattern.fullmatch(name) for pattern in patterns)
  }
  if not wrong:
    return
  some = ", ".join(f"{name} ({reason})" for name, reason in list(wrong.items())[:LISTED])
  more = f", and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
  cause = "Is it another size?"
  if all(names.TOKEN_MIXER in name.split("/") for name in wrong):
    cause = f"All of it concerns model.token_mixer={mixer!r}."
  raise ConfigError(
    f"init_from={source!r} does not fit this network: {some}{more}. {cause} What need not fit is"
    " allowed by name, such as init_from_except=('.*/token_mixer/.*',)"
  )


def transfer(
  target: Mapping[str, Any],
  source: Mapping[str, Any],
  layout: TokenLayout | None = None,
  source_layout: TokenLayout | None = None,
  places: np.ndarray | str | None = None,
) -> tuple[Any, Report]:
  """Fills freshly initialized parameters with those of the same name and shape.

  A position table (1, N, C) or (N, C) of another layout is resized: prefix tokens stay, the grid is
  interpolated (cubic; Dosovitskiy et al. 2021, section 3.2). So are weights of token mixers that
  are bound to the number of tokens, see `vitx.models.token_tables`. A first convolution of color
  images is summed over their channels for gray ones, as timm does. A head of other classes stays
  new.

  Args:
    target: nested dict of arrays, freshly initialized.
    source: nested dict of arrays, trained.
    layout: of the target's tokens that positions are added to; `None` if that is not known, and
      what is of another length stays new.
    source_layout: of the source's tokens; `None` where that is not known.
    places: where each class of the target stands among the source's, or why they are others, see
      `FindPlaces`; `None` keeps a head of as many classes, whatever they are.

  Returns:
    A tree of the target's structure and dtypes, and the report.

  Raises:
    ConfigError: not one parameter could be loaded.
  """
  fresh, trained = tree.name_leaves(target), tree.name_arrays(source)
  result: dict[str, Any] = dict(fresh)
  loaded, new = [], []
  resized: dict[str, str] = {}
  head: dict[str, str] = {}
  skipped: dict[str, str] = {}
  known = layout is not None and source_layout is not None
  for name, old in fresh.items():
    if name not in trained:
      new.append(name)
      continue
    found, shapes = trained[name], f"{list(trained[name].shape)} -> {list(old.shape)}"
    if names.is_head(name) and places is not None and found.shape[:-1] == old.shape[:-1]:
      if isinstance(places, str):
        head[name] = f"{shapes}: {places}" if found.shape == old.shape else shapes
        continue
      if not np.array_equal(places, np.arange(found.shape[-1])):
        result[name] = found[..., places].astype(old.dtype)
        resized[name] = f"{shapes}: classes by their names"
        continue
    of_tokens = names.is_position_table(name) or names.token_axis(name) is not None
    if found.shape == old.shape and not (known and layout != source_layout and of_tokens):
      result[name] = found.astype(old.dtype)
      loaded.append(name)
    elif names.is_head(name):
      head[name] = shapes
    elif names.is_first_kernel(name) and _is_gray(found.shape, old.shape):
      result[name] = found.sum(axis=2, keepdims=True, dtype=np.float32).astype(old.dtype)
      resized[name] = f"{shapes}: summed over the colors"
    elif not of_tokens:
      skipped[name] = f"{shapes}: shapes differ"
    elif problem := _explain_refusal(name, found.shape, old.shape, source_layout, layout):
      skipped[name] = f"{shapes}: {problem}"
    else:
      assert layout is not None and source_layout is not None
      result[name] = _resize(name, found, np.asarray(old), source_layout, layout)
      resized[name] = (
        f"{shapes}: {position_tables.describe(source_layout)} -> {position_tables.describe(layout)}"
      )
  if not loaded:
    raise ConfigError(
      f"init_from: none of the {len(fresh)} parameters fits the source, which has"
      f" {len(trained)}; is it the same kind of model?"
    )
  unused = tuple(name for name in trained if name not in fresh)
  report = Report(tuple(loaded), resized, head, skipped, tuple(new), unused)
  return tree.fill(target, result), report


def _is_gray(source: tuple[int, ...], target: tuple[int, ...]) -> bool:
  """Returns whether kernels (height, width, channels, C) differ in being of color and of gray."""
  return len(source) == 4 and source[2] == 3 and target == (*source[:2], 1, source[3])


def _explain_refusal(name: str, *shapes_and_layouts: Any) -> str:
  bound = names.token_axis(name)
  if bound is None:
    return position_tables.explain_refusal(*shapes_and_layouts)
  source, target, *layouts = shapes_and_layouts
  return token_tables.explain_refusal(source, target, bound[0], *layouts)


def _resize(
  name: str,
  source: np.ndarray,
  target: np.ndarray,
  source_layout: TokenLayout,
  layout: TokenLayout,
) -> np.ndarray:
  bound = names.token_axis(name)
  if bound is None:
    return position_tables.resize(source, target, source_layout, layout)
  return token_tables.resize(source, target, *bound, source_layout, layout)
