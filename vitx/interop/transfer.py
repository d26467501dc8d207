"""Transfer of a trained network's parameters to a new one by name, with a report on each."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitx.checkpoints import tree
from vitx.config.checks import check_pattern
from vitx.config.errors import ConfigError
from vitx.models import names, position_tables, token_tables
from vitx.ops.layout import TokenLayout

LISTED = 5  # The number of names that an error lists before it only counts them.
# A function from the source's class names (None if unknown) and number of classes to the index of
# each class of the new network in the source, int32 (K,), or to the reason why the classes differ.
FindPlaces = Callable[[Sequence[str] | None, int], np.ndarray | str]


@dataclasses.dataclass(frozen=True)
class Report:
  """The fate of each parameter; dicts map names to details.

  Attributes:
    loaded: The parameters taken unchanged.
    resized: The parameters taken after a change: position tables and mixer weights resized to
      another grid, a first convolution summed for gray images, heads with their classes reordered.
    head: The heads of other classes, left as initialized.
    skipped: The parameters of another shape, left as initialized.
    new: The parameters missing in the source, left as initialized.
    unused: The parameters of the source that the new model lacks.
    ignored: Other values in a file, and removed prefixes of names.
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
        continue  # Loaded parameters are the rule; only the exceptions get a line each.
      reasons = names if isinstance(names, Mapping) else dict.fromkeys(names, "")
      rows += [f"  {name}  {reason}".rstrip() for name, reason in reasons.items()]
    return "\n".join(rows)


def check_fit(
  report: Report, source: str, allowed: Iterable[str], mixer: str = "", *, new_head: bool = True
) -> None:
  """Raises ConfigError if parameters do not fit a file, unless their names are allowed.

  Args:
    report: The report of `transfer`.
    source: The name of the file, for the error.
    allowed: Regular expressions; a name is allowed if one matches all of it.
    mixer: The name of the network's token mixer, for the error, or "" if it has none.
    new_head: Whether a head may be left as initialized if the file lacks it or has other classes.
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
  """Fills freshly initialized parameters with trained ones of equal name and shape.

  A position table (1, N, C) or (N, C) of another layout is resized: prefix tokens are kept, the
  grid is interpolated (cubic; Dosovitskiy et al. 2021, section 3.2). Mixer weights that depend on
  the number of tokens are resized too, see `vitx.models.token_tables`. A first convolution for
  color images is summed over the channels for gray ones, as in timm. A head of other classes is
  left as initialized.

  Args:
    target: A nested dict of freshly initialized arrays.
    source: A nested dict of trained arrays.
    layout: The layout of the target's tokens that positions are added to. If it is `None`, tables
      of another length are left as initialized.
    source_layout: The layout of the source's tokens, or `None` if it is not known.
    places: The index of each target class in the source, or the reason why the classes differ, see
      `FindPlaces`. If it is `None`, a head is filled if the number of classes agrees.

  Returns:
    A tree with the target's structure and dtypes, and the report.

  Raises:
    ConfigError: Not a single parameter could be loaded.
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
  """Returns whether the shapes (h, w, channels, C) are of a color kernel and its gray version."""
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
