"""The GPU's kernels compile for every card without spilled registers; an op for CUDA calls them.

No device is needed. CI runs this file in an environment that has jax-triton.
"""

import math
import re
import subprocess

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("jax_triton")

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from tests.ops.lowered import matrices, program, record_kernels
from tests.slow import all_but
from vitx.inference.export import UNCHECKED
from vitx.ops import attention
from vitx.ops.implementation import lowering_for
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import Causal, Neighborhood, Window, bigbird
from vitx.ops.sparse import triton_attention, triton_kernels
from vitx.ops.sparse.attend import block_mask
from vitx.ops.sparse.block_sparse import block_sparse_attention

if triton.knobs.runtime.interpret:
  pytest.skip("needs a process without TRITON_INTERPRET=1", allow_module_level=True)

SHARED_KB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # of one program, by card
SIGNATURE = {jnp.bfloat16: "bf16", jnp.float16: "fp16", jnp.float32: "fp32"}
SETTINGS = [(jnp.bfloat16, 64), (jnp.bfloat16, 128), (jnp.float16, 32)]
SETTINGS += [(jnp.float32, 64), (jnp.float32, 128)]
CASES = {
  f"{card}-{jnp.dtype(dtype)}-{width}": (card, dtype, width)
  for card in SHARED_KB
  for dtype, width in SETTINGS
}


def calls_of_gradients(monkeypatch, card, dtype, width):
  """Returns the calls of all kernels in a gradient of attention, with masks and a partial block."""
  calls = record_kernels(monkeypatch, card)
  q = jax.ShapeDtypeStruct((2, 1001, 2, width), dtype)
  block = triton_attention.choose_tiles(card, dtype, width).block
  mask = block_mask(Window(40, 0) & Causal(), TokenLayout((1001,)), block, 2)

  def loss(q, k, v):
    return jnp.sum(block_sparse_attention(q, k, v, mask)[0].astype(jnp.float32))

  with lowering_for("gpu"):
    jax.eval_shape(jax.grad(loss, argnums=(0, 1, 2)), q, q, q)
  return calls


def compile_kernel(card, kernel, arrays, launch, sizes):
  """Returns the kilobytes of shared memory and the bytes of spilled registers of a kernel."""
  function = getattr(triton_kernels, kernel)
  names = [name for name in function.arg_names if name != "sizes"]
  assert len(names) == len(arrays)
  kinds = {jnp.dtype(dtype): kind for dtype, kind in SIGNATURE.items()}
  kinds |= {jnp.dtype("int32"): "i32", jnp.dtype("int8"): "i8"}
  types = {name: f"*{kinds[x.dtype]}" for name, x in zip(names, arrays, strict=True)}
  signature = {name: types.get(name, "constexpr") for name in function.arg_names}
  aligned = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in names}
  values = {(function.arg_names.index("sizes"),): sizes}
  options = dict(num_warps=launch.warps, num_stages=launch.stages, enable_fp_fusion=True)
  source = ASTSource(function, signature, values, aligned)
  compiled = triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)
  return compiled.metadata.shared / 1024, count_spills(card, compiled.asm["ptx"])


def count_spills(card, ptx):
  """Returns the bytes of registers that NVIDIA's assembler stores to memory for lack of room."""
  arch = re.search(r"^\.target (\w+)", ptx, re.MULTILINE).group(1)
  assembler = [get_ptxas(card).path, "-v", "-arch", arch, "/dev/stdin", "-o", "/dev/null"]
  done = subprocess.run(assembler, input=ptx, capture_output=True, text=True, check=True)
  return sum(map(int, re.findall(r"(\d+) bytes spill stores", done.stdout + done.stderr)))


@pytest.mark.parametrize("name", all_but(*(f"{card}-bfloat16-64" for card in SHARED_KB), of=CASES))
def test_a_card_has_room_for_its_default_tiles(name, monkeypatch):
  card, dtype, width = CASES[name]
  calls = calls_of_gradients(monkeypatch, card, dtype, width)
  assert [kernel for kernel, *_ in calls] == ["forward", "query_gradient", "key_gradients"]
  for kernel, arrays, _, launch, sizes in calls:
    assert sizes.masks and sizes.ragged
    shared, spilled = compile_kernel(card, kernel, arrays, launch, sizes)
    assert shared <= SHARED_KB[card] and not spilled, (kernel, shared, spilled)


@pytest.fixture
def h100(monkeypatch):
  """Makes attention find an H100 and the packages of this environment."""
  monkeypatch.setattr(triton_attention, "_read_capability", lambda: 90)
  for function in (triton_attention.find_capability, triton_attention.find_obstacle):
    function.cache_clear()
  yield
  for function in (triton_attention.find_capability, triton_attention.find_obstacle):
    function.cache_clear()


def test_one_lowering_shows_that_the_packages_fit(h100, monkeypatch):
  asked, lower = [], triton_attention._lower_a_call
  monkeypatch.setattr(
    triton_attention, "_lower_a_call", lambda card: asked.append(card) or lower(card)
  )
  assert triton_attention.find_obstacle() is None and triton_attention.find_capability() == 90
  assert asked == [90]


PATTERNS = {
  "window": Window(256, 0) & Causal(),
  "bigbird": bigbird(block=64, random=3, heads=4),
  "neighborhood": Neighborhood(13),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_an_op_for_cuda_calls_the_kernels(name, h100):
  n = 2048
  layout = TokenLayout((32, 64) if name == "neighborhood" else (n,))
  text = program("cuda", jnp.bfloat16, n, heads=4, pattern=PATTERNS[name], layout=layout)
  assert len(re.findall("custom_call @triton_kernel_call", text)) == 3
  assert not matrices(text, n)
  largest = n * 4 * 64  # the elements of q
  assert all(elements <= largest for elements in elements_of_arrays(text))


def elements_of_arrays(text):
  shapes = re.findall(r"tensor<((?:\d+x)+)\w+>", text)
  return [math.prod(map(int, axes[:-1].split("x"))) for axes in shapes]


def test_other_programs_do_not_call_the_kernels(h100):
  q = jax.ShapeDtypeStruct((1, 512, 2, 64), jnp.bfloat16)
  for called_for in ("cpu", "gpu"):  # a GPU's host also runs programs on its CPU
    with lowering_for(called_for):
      traced = jax.jit(lambda q: attention(q, q, q, Window(16), implementation="kernelized"))
      text = traced.trace(q).lower(lowering_platforms=("cpu",)).as_text()
    assert "triton" not in text and matrices(text, 512) == set()


def test_an_exported_program_contains_the_kernels(h100):
  q = jax.ShapeDtypeStruct((1, 256, 2, 64), jnp.bfloat16)

  def attend(q, k, v):
    options = dict(pattern=Window(16), layout=TokenLayout((256,)), implementation="kernelized")
    return attention(q, k, v, **options)

  lower = jax.export.export(jax.jit(attend), platforms=["cuda"], disabled_checks=UNCHECKED)
  with lowering_for("gpu"):
    program = lower(q, q, q)
  again = jax.export.deserialize(program.serialize())
  assert "triton_kernel_call" in again.mlir_module()
