"""Finds the sizes for which "auto" picks the masked implementation, by timing every mixer.

Each mixer is timed in its masked implementation, which computes the whole attention matrix, and in
its kernelized implementation, which does not.
"""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from vitx.attention import MIXERS
from vitx.benchmark.mixers import Setting, compile_mixer, draw_variables, find_choices, label
from vitx.benchmark.timing import Neighbors, TooLargeError, describe_device, interleave
from vitx.config.errors import ConfigError
from vitx.config.registry import build
from vitx.ops.implementation import choosing_by
from vitx.ops.rule import FAMILIES, Bound, Rule

TOKENS = (64, 128, 256, 512)
BATCHES = (1, 4, 16, 64)
# The masked path is picked only if its time is at most this share of the kernelized path's.
WORTH = 0.95

# The mixers that represent the families: all mixers, and one option that has an op of its own.
SUBJECTS: tuple[dict[str, Any], ...] = (
  *({"name": name} for name in MIXERS),
  {"name": "sparsifiner", "granularity": "block"},
)
WAYS = ("masked", "kernelized")
KERNELIZED = Rule("any", "kernelized throughout", dict.fromkeys(FAMILIES, ()))


@dataclasses.dataclass(frozen=True)
class Ratio:
  """The time of a mixer's masked path divided by that of its kernelized path.

  The times are of the forward and the backward pass together.

  Attributes:
    family: The family of the operation that the mixer calls, a key of `FAMILIES` such as "dense".
    mixer: The name of the mixer.
    tokens: The number of tokens, N.
    matrices: The number of attention matrices, B H.
    value: The ratio, infinite if the masked path does not fit in memory.
  """

  family: str
  mixer: str
  tokens: int
  matrices: int
  value: float


def measure(
  families: Collection[str],
  tokens: Sequence[int],
  batches: Sequence[int],
  setting: Setting,
  *,
  repeats: int,
  minutes: float,
  say: Callable[[str], None] = lambda message: None,
) -> list[Ratio]:
  """Times the mixers that call operations of the given families.

  Each mixer is timed in its masked and in its kernelized implementation. The two are timed in
  turns.

  Args:
    families: The families of operations, keys of `FAMILIES` such as "dense".
    tokens: The numbers of tokens, N.
    batches: The batch sizes, B.
    setting: The sizes and dtype of the mixers; its batch size is ignored.
    repeats: The number of rounds of timing. A ratio divides the medians over the rounds.
    minutes: The limit on all timing in minutes, without compilation. Time that one comparison does
      not use is shared by the later comparisons.
    say: A function called with messages on the progress.
  """
  subjects = [Candidate(spec, setting) for spec in SUBJECTS]
  candidates = [(subject, subject.find_family(tokens) or "") for subject in subjects]
  sizes = list(itertools.product(tokens, batches))
  cells = [(mixer, of, *size) for mixer, of in candidates if of in families for size in sizes]
  ratios, remaining = [], 60 * minutes
  for number, (subject, family, n, batch) in enumerate(cells):
    seconds = max(remaining, 0.0) / (len(cells) - number) / len(WAYS)
    try:
      value, spent = subject.compare(n, batch, repeats, seconds)
    except (ConfigError, TooLargeError) as error:
      say(f"{subject.name} N={n} B={batch} skipped: {error}")
      continue
    remaining -= spent
    say(f"{subject.name} N={n} B={batch}: masked over kernelized {value:.2f}")
    ratios.append(Ratio(family, subject.name, n, batch * setting.heads, value))
  return ratios


class Candidate:
  """A mixer that is to be timed in its masked and in its kernelized implementation."""

  def __init__(self, spec: Mapping[str, Any], setting: Setting):
    self.name, self._setting = label(spec), setting
    builder = build(MIXERS, spec, "token_mixer")
    self._make = partial(builder, num_heads=setting.heads, dtype=setting.dtype)
    # One entry is enough: the batch sizes of one N are measured in sequence.
    self._draw = functools.lru_cache(maxsize=1)(
      lambda n: draw_variables(self._make(implementation="kernelized"), n, setting)
    )

  def find_family(self, tokens: Sequence[int]) -> str | None:
    """Finds the family of the operations that the mixer calls, by tracing it.

    Returns:
      The family, or `None` if the mixer has only one path, calls several families, or fits none of
      the numbers of tokens.
    """
    module = self._make()
    if not module.properties.implementations:
      return None
    with choosing_by(KERNELIZED):  # The installed rule has no influence, even if it is damaged.
      picked = [find_choices(module, n, self._setting) or [] for n in tokens]
    families = {choice.family for choices in picked for choice in choices}
    return families.pop() if len(families) == 1 else None

  def compare(self, n: int, batch: int, repeats: int, seconds: float) -> tuple[float, float]:
    """Times the masked and the kernelized implementation of the mixer.

    Args:
      n: The number of tokens, N.
      batch: The batch size, B.
      repeats: The number of rounds of timing.
      seconds: The limit in seconds on the timing of each implementation.

    Returns:
      The masked time divided by the kernelized time, and the seconds spent on timing. The ratio is
      infinite if the masked path does not fit in memory.

    Raises:
      ConfigError: The mixer does not fit N tokens.
      TooLargeError: The kernelized path does not fit in memory.
    """
    setting = dataclasses.replace(self._setting, batch=batch)
    variables, runs = self._draw(n), {}
    for way in WAYS:
      try:
        module = self._make(implementation=way)
        runs[way] = compile_mixer(module, variables, way, n, setting).run
      except TooLargeError:
        if way == "masked":
          return math.inf, 0.0
        raise
    times = interleave(runs, repeats=repeats, seconds=seconds)
    spent = sum(cost.seconds * cost.samples for cost in times.values())
    return times["masked"].seconds / times["kernelized"].seconds, spent


def fit(ratios: Sequence[Ratio]) -> tuple[Bound, ...]:
  """Chooses the sizes (N, B H) up to which "auto" picks "masked", from one family's ratios.

  A ratio is the masked time divided by the kernelized time. The right pick is "masked" for a ratio
  up to `WORTH`. The loss of a wrong pick is |log(ratio / `WORTH`)|; the chosen sizes have the least
  sum of losses over the measurements. A larger N never gets a larger bound on B H, which keeps out
  isolated noise. If "masked" wins at the largest measured B H, B H has no bound.

  Returns:
    The bounds (N, B H) of the rule, see `vitx.ops.rule.Rule`; `None` means no bound on B H.
  """
  tokens = sorted({ratio.tokens for ratio in ratios})
  matrices = sorted({ratio.matrices for ratio in ratios})

  def loss(counts: tuple[int, ...]) -> float:
    """Returns the loss of picking "masked" for the counts[i] smallest values of B H at each N."""
    total = 0.0
    for ratio in ratios:
      gain = -math.log(ratio.value / WORTH)  # The gain of "masked" over "kernelized".
      is_masked = matrices.index(ratio.matrices) < counts[tokens.index(ratio.tokens)]
      total += max(0.0, -gain) if is_masked else max(0.0, gain)
    return total

  falling = itertools.combinations_with_replacement(range(len(matrices), -1, -1), len(tokens))
  best = min(falling, key=lambda counts: (loss(counts), sum(counts)))
  limits: list[int | None] = [*matrices[:-1], None]
  bounds = {
    limits[count - 1]: n for n, count in zip(tokens, best, strict=True) if count
  }  # Among equal limits, the one with the most tokens wins.
  return tuple((n, limit) for limit, n in bounds.items())


def describe(
  ratios: Sequence[Ratio], setting: Setting, repeats: int, neighbors: Neighbors
) -> dict[str, Any]:
  """Returns a JSON record of the measurement of one family of operations.

  The record has the date, the device, the versions of packages, the sizes and the ratios.
  """
  measured: dict[str, dict[str, dict[str, float | None]]] = {}
  for ratio in ratios:
    value = round(ratio.value, 3) if math.isfinite(ratio.value) else None
    row = measured.setdefault(ratio.mixer, {}).setdefault(f"N={ratio.tokens}", {})
    row[f"M={ratio.matrices}"] = value
  return describe_device("jax", "jaxlib", "numpy") | {
    "cores": os.cpu_count(),
    "cores_used_by_others": round(neighbors.cores, 2),
    "dtype": setting.dtype,
    "heads": setting.heads,
    "head_dim": setting.head_dim,
    "rounds": repeats,
    "masked_over_kernelized": measured,
  }


def format_ratios(ratios: Sequence[Ratio], bounds: Mapping[str, Sequence[Bound]]) -> str:
  """Returns the ratios by family, mixer and N, and the resulting bounds, as text."""
  matrices = sorted({ratio.matrices for ratio in ratios})
  lines = [
    "Time of masked over kernelized, forward + backward of the module, by M = B H matrices.",
    f"{'':<32}{''.join(f'{count:>8}' for count in matrices)}",
  ]
  for family, limits in bounds.items():
    lines.append(f"{family}: {_describe_bounds(limits)}")
    members = [ratio for ratio in ratios if ratio.family == family]
    for mixer, n in dict.fromkeys((ratio.mixer, ratio.tokens) for ratio in members):
      row = {r.matrices: r.value for r in members if (r.mixer, r.tokens) == (mixer, n)}
      cells = "".join(f"{row[m]:>8.2f}" if m in row else f"{'-':>8}" for m in matrices)
      lines.append(f"  {mixer:<22}N={n:<6}{cells}")
  return "\n".join(lines)


def _describe_bounds(bounds: Sequence[Bound]) -> str:
  if not bounds:
    return "always kernelized"
  parts = [f"N <= {n} and {'any' if limit is None else f'<= {limit}'} M" for n, limit in bounds]
  return f"masked where {', or '.join(parts)}"
