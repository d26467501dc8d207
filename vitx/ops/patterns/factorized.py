"""The factorized patterns of the Sparse Transformer (Child et al. 2019, section 4.3).

Positions number the grid tokens in raster order. A class token has no position; add the pattern
`Global` to give it edges. Each pattern has two sets of keys for a query, which the paper calls A1
and A2. A step along A1 and a step along A2 together connect distant positions. One head may attend
both sets ("merged"), or the sets are divided among heads (`per_head`) or layers (`cycle`).
"""

import dataclasses
import math
from typing import Any

import numpy as np

from vitx.config.checks import check_choice
from vitx.config.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns.base import Pattern
from vitx.ops.patterns.indices import (
  Blocks,
  Index,
  blocks_between,
  blocks_of,
  blocks_of_runs,
  distinct,
  in_grid,
)
from vitx.ops.patterns.parts import Part, as_order

FORMS = ("paper", "code", "bidirectional", "axial")


def _stride(stride: int | None, layout: TokenLayout) -> int:
  """Returns the stride; `None` means the tokens of a row, of which an image (h, w, c) has w c."""
  if stride is not None:
    return stride
  return math.prod(layout.grid[1:]) if len(layout.grid) > 1 else layout.grid[0]


@dataclasses.dataclass(frozen=True)
class Strided(Pattern):
  """The strided pattern: a query attends the last l positions, and every l-th position.

  The paper calls the last l positions A1, and every l-th position, the query's column, A2.

  Attributes:
    stride: The stride l; `None` for the number of tokens in a row of the grid.
    part: The keys to attend: "merged", "local" (A1) or "column" (A2).
    form: The form of A1 for query i. "paper" is causal with the l + 1 keys {i-l ... i}. "code" is
      causal with the l keys of OpenAI's release, {i-l+1 ... i}. "bidirectional" has the keys j with
      |i-j| < l. "axial" has the query's own row of l positions, earlier and later ones.
  """

  on_grid = True

  stride: int | None = None
  part: str = "merged"
  form: str = "paper"

  def __post_init__(self):
    check_choice(self.part, "Strided.part", ("merged", "local", "column"))
    check_choice(self.form, "Strided.form", FORMS)
    if self.stride is not None and self.stride < 1:
      raise ConfigError(f"Strided.stride={self.stride} must be at least 1.")

  @property
  def causal(self) -> bool:
    """Returns whether a query attends only keys up to its own position."""
    return self.form in ("paper", "code")

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    l = _stride(self.stride, layout)  # noqa: E741, the paper's letter
    i, j = q - layout.prefix, k - layout.prefix
    column = (i - j) % l == 0
    if self.form == "axial":
      local = i // l == j // l
    else:
      reach = l if self.form == "paper" else l - 1
      local = (i - j <= reach) & (j - i <= reach)
    edges = {"merged": local | column, "local": local, "column": column}[self.part]
    edges = edges & in_grid(layout, q, k)
    return edges & (k <= q) if self.causal else edges

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    l, N = _stride(self.stride, layout), layout.length  # noqa: E741
    first = max(first, layout.prefix)
    end = last if self.causal else N - 1
    parts = []
    if self.part != "column":
      # The reach is at most l; an axial row begins up to l - 1 before and ends up to l - 1 after.
      parts.append(blocks_between(max(first - l, layout.prefix), min(last + l, end), block, N))
    if self.part != "local":
      if l <= block:
        parts.append(blocks_between(layout.prefix, end, block, N))
      else:
        shifts = np.arange(-(-(first - N) // l) - 1, last // l + 2) * l
        parts.append(blocks_of_runs(first - shifts, last - shifts, block, N))
    blocks = distinct(parts)
    return blocks[blocks <= end // block]

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    l, parts = _stride(self.stride, layout), []  # noqa: E741
    if layout.prefix or l > layout.length:  # columns of one token would pad the sequence to l
      return super().split(layout, tile)
    if self.part != "local":
      # If the N positions are arranged in rows of l, "every l-th position" is a column.
      rows = -(-layout.length // l)
      order = as_order(np.arange(rows * l).reshape(rows, l).T.ravel(), layout.length)
      column = dataclasses.replace(self, part="column")
      parts.append(Part(column, "block_diagonal", rows, order, self.causal))
    if self.part != "column":
      local = dataclasses.replace(self, stride=l, part="local")
      if (self.part, self.form) == ("local", "axial"):
        parts.append(Part(local, "block_diagonal", l))
      else:
        edges = _OffColumn(local) if self.part == "merged" else local
        parts.append(Part(edges, "block_sparse", self._block(l)))
    return tuple(parts)

  def _block(self, stride: int) -> int:
    if self.form == "axial" and 16 <= stride <= 128:
      return stride  # a row is then one block
    # A window of l covers l/b + 1 blocks: small blocks waste less, large ones multiply faster.
    return next((b for b in (64, 32) if 2 * b <= stride), 16)


@dataclasses.dataclass(frozen=True)
class _OffColumn(Pattern):
  """The "local" part of `Strided` without the keys that are also in its "column" part."""

  local: Strided

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    return self.local.allows(layout, q, k, head) & ((q - k) % self.local.stride != 0)

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    return self.local.candidates(layout, first, last, block, head)


@dataclasses.dataclass(frozen=True)
class Fixed(Pattern):
  """The fixed pattern: a query attends its own run of l positions, and a summary of every run.

  The paper calls the query's own run A1, and the c summary positions of each run A2.

  Attributes:
    stride: The length l of a run; `None` for the number of tokens in a row of the grid.
    summary: The number c of positions that carry a run's summary, the last of the run for head 0.
    part: The keys to attend: "merged", "local" (A1) or "summary" (A2).
    causal: Whether a query attends only keys up to its own position, as published. If `False`, it
      attends later keys too, such as the summaries of later runs.
    distinct: The number of different summaries of a run, counted from its end: head h reads summary
      h mod `distinct`, as the paper found best. With 1, all heads read the last c positions.
  """

  on_grid = True

  stride: int | None = None
  summary: int = 1
  part: str = "merged"
  causal: bool = True
  distinct: int = 1

  def __post_init__(self):
    check_choice(self.part, "Fixed.part", ("merged", "local", "summary"))

  @property
  def head_period(self) -> int:
    return 1 if self.part == "local" else self.distinct

  def _runs(self, layout: TokenLayout) -> int:
    l = _stride(self.stride, layout)  # noqa: E741
    if not 1 <= self.summary * self.distinct <= l:
      raise ConfigError(f"{self}: summary * distinct must be in 1 ... {l}, the stride.")
    return l

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    l, c = self._runs(layout), self.summary  # noqa: E741
    i, j = q - layout.prefix, k - layout.prefix
    local = i // l == j // l
    end = l - (head % self.distinct) * c
    summary = (j % l >= end - c) & (j % l < end)
    edges = {"merged": local | summary, "local": local, "summary": summary}[self.part]
    edges = edges & in_grid(layout, q, k)
    return edges & (k <= q) if self.causal else edges

  def candidates(self, layout: TokenLayout, first: int, last: int, block: int, head: int) -> Blocks:
    l, N, start = self._runs(layout), layout.length, layout.prefix  # noqa: E741
    end = last if self.causal else N - 1
    parts = []
    if self.part != "summary":
      low, high = (max(first, start) - start) // l * l, ((last - start) // l + 1) * l - 1
      parts.append(blocks_between(start + low, min(start + high, end), block, N))
    if self.part != "local":
      run_ends = np.arange(0, N - start, l) + l - (head % self.distinct) * self.summary + start
      columns = run_ends[:, None] - 1 - np.arange(self.summary)
      parts.append(blocks_of(columns[columns <= end], block, N))
    return distinct(parts)

  def split(self, layout: TokenLayout, tile: int) -> tuple[Part, ...]:
    if layout.prefix or not (self.causal or self.part == "local"):
      return super().split(layout, tile)
    l = self._runs(layout)  # noqa: E741
    local = dataclasses.replace(self, part="local")
    if self.part == "summary":  # in its own run a query sees the summary up to itself
      local_part = Part(self & local, "block_sparse", tile)
    else:
      local_part = Part(local, "block_diagonal", l, causal=self.causal)
    if self.part == "local" or layout.length <= l:
      return (local_part,)
    return local_part, Part(EarlierSummaries(self), "summaries", l, causal=True)


@dataclasses.dataclass(frozen=True)
class EarlierSummaries(Pattern):
  """The edges of a `Fixed` pattern to the summaries of all runs before a query's own run.

  All queries of a run have equal edges.

  Attributes:
    fixed: The pattern that defines the runs and their summaries.
  """

  fixed: Fixed

  @property
  def head_period(self) -> int:
    return self.fixed.distinct

  def allows(self, layout: TokenLayout, q: Index, k: Index, head: Index = 0) -> Any:
    l = _stride(self.fixed.stride, layout)  # noqa: E741, the paper's letter
    summary = dataclasses.replace(self.fixed, part="summary")
    return summary.allows(layout, q, k, head) & (k // l < q // l)
