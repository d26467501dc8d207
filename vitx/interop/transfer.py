"""Transfer of a trained network's parameters to a new network by name, with a report."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitx.checkpoints import tree
from vitx.config.errors import ConfigError
from vitx.models import names, token_tables
from vitx.ops.layout import TokenLayout

LISTED = 5  # The number of names that an error lists before it only counts the remaining ones.
# A function of the source's class names (None if unknown) and its number of classes. It returns the
# index in the source of each of the new network's K classes, int32 (K,), or why the classes differ.
MatchClasses = Callable[[Sequence[str] | None, int], np.ndarray | str]
Layouts = tuple[TokenLayout | None, TokenLayout | None]  # of the source and of the target


@dataclasses.dataclass(frozen=True)
class Report:
  """A report on each parameter of a transfer of weights; the dicts map names to details.

  Attributes:
    loaded: The parameters taken unchanged.
    resized: The parameters taken after a change: position tables and mixer weights resized to
      another grid, a first convolution summed for gray images, heads with their classes reordered.
    head: The heads of other classes, left as initialized.
    skipped: The parameters of another shape, left as initialized.
    new: The parameters missing in the source, left as initialized.
    unused: The parameters of the source that the new model lacks.
    ignored: The other values in a file, and the removed prefixes of names.
    sizes: The pairs (source, new model) of the sizes "depth" and "width" that differ.
    arrays: The parameters of the source, by name.
  """

  loaded: Mapping[str, str]
  resized: Mapping[str, str]
  head: Mapping[str, str]
  skipped: Mapping[str, str]
  new: Mapping[str, str]
  unused: Mapping[str, str]
  ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
  sizes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
  arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict, repr=False)

  def __str__(self) -> str:
    rows = [f"sizes differ: {describe_sizes(self.sizes)}"] if self.sizes else []
    for field in dataclasses.fields(self)[:-2]:
      names = getattr(self, field.name)
      rows.append(f"{field.name:<8}{len(names):>6}")
      if field.name == "loaded" and (parts := _list_mixer_parts(names)):
        rows[-1] += f"  among them, of the token mixers: {', '.join(parts)}"
      # Loaded parameters are the rule; only the exceptions get a line each.
      lines = [] if field.name == "loaded" else [f"  {n}  {x}".rstrip() for n, x in names.items()]
      if (self.sizes or field.name == "ignored") and len(lines) > LISTED:
        lines[LISTED:] = [f"  and {len(lines) - LISTED} more"]
      rows += lines
    return "\n".join(rows)


def _list_mixer_parts(loaded: Iterable[str]) -> list[str]:
  """Returns the names of the parts of token mixers that have loaded parameters, such as "query"."""
  paths = (name.partition(f"/{names.TOKEN_MIXER}/")[2] for name in loaded)
  return sorted({path.partition("/")[0] for path in paths if path})


def describe_sizes(sizes: Mapping[str, tuple[int, int]]) -> str:
  """Returns sentences about sizes that differ, and the fields that remove the differences."""
  units = {"depth": "block", "width": "channel"}
  differences = (
    f"the source has {theirs} {units[field]}{'s' if theirs > 1 else ''}, the config {ours}"
    for field, (theirs, ours) in sizes.items()
  )
  fields = " and ".join(f"model.{field}={theirs}" for field, (theirs, _) in sizes.items())
  return f"{' and '.join(differences)}. Set {fields}. " if sizes else ""


def transfer(
  target: Mapping[str, Any],
  source: Mapping[str, Any],
  layout: TokenLayout | None = None,
  source_layout: TokenLayout | None = None,
  indices: np.ndarray | str | None = None,
) -> tuple[Any, Report]:
  """Fills freshly initialized parameters with trained ones of equal name and shape.

  Position tables of another layout, and mixer weights that depend on the number of tokens, are
  resized, see `vitx.models.token_tables`. A first convolution for color images is summed over the
  channels for gray ones, as in timm. A head of other classes is left as initialized.

  Args:
    target: The freshly initialized arrays, nested dicts.
    source: The trained arrays, nested dicts.
    layout: The layout of the target's tokens to which positions are added. If it is `None`, tables
      of another length are left as initialized.
    source_layout: The layout of the source's tokens, or `None` if it is not known.
    indices: The index of each target class in the source, or the reason why the classes differ, see
      `MatchClasses`. If it is `None`, a head is filled if the number of classes agrees.

  Returns:
    A tree with the target's structure and dtypes, and the report.

  Raises:
    ConfigError: Not a single parameter could be loaded, or a loaded one has NaN or infinity.
  """
  fresh, trained = tree.name_leaves(target), tree.name_arrays(source)
  result: dict[str, Any] = dict(fresh)
  fates: dict[str, dict[str, str]] = {
    fate: {} for fate in ("loaded", "resized", "head", "skipped", "new")
  }
  for name, old in fresh.items():
    if name not in trained:
      fates["new"][name] = ""
      continue
    array = trained[name]
    fate, value, reason = _fit_parameter(name, array, old, (source_layout, layout), indices)
    shapes = f"{list(array.shape)} -> {list(old.shape)}"
    fates[fate][name] = f"{shapes}: {reason}" if reason else shapes
    if value is not None:
      result[name] = value.astype(old.dtype)
  filled = [*fates["loaded"], *fates["resized"]]
  check_finite({name: result[name] for name in filled}, "the source")
  theirs, ours = names.read_sizes(trained), names.read_sizes(fresh)
  pairs = {field: (theirs[field], ours[field]) for field in ours}
  sizes = {field: pair for field, pair in pairs.items() if all(pair) and pair[0] != pair[1]}
  if not fates["loaded"]:
    fix = describe_sizes(sizes) or "choose a source of the same kind of network."
    raise ConfigError(f"none of the network's {len(fresh)} parameters fits: {fix}".rstrip())
  unused = {name: "" for name in trained if name not in fresh}
  return tree.fill(target, result), Report(**fates, unused=unused, sizes=sizes, arrays=trained)


def check_finite(arrays: Mapping[str, np.ndarray], source: str) -> None:
  """Raises ConfigError if arrays, given by name, of a source have NaN or infinity."""
  broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
  if broken:
    raise ConfigError(
      f"{broken[0]} of {source} and {len(broken) - 1} others hold NaN or infinity: its training has"
      " diverged, or it is damaged. Choose another checkpoint or file."
    )


def _fit_parameter(
  name: str, array: np.ndarray, old: Any, layouts: Layouts, indices: np.ndarray | str | None
) -> tuple[str, np.ndarray | None, str]:
  """Returns the field of `Report` for a parameter, its new value or `None`, and the reason."""
  if names.is_head(name) and indices is not None and array.shape[:-1] == old.shape[:-1]:
    if isinstance(indices, str):
      return "head", None, indices if array.shape == old.shape else ""
    if not np.array_equal(indices, np.arange(array.shape[-1])):
      return "resized", array[..., indices], "classes by their names"
  source_layout, layout = layouts
  bound = names.token_axis(name, old.ndim)
  is_known = source_layout is not None and layout is not None
  if array.shape == old.shape and not (bound and is_known and layout != source_layout):
    return "loaded", array, ""
  if names.is_head(name):
    return "head", None, ""
  if names.is_first_kernel(name) and _is_gray(array.shape, old.shape):
    return "resized", array.sum(axis=2, keepdims=True, dtype=np.float32), "summed over the colors"
  if bound is None:
    return "skipped", None, "shapes differ"
  if problem := token_tables.explain_refusal(array.shape, old.shape, bound[0], *layouts):
    return "skipped", None, problem
  assert source_layout is not None and layout is not None
  resized = token_tables.resize(array, np.asarray(old), *bound, source_layout, layout)
  texts = (token_tables.describe(source_layout), token_tables.describe(layout))
  return "resized", resized, " -> ".join(texts)


def _is_gray(source: tuple[int, ...], target: tuple[int, ...]) -> bool:
  """Returns whether two shapes (h, w, channels, C) differ only in one channel in place of 3."""
  return len(source) == 4 and source[2] == 3 and target == (*source[:2], 1, source[3])
