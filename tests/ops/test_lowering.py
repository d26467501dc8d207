"""Kernelized softmax holds no N x N array on any platform, found in the lowered programs.

Each program computes one example and two heads, with tiles as large as on its platform.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn_library

from tests.ops.attention_cases import KINDS
from tests.ops.lowered import lower, matrices, program
from tests.slow import all_but
from vitx.ops import TokenLayout, plan
from vitx.ops.kernels import cudnn, tiling
from vitx.ops.kernels.softmax import kernelized_attention
from vitx.ops.patterns import PATTERNS, Full, Global
from vitx.ops.sparse.attend import block_mask


@pytest.fixture
def installed(monkeypatch):
  """Replaces cuDNN's version check, so that its kernel can be lowered for CUDA without a GPU."""
  monkeypatch.setattr(cudnn_library, "check_cudnn_version", lambda: 91100)


def fused(text):
  return set(re.findall(r"__cudnn\$fmha\w*", text))


def test_the_search_finds_the_matrix_of_the_library():
  q = jax.ShapeDtypeStruct((1, 1025, 2, 64), jnp.bfloat16)
  with jax.numpy_dtype_promotion("standard"):  # the library promotes implicitly
    assert matrices(lower(jax.nn.dot_product_attention, q, q, q, platform="cuda"), 1025)


@pytest.mark.parametrize(
  "hold",
  [
    lambda x: jnp.asarray(np.tri(64, dtype=np.float32)) @ x,  # a constant
    lambda x: x[:, None] * x,
    lambda x: jnp.outer(x, x).reshape(-1)[::2],
    lambda x: jnp.pad(x, (0, 1))[:, None] * jnp.pad(x, (1, 0)),
    lambda x: (x.reshape(8, 1, 8, 1) * x.reshape(1, 8, 1, 8)).astype(jnp.bfloat16),
  ],
)
def test_the_search_finds_a_matrix_in_any_shape(hold):
  assert matrices(lower(hold, jax.ShapeDtypeStruct((64,), jnp.float32), platform="cpu"), 64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_no_program_for_cuda_contains_a_square_matrix(dtype, masked, causal, installed):
  n = 1025 if (dtype == jnp.bfloat16) ^ masked ^ causal else 2048
  text = program("cuda", dtype, n, masked=masked, causal=causal)
  assert not matrices(text, n)
  assert len(fused(text)) == (2 if dtype == jnp.bfloat16 and not masked else 0)


@pytest.mark.parametrize(
  ("dtype", "n", "masked"),
  [
    (jnp.bfloat16, 1025, False),
    (jnp.bfloat16, 2048, True),
    (jnp.float32, 2048, False),
    (jnp.float32, 1025, True),
    (jnp.float16, 1025, False),  # splash attention does not take this case, but cuDNN would
  ],
)
def test_no_program_for_tpu_contains_a_square_matrix(dtype, n, masked, installed):
  text = program("tpu", dtype, n, masked=masked)
  assert not matrices(text, n) and not fused(text)


def test_no_step_on_a_cpu_contains_a_square_matrix(monkeypatch):
  """A program that is traced on a machine without an accelerator has smaller tiles."""
  monkeypatch.setattr(tiling, "ACCELERATOR_STEP_BYTES", tiling.CPU_STEP_BYTES)
  assert not matrices(program("cuda", jnp.float32, 2048), 2048)
  for platform in ("cuda", "tpu"):
    assert not matrices(program(platform, jnp.float32, 1025, masked=True, causal=True), 1025)


def test_calls_that_cudnn_refuses_are_computed_by_tiles(installed, monkeypatch):
  assert fused(program("cuda", jnp.float16, 129, width=20))  # padded to 24
  assert fused(program("cuda", jnp.bfloat16, 128, m=77))
  assert not fused(program("cuda", jnp.bfloat16, 129, width=136))
  assert not fused(program("cpu", jnp.bfloat16, 129))

  def missing():
    raise RuntimeError("cuDNN is not detected.")

  monkeypatch.setattr(cudnn_library, "check_cudnn_version", missing)
  text = program("cuda", jnp.bfloat16, 1025)
  assert not fused(text) and not matrices(text, 1025)


@pytest.mark.slow
def test_the_padding_around_cudnn_changes_nothing(monkeypatch):
  """JAX's plain attention, which takes the arguments of cuDNN's kernel, replaces the kernel."""
  plain = jax.nn.dot_product_attention

  def replaced(q, k, v, *, implementation, **options):
    assert implementation == "cudnn" and q.shape[1] % 2 == 0 and k.shape[1] % 2 == 0
    return plain(q, k, v, **options)

  monkeypatch.setattr(jax.nn, "dot_product_attention", replaced)
  random = np.random.default_rng(0)
  shapes = ((2, 9, 2, 20), (2, 9, 2, 20), (2, 9, 2, 12))
  arrays = [random.normal(size=shape).astype(np.float32) for shape in shapes]
  for options in ({}, {"causal": True}):
    output, expected = (
      jax.jit(functools.partial(attend, scale=0.3, **options))(*arrays)
      for attend in (cudnn.cudnn_attention, kernelized_attention)
    )
    np.testing.assert_allclose(output, expected, atol=2e-6)


GRIDS = {2048: TokenLayout((32, 64)), 2049: TokenLayout((32, 64), prefix=1)}
FOR_TPU = (
  "full",
  "attention_free",
  "global_tokens",
  "axial_per_head",
  "bigbird_etc",
  "erdos_renyi",
)
QUICK = ("bigbird_published_plan", "fixed_causal", "neighborhood")


def fills_its_tiles(pattern, layout):
  steps = plan(pattern, layout)
  parts = [part for parts in steps.heads for part in parts if part.core == "block_sparse"]
  masks = [block_mask(part.pattern, steps.layout, part.block, 2, part.order) for part in parts]
  return any(
    m.keys.size > 0.99 * m.heads * m.rows**2 for m in masks
  )  # short tiles at the end may be empty


def check_pattern(platform, n, dtype, name):
  pattern, layout = PATTERNS[name], GRIDS[n]
  whole = matrices(program(platform, dtype, n, width=8, pattern=pattern, layout=layout), n)
  assert not whole or fills_its_tiles(pattern, layout), whole


@pytest.mark.parametrize("name", all_but(*QUICK, of=KINDS))
def test_no_program_of_a_pattern_contains_a_square_matrix(name, installed):
  """The programs are those for CUDA, where all patterns use vitx's tiles."""
  check_pattern("cuda", 2049, jnp.bfloat16, name)


@pytest.mark.parametrize("name", all_but(QUICK[0], of=(*QUICK, *FOR_TPU)))
def test_no_program_of_a_pattern_for_tpu_contains_a_square_matrix(name):
  """Splash attention, the TPU's own kernel, computes most patterns, all in one way."""
  check_pattern("tpu", 2048, jnp.float32, name)


@pytest.mark.slow
def test_most_patterns_leave_tiles_empty():
  """Few patterns fill all tiles, so `fills_its_tiles` exempts only these."""
  filled = {name for name, pattern in PATTERNS.items() if fills_its_tiles(pattern, GRIDS[2048])}
  assert filled == {"erdos_renyi", "erdos_renyi_symmetric", "fixed_bidirectional", "fixed_summary"}


def test_a_union_with_all_edges_is_dense(installed):
  layout = GRIDS[2049]
  every = Full() | Global(prefix=True)
  text = program("cuda", jnp.float32, 2049, width=8, pattern=every, layout=layout)
  assert not matrices(text, layout.length)
