"""Rules that convert arrays of published files to vitx's arrays and back.

A rule has the names of published arrays (`theirs`), the names of vitx's arrays (`ours`), and
functions that convert the values in both directions. One published array may contain several of
vitx's arrays, such as query, key and value. In a name, `{}` stands for the number of a block.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from vitx.config.errors import ConfigError

Arrays = Mapping[str, np.ndarray]
Into = Callable[[np.ndarray, int], tuple[np.ndarray, ...]]
Back = Callable[[Sequence[np.ndarray]], np.ndarray]
Several = Sequence[np.ndarray]

QKV = ("query", "key", "value")
MIXER = "params/block_{}/token_mixer"


@dataclasses.dataclass(frozen=True)
class NameRule:
  """A rule that converts published arrays to the equivalent arrays of vitx, and back.

  Attributes:
    theirs: The published names, with `{}` for the number of a block.
    ours: The names in vitx.
    into: The function from the published arrays and the number of heads H to vitx's arrays.
    back: The function from vitx's arrays to the published ones.
  """

  theirs: tuple[str, ...]
  ours: tuple[str, ...]
  into: Callable[[Several, int], Several]
  back: Callable[[Several], Several]


def rule(theirs: str, ours: tuple[str, ...], into: Into, back: Back) -> NameRule:
  """Returns the rule of a single published array."""
  return NameRule((theirs,), ours, lambda xs, heads: into(xs[0], heads), lambda xs: (back(xs),))


def same(theirs: str, ours: str) -> NameRule:
  """Returns the rule of an array that differs only in its name."""
  return rule(theirs, (ours,), lambda x, heads: (x,), lambda xs: xs[0])


def convolution(theirs: str, ours: str) -> NameRule:
  """Returns the rule of a convolution, published as (out, in / groups, height, width)."""
  into: Into = lambda x, heads: (x.transpose(2, 3, 1, 0),)  # noqa: E731
  return rule(theirs, (ours,), into, lambda xs: xs[0].transpose(3, 2, 0, 1))


def biased_convolution(theirs: str, ours: str) -> list[NameRule]:
  """Returns the rules of a convolution with a bias."""
  return [convolution(f"{theirs}.weight", f"{ours}/kernel"), same(f"{theirs}.bias", f"{ours}/bias")]


def stacked(theirs: str, ours: tuple[str, ...]) -> NameRule:
  """Returns the rule of linear maps to the heads, or of their biases, published as one array.

  The published array is a stack of maps (H D, C) or of biases (H D,), in which the rows of a head
  are consecutive.
  """

  def into(x: np.ndarray, heads: int) -> tuple[np.ndarray, ...]:
    return tuple(w.T.reshape(*w.shape[1:], heads, -1) for w in np.split(x, len(ours)))

  def back(xs: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([w.reshape(*w.shape[:-2], -1).T for w in xs])

  return rule(theirs, ours, into, back)


def linear(theirs: str, ours: str) -> list[NameRule]:
  """Returns the rules of a linear map, published as (out, in), with a bias."""
  kernel = rule(
    f"{theirs}.weight", (f"{ours}/kernel",), lambda x, heads: (x.T,), lambda xs: xs[0].T
  )
  return [kernel, same(f"{theirs}.bias", f"{ours}/bias")]


def linear_to_heads(theirs: str, *ours: str) -> list[NameRule]:
  """Returns the rules of the weight and bias of linear maps to the heads, such as `query`.

  If there are several names in `ours`, such as query, key and value, the published arrays contain
  all these maps, stacked.
  """
  return [
    stacked(f"{theirs}.weight", tuple(f"{name}/kernel" for name in ours)),
    stacked(f"{theirs}.bias", tuple(f"{name}/bias" for name in ours)),
  ]


def linear_from_heads(theirs: str, ours: str) -> list[NameRule]:
  """Returns the rules of a linear map from the heads, such as `out`, published as (C, H D)."""
  into: Into = lambda x, heads: (x.T.reshape(heads, -1, len(x)),)  # noqa: E731
  back: Back = lambda xs: xs[0].reshape(-1, xs[0].shape[-1]).T  # noqa: E731
  kernel = rule(f"{theirs}.weight", (f"{ours}/kernel",), into, back)
  return [kernel, same(f"{theirs}.bias", f"{ours}/bias")]


def interleaved(plain: NameRule) -> NameRule:
  """Returns the rule `plain` with the channels of queries and keys (..., D) in another order.

  For rotary positions, the published code rotates channels j and j + D/2 of a head by one angle.
  vitx rotates the neighbors 2j and 2j + 1, so it stores each such pair as neighbors. Products of
  queries and keys do not change, since both have the new order.
  """
  rotated = [name.split("/")[-2] in QKV[:2] for name in plain.ours]

  def reorder(x: np.ndarray, parts: tuple[int, int]) -> np.ndarray:
    return x.reshape(*x.shape[:-1], *parts).swapaxes(-1, -2).reshape(x.shape)

  def into(xs: Several, heads: int) -> Several:
    ours = zip(plain.into(xs, heads), rotated, strict=True)
    return tuple(reorder(x, (2, -1)) if turns else x for x, turns in ours)

  def back(xs: Several) -> Several:
    ours = zip(xs, rotated, strict=True)
    return plain.back([reorder(x, (-1, 2)) if turns else x for x, turns in ours])

  return NameRule(plain.theirs, plain.ours, into, back)


def norm(theirs: str, ours: str) -> list[NameRule]:
  """Returns the rules of a normalization's scale and bias."""
  return [same(f"{theirs}.weight", f"{ours}/scale"), same(f"{theirs}.bias", f"{ours}/bias")]


def batch_norm(theirs: str, ours: str) -> list[NameRule]:
  """Returns the rules of a batch normalization's scale, bias and running statistics.

  `ours` is the name of the module without a collection, such as "stem/norm_0".
  """
  return [
    *norm(theirs, f"params/{ours}"),
    same(f"{theirs}.running_mean", f"batch_stats/{ours}/mean"),
    same(f"{theirs}.running_var", f"batch_stats/{ours}/var"),
  ]


def convert_in(
  rules: Iterable[NameRule], theirs: Arrays, num_heads: int
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Converts published arrays to vitx's arrays by rules.

  Returns:
    The arrays under vitx's names, and the published names that no rule covers.
  """
  remaining = dict(theirs)
  ours: dict[str, np.ndarray] = {}
  for name_rule in rules:
    for first, number, arrays in _pop_groups(name_rule.theirs, remaining):
      try:
        parts = name_rule.into(arrays, num_heads)
      except (ValueError, IndexError, TypeError) as error:
        shape = " and ".join(str(list(x.shape)) for x in arrays)
        raise ConfigError(
          f"{first} of the shape {shape} does not split into num_heads={num_heads}: {error}"
        ) from error
      ours |= _name(name_rule.ours, number, parts)
  return ours, list(remaining)


def convert_out(rules: Iterable[NameRule], ours: Arrays) -> tuple[dict[str, np.ndarray], list[str]]:
  """Converts vitx's arrays to published arrays by rules.

  Returns:
    The arrays under the published names, and the names in vitx that no rule covers.
  """
  remaining = dict(ours)
  theirs: dict[str, np.ndarray] = {}
  for name_rule in rules:
    for _, number, arrays in _pop_groups(name_rule.ours, remaining):
      theirs |= _name(name_rule.theirs, number, name_rule.back(arrays))
  return {name: np.ascontiguousarray(x) for name, x in theirs.items()}, list(remaining)


def _pop_groups(
  templates: tuple[str, ...], remaining: dict[str, np.ndarray]
) -> Iterator[tuple[str, str, Several]]:
  """Yields groups of arrays that one rule converts together, and removes them from `remaining`.

  Yields:
    The name of the first array, the number of its block, and the arrays of the group.
  """
  # In a pattern, the number of a block is any digits; without a number, it is "".
  pattern = re.compile(re.escape(templates[0]).replace(r"\{\}", r"(\d+)"))
  for match in [match for match in map(pattern.fullmatch, remaining) if match]:
    first, number = match[0], match[1] if match.groups() else ""
    names = [template.format(number) for template in templates]
    missing = [name for name in names if name not in remaining]
    if missing:
      raise ConfigError(f"{first} needs {missing[0]}, which the file does not have")
    yield first, number, [remaining.pop(name) for name in names]


def _name(templates: tuple[str, ...], number: str, arrays: Several) -> dict[str, np.ndarray]:
  return {template.format(number): x for template, x in zip(templates, arrays, strict=True)}
