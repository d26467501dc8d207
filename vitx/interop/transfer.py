"""Transfer of a trained network's parameters to a new network by name, with a report."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitx.checkpoints import tree
from vitx.config.checks import check_pattern
from vitx.config.errors import ConfigError
from vitx.models import names, token_tables
from vitx.ops.layout import TokenLayout

LISTED = 5  # The number of names that an error lists before it only counts the remaining ones.
# A function of the source's class names (None if unknown) and its number of classes. It returns the
# index in the source of each of the new network's K classes, int32 (K,), or why the classes differ.
MatchClasses = Callable[[Sequence[str] | None, int], np.ndarray | str]


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
  """

  loaded: Mapping[str, str]
  resized: Mapping[str, str]
  head: Mapping[str, str]
  skipped: Mapping[str, str]
  new: Mapping[str, str]
  unused: Mapping[str, str]
  ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
  sizes: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

  def __str__(self) -> str:
    rows = [f"sizes differ: {_describe_sizes(self.sizes, 'source')}"] if self.sizes else []
    for field in dataclasses.fields(self)[:-1]:
      names = getattr(self, field.name)
      rows.append(f"{field.name:<8}{len(names):>6}")
      # Loaded parameters are the rule; only the exceptions get a line each.
      lines = [] if field.name == "loaded" else [f"  {n}  {x}".rstrip() for n, x in names.items()]
      if (self.sizes or field.name == "ignored") and len(lines) > LISTED:
        lines[LISTED:] = [f"  and {len(lines) - LISTED} more"]
      rows += lines
    return "\n".join(rows)


def check_fit(
  report: Report, source: str, allowed: Iterable[str], mixer: str = "", *, new_head: bool = True
) -> None:
  """Checks that the parameters of a network and of a source fit, except for allowed ones.

  Args:
    report: The report of `transfer`.
    source: The name of the file or run, for the error.
    allowed: Regular expressions; a name is allowed if an expression matches all of it.
    mixer: The name of the network's token mixer, for the error, or "" if it has none.
    new_head: Whether a head may be left as initialized if the source lacks it or has other classes.

  Raises:
    ConfigError: Some parameters do not fit; the message lists them.
  """
  patterns = [check_pattern(pattern, "init_from_except") for pattern in allowed]
  wrong = dict.fromkeys(report.unused, "has no place in this network")
  new = [name for name in report.new if not (new_head and names.is_head(name))]
  wrong |= {**dict.fromkeys(new, "is not in the source"), **report.skipped}
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
  if wrong:
    raise ConfigError(
      f"init_from={source!r} does not fit this network: {_explain(wrong, report, mixer)} To accept"
      " parameters that do not fit, match their names, such as"
      " init_from_except=('.*/token_mixer/.*',)."
    )


def _explain(wrong: Mapping[str, str], report: Report, mixer: str) -> str:
  """Returns sentences about the parameters that do not fit, with the reasons and the fix.

  Args:
    wrong: The reason why a parameter does not fit, by name.
    report: The report of `transfer`.
    mixer: The name of the network's token mixer.
  """
  sizes = dict(report.sizes)
  blocks = names.count_blocks(name.removeprefix("params/") for name in wrong)
  if "depth" in sizes and blocks <= min(sizes["depth"]):
    del sizes["depth"]
  if wrong.keys().isdisjoint(report.skipped):
    sizes.pop("width", None)
  if sizes:
    return _fix_sizes(sizes, "source")
  some = ", ".join(f"{name} ({reason})" for name, reason in list(wrong.items())[:LISTED])
  more = f", and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
  cause = "Choose a network with the size and the parts of the source's."
  if all(names.TOKEN_MIXER in name.split("/") for name in wrong):
    cause = f"All of them belong to model.token_mixer={mixer!r}."
  return f"{some}{more}. {cause}"


def _fix_sizes(sizes: Mapping[str, tuple[int, int]], where: str) -> str:
  """Returns sentences about the differences in size and the fields that remove them."""
  fields = " and ".join(f"model.{field}={pair[0]}" for field, pair in sizes.items())
  return f"{_describe_sizes(sizes, where)}. Set {fields}."


def _describe_sizes(sizes: Mapping[str, tuple[int, int]], where: str) -> str:
  """Returns the differences in size, such as "the file has 3 blocks, the config 12"."""
  units = {"depth": "block", "width": "channel"}
  return " and ".join(
    f"the {where} has {theirs} {units[field]}{'s' if theirs > 1 else ''}, the config {ours}"
    for field, (theirs, ours) in sizes.items()
  )


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
    target: A nested dict of freshly initialized arrays.
    source: A nested dict of trained arrays.
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
    found = trained[name]
    fate, value, reason = _fit_parameter(name, found, old, (source_layout, layout), indices)
    shapes = f"{list(found.shape)} -> {list(old.shape)}"
    fates[fate][name] = f"{shapes}: {reason}" if reason else shapes
    if value is not None:
      result[name] = value.astype(old.dtype)
  filled = [*fates["loaded"], *fates["resized"]]
  check_finite({name: result[name] for name in filled}, "the source")
  theirs, ours = names.read_sizes(trained), names.read_sizes(fresh)
  pairs = {field: (theirs[field], ours[field]) for field in ours}
  sizes = {field: pair for field, pair in pairs.items() if all(pair) and pair[0] != pair[1]}
  if not fates["loaded"]:
    none = f"none of the network's {len(fresh)} parameters fits"
    if sizes:
      raise ConfigError(f"{none}: {_fix_sizes(sizes, 'source')}")
    raise ConfigError(
      f"{none} the source, which has {len(trained)} parameters; choose a source of the same"
      " kind of network."
    )
  unused = {name: "" for name in trained if name not in fresh}
  return tree.fill(target, result), Report(**fates, unused=unused, sizes=sizes)


def check_finite(arrays: Mapping[str, np.ndarray], source: str) -> None:
  """Checks that trained arrays have neither NaN nor infinity.

  Args:
    arrays: The arrays by name.
    source: The name of the run or file that has the arrays, for the error.

  Raises:
    ConfigError: An array has such a value; the message names the first.
  """
  broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
  if broken:
    more = f" and {len(broken) - 1} more arrays" if len(broken) > 1 else ""
    raise ConfigError(
      f"{broken[0]}{more} of {source} hold NaN or infinity: its training has diverged, or it is"
      " damaged. Choose another checkpoint or file."
    )


def _fit_parameter(
  name: str,
  found: np.ndarray,
  old: Any,
  layouts: tuple[TokenLayout | None, TokenLayout | None],
  indices: np.ndarray | str | None,
) -> tuple[str, np.ndarray | None, str]:
  """Decides whether a parameter that both networks have is loaded, and in what form.

  Args:
    name: The name of the parameter.
    found: The source's array.
    old: The target's array.
    layouts: The layouts of the source's and of the target's tokens.
    indices: The index of each target class in the source, the reason why they differ, or `None`.

  Returns:
    The name of the field of `Report` that lists it, the new value or `None` to keep the old one,
    and the reason.
  """
  if names.is_head(name) and indices is not None and found.shape[:-1] == old.shape[:-1]:
    if isinstance(indices, str):
      return "head", None, indices if found.shape == old.shape else ""
    if not np.array_equal(indices, np.arange(found.shape[-1])):
      return "resized", found[..., indices], "classes by their names"
  source_layout, layout = layouts
  bound = names.token_axis(name, old.ndim)
  is_known = source_layout is not None and layout is not None
  if found.shape == old.shape and not (bound and is_known and layout != source_layout):
    return "loaded", found, ""
  if names.is_head(name):
    return "head", None, ""
  if names.is_first_kernel(name) and _is_gray(found.shape, old.shape):
    return "resized", found.sum(axis=2, keepdims=True, dtype=np.float32), "summed over the colors"
  if bound is None:
    return "skipped", None, "shapes differ"
  if problem := token_tables.explain_refusal(found.shape, old.shape, bound[0], *layouts):
    return "skipped", None, problem
  assert source_layout is not None and layout is not None
  resized = token_tables.resize(found, np.asarray(old), *bound, source_layout, layout)
  texts = (token_tables.describe(source_layout), token_tables.describe(layout))
  return "resized", resized, " -> ".join(texts)


def _is_gray(source: tuple[int, ...], target: tuple[int, ...]) -> bool:
  """Returns whether the target's kernel is the source's with one channel in place of 3.

  Args:
    source: The shape of the source's kernel, (h, w, channels, C).
    target: The shape of the target's kernel.
  """
  return len(source) == 4 and source[2] == 3 and target == (*source[:2], 1, source[3])
