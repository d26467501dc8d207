"""Attention patterns: sets of edges (query, key) over tokens, and their algebra.

`PATTERNS` contains a named example of every kind of pattern. Tests iterate over it, so that every
kind is tested.
"""

from vitx.ops.patterns.base import (
  Combination,
  Cycle,
  Intersection,
  OnGrid,
  Pattern,
  PerHead,
  Union,
  cycle,
  per_head,
)
from vitx.ops.patterns.bigbird_blocks import GivenBlocks, QueryParts, RandomBlocks, bigbird
from vitx.ops.patterns.bigbird_draws import draw
from vitx.ops.patterns.examples import PATTERNS
from vitx.ops.patterns.factorized import Fixed, Strided
from vitx.ops.patterns.function import MaskFunction
from vitx.ops.patterns.grid import Axial, Neighborhood, ShiftedWindow
from vitx.ops.patterns.indices import coordinates, in_grid
from vitx.ops.patterns.local import Causal, DilatedWindow, Full, Global, Nothing, Others, Window
from vitx.ops.patterns.parts import Order, Part
from vitx.ops.patterns.random_graphs import ErdosRenyi, WattsStrogatz
from vitx.ops.patterns.redraw import redraw_blocks

__all__ = [
  "PATTERNS",
  "Axial",
  "Causal",
  "Combination",
  "Cycle",
  "DilatedWindow",
  "ErdosRenyi",
  "Fixed",
  "Full",
  "GivenBlocks",
  "Global",
  "Intersection",
  "MaskFunction",
  "Neighborhood",
  "Nothing",
  "OnGrid",
  "Order",
  "Others",
  "Part",
  "Pattern",
  "PerHead",
  "QueryParts",
  "RandomBlocks",
  "ShiftedWindow",
  "Strided",
  "Union",
  "WattsStrogatz",
  "Window",
  "bigbird",
  "coordinates",
  "cycle",
  "draw",
  "in_grid",
  "per_head",
  "redraw_blocks",
]
