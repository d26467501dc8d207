"""Block-sparse attention in Triton: one forward kernel and two backward kernels.

A program computes one group of rows: consecutive tokens of one head of one example. It reads a list
of blocks. In `forward` and `query_gradient` the rows are queries and the blocks are keys; in
`key_gradients` it is the reverse. Every result belongs to one program and is written once: no
result depends on the order in which programs run.

The lists are arrays of integers:

- `order` (G·R,): the groups of rows in the order in which they start, longest list first. Group r
  of head g has the number g·R + r. All heads share one list if G = 1, otherwise G = H.
- `bounds` (G·R, 3): the start of each group's list in `others`, the end of its blocks with a mask,
  and the end of its blocks without one.
- `others`: the blocks of all lists. `numbers`: the index in `tables` of the mask of each of them.
- `tables` (masks, rows, words): the masks in bits. Bit c % 32 of word c // 32 of a row says whether
  the pair of this row and column c of the block is an edge.

q, k, v, the output and the gradients are contiguous (B, N, H, D) or (B, N, H, E); lse and delta are
float32 (B, H, N); `key_mask` is int8 (B, N) or (B, N, H). `sizes` is a
`triton_attention.KernelSizes`. Exponentials have base 2. A grid has an axis for the examples and
heads that share a list, and an axis for the lists; or one axis for both.

References: Dao 2023 (FlashAttention-2), algorithms 1 and 2, whose loops here run over lists.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# A mantissa in [1, 2) has 10 bits in TF32, and 1 / ln 2 is its mean if its log is uniform.
HALF_A_BIT = tl.constexpr(1 + 2**-11 * 0.6931471805599453)


@triton.jit
def forward(
  q, k, v, key_mask, order, bounds, others, numbers, tables, out, lse, sizes: tl.constexpr
):
  """Computes the output and lse of one group of queries; a query without edges has 0 and -inf."""
  scale: tl.constexpr = sizes.scale * LOG2_E
  group, batch, head, first = _place(order, sizes)
  rows = tl.arange(0, sizes.pad_rows)
  queries = (group % sizes.R) * sizes.rows + rows
  inside = (rows < sizes.rows) & (queries < sizes.N)
  q_rows = _compensate(_load(q, first, queries, inside, sizes.D, sizes.pad_d, sizes), sizes)

  top = tl.full([sizes.pad_rows], float("-inf"), tl.float32)
  total = tl.zeros([sizes.pad_rows], tl.float32)
  sums = tl.zeros([sizes.pad_rows, sizes.pad_e], tl.float32)
  for part in tl.static_range(0 if sizes.masks else 1, 2):
    limits = bounds + group * 3 + part
    for i in range(tl.load(limits), tl.load(limits + 1)):
      keys, shown = _block(tl.load(others + i), sizes)
      block = _load(k, first, keys, shown, sizes.D, sizes.pad_d, sizes)
      logits = tl.dot(q_rows, tl.trans(block), input_precision=sizes.precision) * scale
      if sizes.ragged:
        logits = tl.where(shown[None, :], logits, float("-inf"))
      if sizes.key_mask:
        seen = _seen(key_mask, batch, head, keys, shown, sizes)
        logits = tl.where(seen[None, :], logits, float("-inf"))
      if part == 0:
        edges = _edges(tables, tl.load(numbers + i), rows, sizes)
        logits = tl.where(edges, logits, float("-inf"))
      higher = tl.maximum(top, tl.max(logits, 1))
      # A row that has seen nothing keeps the maximum -inf; subtracting 0 there avoids inf - inf.
      base = tl.where(higher == float("-inf"), 0.0, higher)
      weights = tl.exp2(logits - base[:, None])
      fade = tl.exp2(top - base)
      total = total * fade + tl.sum(weights, 1)
      values = _load(v, first, keys, shown, sizes.E, sizes.pad_e, sizes)
      sums = sums * fade[:, None]
      weights = _compensate(weights.to(values.dtype), sizes)
      sums = tl.dot(weights, values, sums, input_precision=sizes.precision)
      top = higher

  empty = total == 0.0
  divisor = tl.where(empty, 1.0, total)
  log = tl.where(empty, float("-inf"), (top + tl.log2(divisor)) / LOG2_E)
  _store(out, first, sums / divisor[:, None], queries, inside, sizes.E, sizes)
  tl.store(lse + (batch * sizes.H + head).to(tl.int64) * sizes.N + queries, log, mask=inside)


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
  sizes: tl.constexpr,
):
  """Computes the gradient of one group of queries; `lse` is +inf for queries without edges."""
  scale: tl.constexpr = sizes.scale * LOG2_E
  group, batch, head, first = _place(order, sizes)
  rows = tl.arange(0, sizes.pad_rows)
  queries = (group % sizes.R) * sizes.rows + rows
  inside = (rows < sizes.rows) & (queries < sizes.N)
  q_rows = _compensate(_load(q, first, queries, inside, sizes.D, sizes.pad_d, sizes), sizes)
  d_out_rows = _compensate(_load(d_out, first, queries, inside, sizes.E, sizes.pad_e, sizes), sizes)
  place = (batch * sizes.H + head).to(tl.int64) * sizes.N + queries
  lse_rows = tl.load(lse + place, mask=inside, other=float("inf")) * LOG2_E
  delta_rows = tl.load(delta + place, mask=inside, other=0.0)

  gradient = tl.zeros([sizes.pad_rows, sizes.pad_d], tl.float32)
  for part in tl.static_range(0 if sizes.masks else 1, 2):
    limits = bounds + group * 3 + part
    for i in range(tl.load(limits), tl.load(limits + 1)):
      keys, shown = _block(tl.load(others + i), sizes)
      block = _load(k, first, keys, shown, sizes.D, sizes.pad_d, sizes)
      logits = tl.dot(q_rows, tl.trans(block), input_precision=sizes.precision) * scale
      weights = tl.exp2(logits - lse_rows[:, None])
      if sizes.ragged:
        weights = tl.where(shown[None, :], weights, 0.0)
      if sizes.key_mask:
        seen = _seen(key_mask, batch, head, keys, shown, sizes)
        weights = tl.where(seen[None, :], weights, 0.0)
      if part == 0:
        edges = _edges(tables, tl.load(numbers + i), rows, sizes)
        weights = tl.where(edges, weights, 0.0)
      values = _load(v, first, keys, shown, sizes.E, sizes.pad_e, sizes)
      products = tl.dot(d_out_rows, tl.trans(values), input_precision=sizes.precision)
      d_logits = weights * (products - delta_rows[:, None])
      d_logits = _compensate(d_logits.to(block.dtype), sizes)
      gradient = tl.dot(d_logits, block, gradient, input_precision=sizes.precision)

  _store(dq, first, gradient * sizes.scale, queries, inside, sizes.D, sizes)


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
  sizes: tl.constexpr,
):
  """Computes the gradients of one group of keys and their values from the queries that see them."""
  scale: tl.constexpr = sizes.scale * LOG2_E
  group, batch, head, first = _place(order, sizes)
  rows = tl.arange(0, sizes.pad_rows)
  keys = (group % sizes.R) * sizes.rows + rows
  inside = (rows < sizes.rows) & (keys < sizes.N)
  k_rows = _compensate(_load(k, first, keys, inside, sizes.D, sizes.pad_d, sizes), sizes)
  v_rows = _compensate(_load(v, first, keys, inside, sizes.E, sizes.pad_e, sizes), sizes)
  if sizes.key_mask:
    seen = _seen(key_mask, batch, head, keys, inside, sizes)
  place = (batch * sizes.H + head).to(tl.int64) * sizes.N

  gradient_k = tl.zeros([sizes.pad_rows, sizes.pad_d], tl.float32)
  gradient_v = tl.zeros([sizes.pad_rows, sizes.pad_e], tl.float32)
  for part in tl.static_range(0 if sizes.masks else 1, 2):
    limits = bounds + group * 3 + part
    for i in range(tl.load(limits), tl.load(limits + 1)):
      queries, shown = _block(tl.load(others + i), sizes)
      block = _load(q, first, queries, shown, sizes.D, sizes.pad_d, sizes)
      block_lse = tl.load(lse + place + queries, mask=shown, other=float("inf")) * LOG2_E
      block_delta = tl.load(delta + place + queries, mask=shown, other=0.0)
      logits = tl.dot(k_rows, tl.trans(block), input_precision=sizes.precision) * scale
      weights = tl.exp2(logits - block_lse[None, :])
      if sizes.key_mask:
        weights = tl.where(seen[:, None], weights, 0.0)
      if part == 0:
        edges = _edges(tables, tl.load(numbers + i), rows, sizes)
        weights = tl.where(edges, weights, 0.0)
      gradients = _load(d_out, first, queries, shown, sizes.E, sizes.pad_e, sizes)
      operand = _compensate(weights.to(gradients.dtype), sizes)
      gradient_v = tl.dot(operand, gradients, gradient_v, input_precision=sizes.precision)
      products = tl.dot(v_rows, tl.trans(gradients), input_precision=sizes.precision)
      d_logits = weights * (products - block_delta[None, :])
      d_logits = _compensate(d_logits.to(block.dtype), sizes)
      gradient_k = tl.dot(d_logits, block, gradient_k, input_precision=sizes.precision)

  _store(dk, first, gradient_k * sizes.scale, keys, inside, sizes.D, sizes)
  _store(dv, first, gradient_v, keys, inside, sizes.E, sizes)


@triton.jit
def _place(order, sizes: tl.constexpr):
  """Returns the program's group of rows, example and head, and the place of the head's token 0.

  The place multiplied by D or E is the index of channel 0 of this token in an array.
  """
  sharing: tl.constexpr = sizes.H // sizes.G  # the number of heads that share a list
  if sizes.count:
    group = tl.load(order + tl.program_id(0) // sizes.count)
    number = tl.program_id(0) % sizes.count
  else:
    group = tl.load(order + tl.program_id(1))
    number = tl.program_id(0)
  batch, head = number // sharing, (group // sizes.R) * sharing + number % sharing
  return group, batch, head, batch.to(tl.int64) * sizes.N * sizes.H + head


@triton.jit
def _block(number, sizes: tl.constexpr):
  """Returns the tokens of a block and whether they are in range, (pad_block,) each."""
  columns = tl.arange(0, sizes.pad_block)
  tokens = number * sizes.block + columns
  return tokens, (columns < sizes.block) & (tokens < sizes.N)


@triton.jit
def _load(
  array, first, tokens, inside, WIDTH: tl.constexpr, PAD_WIDTH: tl.constexpr, sizes: tl.constexpr
):
  """Loads the channels of tokens, (tokens, PAD_WIDTH); tokens out of range have zeros."""
  channels = tl.arange(0, PAD_WIDTH)
  places = array + first * WIDTH + tokens[:, None] * (sizes.H * WIDTH) + channels[None, :]
  if sizes.ragged:
    return tl.load(places, mask=inside[:, None] & (channels < WIDTH)[None, :], other=0.0)
  if WIDTH != PAD_WIDTH:
    return tl.load(places, mask=(channels < WIDTH)[None, :], other=0.0)
  return tl.load(places)


@triton.jit
def _store(array, first, values, tokens, inside, WIDTH: tl.constexpr, sizes: tl.constexpr):
  """Stores the channels of the tokens that are in range."""
  channels = tl.arange(0, values.shape[1])
  places = array + first * WIDTH + tokens[:, None] * (sizes.H * WIDTH) + channels[None, :]
  mask = inside[:, None] & (channels < WIDTH)[None, :]
  tl.store(places, values.to(array.dtype.element_ty), mask=mask)


@triton.jit
def _compensate(x, sizes: tl.constexpr):
  """Multiplies an operand of a product for TF32, so that the errors of a sum average out.

  The GPU cuts off the 13 bits that TF32 lacks, and so makes every number smaller: by half a unit of
  the last bit on average. A factor adds this half beforehand. It leaves numbers of TF32 unchanged,
  and infinity and NaN too. Operands that a program loads for each block go to the shared memory
  without passing through registers, and have no factor.
  """
  if sizes.precision == "tf32":
    return x * HALF_A_BIT
  return x


@triton.jit
def _seen(key_mask, batch, head, keys, inside, sizes: tl.constexpr):
  """Returns whether keys may be attended, (keys,)."""
  places = batch.to(tl.int64) * sizes.N + keys
  if sizes.key_mask == 2:
    places = places * sizes.H + head
  return tl.load(key_mask + places, mask=inside, other=0) != 0


@triton.jit
def _edges(tables, number, rows, sizes: tl.constexpr):
  """Returns a block's mask, (rows, pad_block), from one word of bits for 32 columns of each row."""
  WORDS: tl.constexpr = sizes.words
  columns = tl.arange(0, sizes.pad_block)
  words = tables + (number.to(tl.int64) * sizes.rows + rows) * WORDS
  bits = tl.load(words, mask=rows < sizes.rows, other=0)[:, None] >> (columns % 32)[None, :]
  for i in tl.static_range(1, WORDS):
    more = tl.load(words + i, mask=rows < sizes.rows, other=0)[:, None] >> (columns % 32)[None, :]
    bits = tl.where((columns // 32 == i)[None, :], more, bits)
  return (bits & 1) != 0
