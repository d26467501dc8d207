"""The definition of each example pattern, written for one pair of tokens at a time.

A definition is a function (query, key, head, layout) -> bool in plain Python.
"""

import functools

import numpy as np

from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import PATTERNS, RandomBlocks


def token(layout, index):
  """Returns (position, row, column) of a token; all are `None` for a prefix token."""
  if index < layout.prefix:
    return None, None, None
  position = index - layout.prefix
  return position, position // layout.grid[1], position % layout.grid[1]


def over_positions(rule):
  """Makes a definition from a rule over grid positions: rule(i, j, head, layout)."""

  def definition(q, k, head, layout):
    i, j = token(layout, q)[0], token(layout, k)[0]
    return i is not None and j is not None and rule(i, j, head, layout)

  return definition


def over_grid(rule):
  """Makes a definition from a rule over coordinates: rule((row, column), (row, column), layout)."""

  def definition(q, k, head, layout):
    if q < layout.prefix or k < layout.prefix:
      return False
    return rule(token(layout, q)[1:], token(layout, k)[1:], layout)

  return definition


def classes(q, k, head, layout):
  return q < layout.prefix or k < layout.prefix


def without_prefix(rule):
  """Makes a definition from a rule over the tokens of a grid without prefix tokens."""

  def definition(q, k, head, layout):
    P = layout.prefix
    return q >= P and k >= P and rule(q - P, k - P, head, TokenLayout(layout.grid))

  return definition


def either(*rules):
  return lambda *where: any(rule(*where) for rule in rules)


def both(*rules):
  return lambda *where: all(rule(*where) for rule in rules)


def causal(q, k, head, layout):
  return k <= q


def window(left, right):
  return over_positions(lambda i, j, head, layout: i - left <= j <= i + right)


def ring(i, j, head, layout):
  n = layout.length - layout.prefix
  return any((i + shift) % n == j for shift in range(-3, 4))


def ring_of_blocks(i, j, head, layout):
  m = -(-(layout.length - layout.prefix) // 4)
  return any((i // 4 + shift) % m == j // 4 for shift in (-1, 0, 1))


def dilated(dilations, past=False):
  def rule(i, j, head, layout):
    keys = {i + dilations[head % len(dilations)] * t for t in range(-2, 1 if past else 3)}
    return j in keys

  return over_positions(rule)


def tokens(*indices):
  def rule(q, k, head, layout):
    chosen = {index % layout.length for index in indices}
    return q in chosen or k in chosen

  return rule


def last_block(layout, block):
  return -(-layout.length // block) - 1


def same_block(block):
  return lambda q, k, head, layout: q // block == k // block


def block_window(block):
  return lambda q, k, head, layout: abs(q // block - k // block) <= 1


def block_ends(block):
  def rule(q, k, head, layout):
    ends = {0, last_block(layout, block)}
    return q // block in ends or k // block in ends

  return rule


def random_blocks(name):
  """Defines random blocks by the drawn table; test_patterns_draws.py tests the draw itself."""
  pattern = PATTERNS[name]
  (random,) = [part for part in pattern.patterns if isinstance(part, RandomBlocks)]

  def rule(q, k, head, layout):
    row = random.indices(layout)[head % random.heads][q // random.block]
    return k // random.block in [int(key) for key in row]

  return rule


def strided(part, form):
  def rule(i, j, head, layout):
    l = layout.grid[1]  # noqa: E741
    first = {
      "paper": range(max(0, i - l), i + 1),
      "code": range(max(0, i - l + 1), i + 1),
      "bidirectional": range(i - l + 1, i + l),
      "axial": range(i - i % l, i - i % l + l),
    }[form]
    ahead = form in ("bidirectional", "axial") or j <= i
    return (part != "column" and j in first) or (part != "local" and ahead and i % l == j % l)

  return over_positions(rule)


def fixed(l, c, part="merged", past=True, distinct=1):  # noqa: E741
  def rule(i, j, head, layout):
    run = l or layout.grid[1]
    end = run - (head % distinct) * c
    local = i // run == j // run and part != "summary"
    summary = j % run in range(end - c, end) and part != "local"
    return (local or summary) and (j <= i or not past)

  return over_positions(rule)


def neighbors(size, dilation):
  """Defines neighborhoods: along each axis, `size` keys in a row, at distances of `dilation`."""

  def axis(i, extent):
    line = list(range(i % dilation, extent, dilation))
    place = line.index(i)
    start = min(max(place - size // 2, 0), len(line) - size)
    return line[start : start + size]

  return over_grid(
    lambda a, b, layout: all(
      y in axis(x, extent) for x, y, extent in zip(a, b, layout.grid, strict=True)
    )
  )


def boxes(size, shift):
  """Defines shifted windows: every axis is cut at shift, shift + size, ..., and nothing wraps."""

  def box(x):
    return sum(x >= cut for cut in range(shift, 100, size))

  return over_grid(lambda a, b, layout: all(box(x) == box(y) for x, y in zip(a, b, strict=True)))


def along(axis):
  return over_grid(lambda a, b, layout: a[1 - axis % 2] == b[1 - axis % 2])


def watts_strogatz(name):
  pattern = PATTERNS[name]

  def rule(q, k, head, layout):
    links = pattern.targets(layout)[head % pattern.heads]
    return q == k or k in list(links[q]) or q in list(links[k])

  return rule


def erdos_renyi(name):
  """Defines random edges by the pattern itself; test_patterns_draws.py tests their frequencies."""
  pattern = PATTERNS[name]

  @functools.cache
  def row(q, head, layout):
    keys = np.arange(layout.length)
    pairs = (np.minimum(q, keys), np.maximum(q, keys)) if pattern.symmetric else (q, keys)
    return pattern.allows(layout, *pairs, head % pattern.heads).tolist()

  def rule(q, k, head, layout):
    return pattern.keep_self if q == k else row(q, head, layout)[k]

  return rule


def parts_of(*rows):
  def rule(q, k, head, layout):
    row, last = q // 8, last_block(layout, 8)
    return ("first" if row == 0 else "last" if row == last else "middle") in rows

  return rule


W, G, OWN = block_window(8), block_ends(8), same_block(8)
BIGBIRD = either(W, G, random_blocks("bigbird_R+W+G"))
DEFINITIONS = {
  "full": lambda q, k, head, layout: True,
  "causal": causal,
  "others": lambda q, k, head, layout: q != k,
  "attention_free": lambda q, k, head, layout: False,
  "window": window(3, 3),
  "window_one_sided": window(3, 0),
  "window_circular": over_positions(ring),
  "window_blocks_circular": over_positions(ring_of_blocks),
  "window_causal": both(window(4, 4), causal),
  "window_and_class": either(window(3, 3), classes),
  "dilated_window": dilated((3,)),
  "dilated_window_per_head": dilated((1, 1, 2, 5)),
  "dilated_window_causal": dilated((1, 2), past=True),
  "global_tokens": tokens(0, 17, -1),
  "global_blocks": G,
  "longformer": either(dilated((1, 1, 2, 2)), tokens(0)),
  "etc": either(over_positions(lambda i, j, h, layout: abs(i // 8 - j // 8) <= 1), classes),
  "bigbird_R": either(OWN, random_blocks("bigbird_R")),
  "bigbird_W": W,
  "bigbird_G": either(OWN, G),
  "bigbird_R+W": either(W, random_blocks("bigbird_R+W")),
  "bigbird_W+G": either(W, G),
  "bigbird_R+G": either(OWN, G, random_blocks("bigbird_R+G")),
  "bigbird_R+W+G": BIGBIRD,
  "bigbird_R_without_self": random_blocks("bigbird_R_without_self"),
  "bigbird_G_without_self": G,
  "bigbird_published_plan": either(
    block_window(4), block_ends(4), random_blocks("bigbird_published_plan")
  ),
  "bigbird_one_draw": either(W, tokens(*range(8)), random_blocks("bigbird_one_draw")),
  "bigbird_etc": either(without_prefix(BIGBIRD), classes),
  "bbvit_random": both(BIGBIRD, parts_of("first")),
  "bbvit_window": both(BIGBIRD, parts_of("middle")),
  "bbvit_global": both(BIGBIRD, parts_of("last")),
  "bbvit_random_global": both(BIGBIRD, parts_of("first", "last")),
  **{
    f"strided_{part}_{form}": strided(part, form)
    for part in ("merged", "local", "column")
    for form in ("paper", "code", "bidirectional", "axial")
  },
  "strided_per_head": lambda q, k, head, layout: strided(
    ("local", "column")[head % 2], "bidirectional"
  )(q, k, head, layout),
  "strided_layer_of_cycle": strided("local", "paper"),
  "fixed_causal": fixed(7, 2),
  "fixed_bidirectional": fixed(7, 2, past=False),
  "fixed_local": fixed(7, 1, "local"),
  "fixed_summary": fixed(7, 2, "summary", past=False),
  "fixed_distinct_summaries": fixed(7, 2, distinct=3),
  "fixed_and_class": either(fixed(None, 1, past=False), classes),
  "axial_rows": along(-1),
  "axial_columns": along(0),
  "axial_per_head": either(
    lambda q, k, head, layout: along((-1, 0)[head % 2])(q, k, head, layout), classes
  ),
  "neighborhood": neighbors(3, 1),
  "neighborhood_even": neighbors(4, 1),
  "neighborhood_dilated": either(neighbors(3, 2), classes),
  "shifted_window": boxes(4, 2),
  "shifted_window_plain": either(boxes(4, 0), classes),
  "erdos_renyi": erdos_renyi("erdos_renyi"),
  "erdos_renyi_symmetric": erdos_renyi("erdos_renyi_symmetric"),
  "watts_strogatz": watts_strogatz("watts_strogatz"),
  "watts_strogatz_kept": watts_strogatz("watts_strogatz_kept"),
}
