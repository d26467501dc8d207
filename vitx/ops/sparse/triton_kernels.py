"""Block-sparse attention in Triton: one forward kernel and two backward kernels.

A program computes one group of rows, `ROWS` consecutive tokens of one head of one example. It reads
a list of blocks, `BLOCK` consecutive tokens each. In `forward` and `query_gradient` the rows are
queries and the blocks are keys; in `key_gradients` it is the reverse. Every result belongs to one
program and is written once: no result depends on the order in which programs run.

The lists are arrays of integers:

- `order` (G·R,): the groups of rows in the order in which they start, longest list first. Group r
  of head g has the number g·R + r. All heads share one list if G = 1, otherwise G = H.
- `bounds` (G·R, 3): the start of each group's list in `others`, the end of its blocks with a mask,
  and the end of its blocks without one.
- `others`: the blocks of all lists. `numbers`: the mask of each of these blocks.
- `tables` (masks, ROWS, WORDS): the masks in bits. Bit c % 32 of word c // 32 of a row says whether
  the pair of this row and column c of the block is an edge.

q, k, v, the output and the gradients are contiguous (B, N, H, D) or (B, N, H, E); lse and delta are
float32 (B, H, N); `key_mask` is int8 (B, N), or (B, N, H) with `KEY_MASK` = 2, and unused with
`KEY_MASK` = 0. `PAD_*` is a size rounded up to a power of two, and at least 16, as products need.
`RAGGED` says whether tokens or padding may be out of range. Exponentials have base 2. A grid has an
axis for the examples and heads that share a list, and an axis for the lists; or one axis for both,
and `COUNT`, otherwise 0, is the number of programs that share a list.

References: Dao 2023 (FlashAttention-2), algorithms 1 and 2, whose loops here run over lists.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def forward(
  q,
  k,
  v,
  key_mask,
  order,
  bounds,
  others,
  numbers,
  tables,
  out,
  lse,
  SCALE: tl.constexpr,
  N: tl.constexpr,
  H: tl.constexpr,
  G: tl.constexpr,
  R: tl.constexpr,
  COUNT: tl.constexpr,
  D: tl.constexpr,
  E: tl.constexpr,
  ROWS: tl.constexpr,
  BLOCK: tl.constexpr,
  WORDS: tl.constexpr,
  PAD_D: tl.constexpr,
  PAD_E: tl.constexpr,
  PAD_ROWS: tl.constexpr,
  PAD_BLOCK: tl.constexpr,
  RAGGED: tl.constexpr,
  KEY_MASK: tl.constexpr,
  MASKS: tl.constexpr,
  PRECISION: tl.constexpr,
):
  """Computes the output and lse of one group of queries; a query without edges has 0 and -inf."""
  group, batch, head = _place(order, H, G, R, COUNT)
  rows = tl.arange(0, PAD_ROWS)
  queries = (group % R) * ROWS + rows
  inside = (rows < ROWS) & (queries < N)
  first = batch.to(tl.int64) * N * H + head
  own = _load(q + first * D, queries, inside, H * D, D, PAD_D, RAGGED)

  top = tl.full([PAD_ROWS], float("-inf"), tl.float32)
  total = tl.zeros([PAD_ROWS], tl.float32)
  found = tl.zeros([PAD_ROWS, PAD_E], tl.float32)
  start = tl.load(bounds + group * 3)
  middle = tl.load(bounds + group * 3 + 1)
  end = tl.load(bounds + group * 3 + 2)
  for part in tl.static_range(0 if MASKS else 1, 2):
    low = start if part == 0 else middle
    high = middle if part == 0 else end
    for i in range(low, high):
      keys, shown = _block(tl.load(others + i), BLOCK, PAD_BLOCK, N)
      logits = tl.dot(
        own,
        tl.trans(_load(k + first * D, keys, shown, H * D, D, PAD_D, RAGGED)),
        input_precision=PRECISION,
      ) * (SCALE * LOG2_E)
      if RAGGED:
        logits = tl.where(shown[None, :], logits, float("-inf"))
      if KEY_MASK:
        seen = _seen(key_mask, batch, head, keys, shown, N, H, KEY_MASK)
        logits = tl.where(seen[None, :], logits, float("-inf"))
      if part == 0:
        edges = _edges(tables, tl.load(numbers + i), rows, ROWS, WORDS, PAD_BLOCK)
        logits = tl.where(edges, logits, float("-inf"))
      higher = tl.maximum(top, tl.max(logits, 1))
      # A row that has seen nothing keeps the maximum -inf; subtracting 0 there avoids inf - inf.
      base = tl.where(higher == float("-inf"), 0.0, higher)
      weights = tl.exp2(logits - base[:, None])
      fade = tl.exp2(top - base)
      total = total * fade + tl.sum(weights, 1)
      values = _load(v + first * E, keys, shown, H * E, E, PAD_E, RAGGED)
      found = found * fade[:, None]
      found = tl.dot(weights.to(values.dtype), values, found, input_precision=PRECISION)
      top = higher

  empty = total == 0.0
  divisor = tl.where(empty, 1.0, total)
  log = tl.where(empty, float("-inf"), (top + tl.log2(divisor)) / LOG2_E)
  _store(out + first * E, found / divisor[:, None], queries, inside, H * E, E, PAD_E)
  tl.store(lse + (batch * H + head).to(tl.int64) * N + queries, log, mask=inside)


@triton.jit
def query_gradient(
  q,
  k,
  v,
  key_mask,
  d_out,
  lse,
  delta,
  order,
  bounds,
  others,
  numbers,
  tables,
  dq,
  SCALE: tl.constexpr,
  N: tl.constexpr,
  H: tl.constexpr,
  G: tl.constexpr,
  R: tl.constexpr,
  COUNT: tl.constexpr,
  D: tl.constexpr,
  E: tl.constexpr,
  ROWS: tl.constexpr,
  BLOCK: tl.constexpr,
  WORDS: tl.constexpr,
  PAD_D: tl.constexpr,
  PAD_E: tl.constexpr,
  PAD_ROWS: tl.constexpr,
  PAD_BLOCK: tl.constexpr,
  RAGGED: tl.constexpr,
  KEY_MASK: tl.constexpr,
  MASKS: tl.constexpr,
  PRECISION: tl.constexpr,
):
  """Computes the gradient of one group of queries; `lse` is +inf for queries without edges."""
  group, batch, head = _place(order, H, G, R, COUNT)
  rows = tl.arange(0, PAD_ROWS)
  queries = (group % R) * ROWS + rows
  inside = (rows < ROWS) & (queries < N)
  first = batch.to(tl.int64) * N * H + head
  own = _load(q + first * D, queries, inside, H * D, D, PAD_D, RAGGED)
  own_d_out = _load(d_out + first * E, queries, inside, H * E, E, PAD_E, RAGGED)
  place = (batch * H + head).to(tl.int64) * N + queries
  own_lse = tl.load(lse + place, mask=inside, other=float("inf")) * LOG2_E
  own_delta = tl.load(delta + place, mask=inside, other=0.0)

  found = tl.zeros([PAD_ROWS, PAD_D], tl.float32)
  start = tl.load(bounds + group * 3)
  middle = tl.load(bounds + group * 3 + 1)
  end = tl.load(bounds + group * 3 + 2)
  for part in tl.static_range(0 if MASKS else 1, 2):
    low = start if part == 0 else middle
    high = middle if part == 0 else end
    for i in range(low, high):
      keys, shown = _block(tl.load(others + i), BLOCK, PAD_BLOCK, N)
      block = _load(k + first * D, keys, shown, H * D, D, PAD_D, RAGGED)
      logits = tl.dot(own, tl.trans(block), input_precision=PRECISION) * (SCALE * LOG2_E)
      weights = tl.exp2(logits - own_lse[:, None])
      if RAGGED:
        weights = tl.where(shown[None, :], weights, 0.0)
      if KEY_MASK:
        seen = _seen(key_mask, batch, head, keys, shown, N, H, KEY_MASK)
        weights = tl.where(seen[None, :], weights, 0.0)
      if part == 0:
        edges = _edges(tables, tl.load(numbers + i), rows, ROWS, WORDS, PAD_BLOCK)
        weights = tl.where(edges, weights, 0.0)
      values = _load(v + first * E, keys, shown, H * E, E, PAD_E, RAGGED)
      products = tl.dot(own_d_out, tl.trans(values), input_precision=PRECISION)
      d_logits = weights * (products - own_delta[:, None])
      found = tl.dot(d_logits.to(block.dtype), block, found, input_precision=PRECISION)

  _store(dq + first * D, found * SCALE, queries, inside, H * D, D, PAD_D)


@triton.jit
def key_gradients(
  q,
  k,
  v,
  key_mask,
  d_out,
  lse,
  delta,
  order,
  bounds,
  others,
  numbers,
  tables,
  dk,
  dv,
  SCALE: tl.constexpr,
  N: tl.constexpr,
  H: tl.constexpr,
  G: tl.constexpr,
  R: tl.constexpr,
  COUNT: tl.constexpr,
  D: tl.constexpr,
  E: tl.constexpr,
  ROWS: tl.constexpr,
  BLOCK: tl.constexpr,
  WORDS: tl.constexpr,
  PAD_D: tl.constexpr,
  PAD_E: tl.constexpr,
  PAD_ROWS: tl.constexpr,
  PAD_BLOCK: tl.constexpr,
  RAGGED: tl.constexpr,
  KEY_MASK: tl.constexpr,
  MASKS: tl.constexpr,
  PRECISION: tl.constexpr,
):
  """Computes the gradients of one group of keys and their values from the queries that see them."""
  group, batch, head = _place(order, H, G, R, COUNT)
  rows = tl.arange(0, PAD_ROWS)
  keys = (group % R) * ROWS + rows
  inside = (rows < ROWS) & (keys < N)
  first = batch.to(tl.int64) * N * H + head
  own = _load(k + first * D, keys, inside, H * D, D, PAD_D, RAGGED)
  values = _load(v + first * E, keys, inside, H * E, E, PAD_E, RAGGED)
  if KEY_MASK:
    seen = _seen(key_mask, batch, head, keys, inside, N, H, KEY_MASK)
  place = (batch * H + head).to(tl.int64) * N

  found_k = tl.zeros([PAD_ROWS, PAD_D], tl.float32)
  found_v = tl.zeros([PAD_ROWS, PAD_E], tl.float32)
  start = tl.load(bounds + group * 3)
  middle = tl.load(bounds + group * 3 + 1)
  end = tl.load(bounds + group * 3 + 2)
  for part in tl.static_range(0 if MASKS else 1, 2):
    low = start if part == 0 else middle
    high = middle if part == 0 else end
    for i in range(low, high):
      queries, shown = _block(tl.load(others + i), BLOCK, PAD_BLOCK, N)
      block = _load(q + first * D, queries, shown, H * D, D, PAD_D, RAGGED)
      block_lse = tl.load(lse + place + queries, mask=shown, other=float("inf")) * LOG2_E
      block_delta = tl.load(delta + place + queries, mask=shown, other=0.0)
      logits = tl.dot(own, tl.trans(block), input_precision=PRECISION) * (SCALE * LOG2_E)
      weights = tl.exp2(logits - block_lse[None, :])
      if KEY_MASK:
        weights = tl.where(seen[:, None], weights, 0.0)
      if part == 0:
        edges = _edges(tables, tl.load(numbers + i), rows, ROWS, WORDS, PAD_BLOCK)
        weights = tl.where(edges, weights, 0.0)
      gradients = _load(d_out + first * E, queries, shown, H * E, E, PAD_E, RAGGED)
      found_v = tl.dot(weights.to(gradients.dtype), gradients, found_v, input_precision=PRECISION)
      products = tl.dot(values, tl.trans(gradients), input_precision=PRECISION)
      d_logits = weights * (products - block_delta[None, :])
      found_k = tl.dot(d_logits.to(block.dtype), block, found_k, input_precision=PRECISION)

  _store(dk + first * D, found_k * SCALE, keys, inside, H * D, D, PAD_D)
  _store(dv + first * E, found_v, keys, inside, H * E, E, PAD_E)


@triton.jit
def _place(order, H: tl.constexpr, G: tl.constexpr, R: tl.constexpr, COUNT: tl.constexpr):
  """Returns the group of rows, the example and the head of this program."""
  sharing = H // G  # the number of heads that share a list
  if COUNT:
    group = tl.load(order + tl.program_id(0) // COUNT)
    number = tl.program_id(0) % COUNT
  else:
    group = tl.load(order + tl.program_id(1))
    number = tl.program_id(0)
  return group, number // sharing, (group // R) * sharing + number % sharing


@triton.jit
def _block(number, BLOCK: tl.constexpr, PAD_BLOCK: tl.constexpr, N: tl.constexpr):
  """Returns the tokens of a block and whether they are in range, (PAD_BLOCK,) each."""
  columns = tl.arange(0, PAD_BLOCK)
  tokens = number * BLOCK + columns
  return tokens, (columns < BLOCK) & (tokens < N)


@triton.jit
def _load(
  start,
  tokens,
  inside,
  STRIDE: tl.constexpr,
  WIDTH: tl.constexpr,
  PAD_WIDTH: tl.constexpr,
  RAGGED: tl.constexpr,
):
  """Loads the channels of tokens, (tokens, PAD_WIDTH); what is out of range is 0."""
  channels = tl.arange(0, PAD_WIDTH)
  places = start + tokens[:, None] * STRIDE + channels[None, :]
  if RAGGED:
    return tl.load(places, mask=inside[:, None] & (channels < WIDTH)[None, :], other=0.0)
  if WIDTH != PAD_WIDTH:
    return tl.load(places, mask=(channels < WIDTH)[None, :], other=0.0)
  return tl.load(places)


@triton.jit
def _store(
  start,
  found,
  tokens,
  inside,
  STRIDE: tl.constexpr,
  WIDTH: tl.constexpr,
  PAD_WIDTH: tl.constexpr,
):
  """Stores the channels of the tokens that are in range."""
  channels = tl.arange(0, PAD_WIDTH)
  places = start + tokens[:, None] * STRIDE + channels[None, :]
  mask = inside[:, None] & (channels < WIDTH)[None, :]
  tl.store(places, found.to(start.dtype.element_ty), mask=mask)


@triton.jit
def _seen(
  key_mask,
  batch,
  head,
  keys,
  inside,
  N: tl.constexpr,
  H: tl.constexpr,
  KEY_MASK: tl.constexpr,
):
  """Returns whether keys may be attended, (keys,)."""
  if KEY_MASK == 1:
    places = key_mask + batch.to(tl.int64) * N + keys
  else:
    places = key_mask + (batch.to(tl.int64) * N + keys) * H + head
  return tl.load(places, mask=inside, other=0) != 0


@triton.jit
def _edges(
  tables,
  number,
  rows,
  ROWS: tl.constexpr,
  WORDS: tl.constexpr,
  PAD_BLOCK: tl.constexpr,
):
  """Returns a block's mask, (rows, PAD_BLOCK), from one word of bits for 32 columns of each row."""
  columns = tl.arange(0, PAD_BLOCK)
  words = tables + (number.to(tl.int64) * ROWS + rows) * WORDS
  bits = tl.load(words, mask=rows < ROWS, other=0)[:, None] >> (columns % 32)[None, :]
  for i in tl.static_range(1, WORDS):
    more = tl.load(words + i, mask=rows < ROWS, other=0)[:, None] >> (columns % 32)[None, :]
    bits = tl.where((columns // 32 == i)[None, :], more, bits)
  return (bits & 1) != 0
