"""One named example of every kind of pattern, for tests, benchmarks and pictures.

Every example fits a grid of at least 7 x 7, with or without prefix tokens. Patterns in which heads
differ are for four heads.
"""

from vitx.ops.patterns.base import OnGrid, Pattern, cycle, per_head
from vitx.ops.patterns.bigbird_blocks import PARTS, VARIANTS, QueryParts, bigbird
from vitx.ops.patterns.factorized import Fixed, Strided
from vitx.ops.patterns.grid import Axial, Neighborhood, ShiftedWindow
from vitx.ops.patterns.local import Causal, DilatedWindow, Full, Global, Nothing, Others, Window
from vitx.ops.patterns.random_graphs import ErdosRenyi, WattsStrogatz

HEADS = 4
_CLASS = Global(prefix=True)
_BIGBIRD = bigbird(block=8, random=2, heads=HEADS)

PATTERNS: dict[str, Pattern] = {
  "full": Full(),
  "others": Others(),
  "causal": Causal(),
  "attention_free": Nothing(),
  "window": Window(3),
  "window_one_sided": Window(3, 0),
  "window_circular": Window(3, circular=True),
  "window_blocks_circular": Window(1, circular=True, block=4),
  "window_causal": Window(4) & Causal(),
  "window_and_class": Window(3) | _CLASS,
  "dilated_window": DilatedWindow(2, (3,)),
  "dilated_window_per_head": DilatedWindow(2, (1, 1, 2, 5)),
  "dilated_window_causal": DilatedWindow(2, (1, 2), causal=True),
  "global_tokens": Global(tokens=(0, 17, -1)),
  "global_blocks": Global(blocks=(0, -1), block=8),
  "longformer": DilatedWindow(2, (1, 1, 2, 2)) | Global(tokens=(0,)),
  "etc": Window(1, block=8) | _CLASS,
  **{f"bigbird_{v}": bigbird(v, block=8, random=2, heads=HEADS) for v in VARIANTS},
  "bigbird_R_without_self": bigbird("R", block=8, random=2, heads=HEADS, keep_self=False),
  "bigbird_G_without_self": bigbird("G", block=8, keep_self=False),
  "bigbird_published_plan": bigbird(block=4, random=2, heads=HEADS, plan="bigbird"),
  "bigbird_etc": OnGrid(_BIGBIRD) | _CLASS,
  "bigbird_one_draw": bigbird(block=8, random=1, global_blocks=(0,)),
  **{f"bbvit_{part}": _BIGBIRD & QueryParts((part,), 8) for part in PARTS},
  "bbvit_random_global": _BIGBIRD & QueryParts(("random", "global"), 8),
  **{
    f"strided_{part}_{form}": Strided(part=part, form=form)
    for part in ("merged", "local", "column")
    for form in ("paper", "code", "bidirectional", "axial")
  },
  "strided_per_head": per_head(
    Strided(part="local", form="bidirectional"), Strided(part="column", form="bidirectional")
  ),
  "strided_layer_of_cycle": cycle(Strided(part="column"), Strided(part="local")).at(1),
  "fixed_causal": Fixed(7, 2),
  "fixed_bidirectional": Fixed(7, 2, causal=False),
  "fixed_local": Fixed(7, part="local"),
  "fixed_summary": Fixed(7, 2, part="summary", causal=False),
  "fixed_distinct_summaries": Fixed(7, 2, distinct=3),
  "fixed_and_class": Fixed(causal=False) | _CLASS,
  "axial_rows": Axial(-1),
  "axial_columns": Axial(0),
  "axial_per_head": per_head(Axial(-1), Axial(0)) | _CLASS,
  "neighborhood": Neighborhood(3),
  "neighborhood_even": Neighborhood(4),
  "neighborhood_dilated": Neighborhood(3, 2) | _CLASS,
  "shifted_window": ShiftedWindow(4, 2),
  "shifted_window_plain": ShiftedWindow(4) | _CLASS,
  "erdos_renyi": ErdosRenyi(0.1, heads=HEADS),
  "erdos_renyi_symmetric": ErdosRenyi(0.1, symmetric=True, keep_self=False),
  "watts_strogatz": WattsStrogatz(6, 0.3, heads=HEADS),
  "watts_strogatz_kept": WattsStrogatz(4, 0.5, keep_moved=True),
}
