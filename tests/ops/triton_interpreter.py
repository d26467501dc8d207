"""Triton's interpreter on NumPy arrays, in place of a CUDA device.

The interpreter reads tensors through a few methods of PyTorch's, which `Tensor` gives to arrays, so
that no test needs PyTorch. `TRITON_INTERPRET=1` must be set before Triton is imported.
"""

import dataclasses
import threading

import jax
import numpy as np

from vitx.ops.sparse import triton_attention

LOCK = threading.Lock()  # the interpreter replaces functions of Triton's while it runs


class Tensor:
  """A NumPy array that the interpreter reads and writes in place."""

  def __init__(self, array):
    self.array = array

  @property
  def dtype(self):
    return self.array.dtype.name

  def data_ptr(self):
    return self.array.ctypes.data

  def untyped_storage(self):
    return self

  def cpu(self):
    return self

  def new_empty(self, size, device):
    return Tensor(None)

  def set_(self, storage, offset, size, stride):
    self.array = storage.array

  def storage_offset(self):
    return 0

  def size(self):
    return self.array.shape

  def stride(self):
    return self.array.strides

  def copy_(self, other):
    assert other.array is self.array


def multiply_as_a_gpu():
  """Makes the interpreter widen bfloat16, and cut off bits where products have TF32.

  By itself it reads the bits of bfloat16 as integers, and multiplies float32 exactly.
  """
  import triton.language as tl
  from triton.runtime import interpreter

  builder = interpreter.interpreter_builder
  product = builder.create_dot

  def prepare(x, precision):
    if x.dtype.scalar == tl.bfloat16:
      data = interpreter._convert_float(x.data, tl.bfloat16, tl.float32, None).view(np.float32)
    elif precision.name == "TF32":
      data = (np.ascontiguousarray(x.data).view(np.int32) & -0x2000).view(np.float32)
    else:
      return x
    return interpreter.TensorHandle(data, tl.float32)

  def create_dot(a, b, c, precision, *rest):
    return product(prepare(a, precision), prepare(b, precision), c, precision, *rest)

  builder.create_dot = create_dot


def install(monkeypatch, tiles=None, precision="ieee"):
  """Makes attention for a GPU run its kernels in the interpreter; returns the names of the calls.

  Args:
    monkeypatch: The fixture of pytest.
    tiles: The `TileSizes` of every call; `None` for those of an H100.
    precision: The precision of products, "tf32" as on a GPU, or "ieee", which is exact.
  """
  from vitx.ops.sparse import triton_kernels

  traced = []

  def call(kernel, arrays, types, grid, launch, sizes):
    sizes = dataclasses.replace(sizes, precision=precision)

    def run(*arrays):
      results = [np.full(result.shape, np.nan, result.dtype) for result in types]
      inputs = [Tensor(np.array(x)) for x in arrays]
      with LOCK:
        getattr(triton_kernels, kernel)[grid](*inputs, *map(Tensor, results), sizes=sizes)
      return results

    traced.append(kernel)
    return jax.pure_callback(run, list(types), *arrays)

  monkeypatch.setattr(triton_attention, "call", call)
  monkeypatch.setattr(triton_attention, "find_capability", lambda: 90)
  monkeypatch.setattr(triton_attention, "on_cuda", lambda kernel, otherwise, *x: kernel(*x))
  if tiles is not None:
    monkeypatch.setattr(triton_attention, "choose_tiles", lambda *_: tiles)
  return traced
