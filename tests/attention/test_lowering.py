"""The programs of kernelized mixers for CUDA and TPU contain no N x N array.

Each program computes one example and two narrow heads, forward and backward, with tiles as large as
on an accelerator.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn_library

from tests.ops.lowered import lower, matrices
from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.ops.layout import TokenLayout

GRID, PREFIXED = TokenLayout((32, 64)), TokenLayout((32, 64), prefix=1)
HEADS, WIDTH = 2, 16
# The first has parameters that are matrices over the tokens, and the second has no such matrix.
NO_IMPLEMENTATIONS = {"mlp_mixing", "xcit"}
# The program of these mixers is equal for CUDA and TPU, since they call no kernel of one platform.
# With a mask this holds for every mixer, since those kernels accept no mask.
ALIKE = {
  *("bilevel", "fnet", "linear_transformer", "linformer", "nystromformer", "performer"),
  *("shaped", "sparsifiner", "watts_strogatz"),
}
RANDOM = {"erdos_renyi"}  # edges in every tile: tests/ops/test_lowering.py
QUICK = ("softmax", "sparsifiner", "bigbird", "nystromformer")
# Fields that choose other operations than the defaults.
VARIANTS = [
  ("softmax", {"causal": True}),
  ("softmax", {"relative_bias": "axial", "rotary": "axial"}),
  ("performer", {"causal": True, "local_heads": 1, "local_window": 64}),
  ("linear_transformer", {"causal": True}),
  ("nystromformer", {"landmarks": 32, "kernel_size": 0}),
  ("shaped", {"one_map": True, "relative_bias": "axial"}),
  ("bigbird", {"redraw": "step"}),
  ("bigbird", {"relative_bias": "axial", "prefix_global": True}),
  ("bigbird", {"causal": True}),
  ("strided", {"arrangement": "merged", "form": "paper"}),
  ("fixed", {"arrangement": "merged", "causal": True, "summary": 2}),
  ("longformer", {"global_projections": "separate", "global_tokens": (0, -3)}),
  ("shifted_window", {"layer": 1, "relative_bias": "window"}),
  ("sparsifiner", {"keep": 0.05}),
  ("sparsifiner", {"granularity": "block"}),
  ("sparsifiner", {"predictor_implementation": "sparse"}),
  ("sparsifiner", {"sparse": False}),
  ("bilevel", {"relative_bias": "axial"}),
]
QUICK_VARIANTS = ({"keep": 0.05}, {"relative_bias": "axial", "rotary": "axial"})


@pytest.fixture(autouse=True, scope="module")
def installed():
  """Fakes cuDNN's version, so that its kernel can be lowered for CUDA without a GPU."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(cudnn_library, "check_cudnn_version", lambda: 91100)
    yield
  jax.clear_caches()


@functools.cache
def variable_shapes(module, layout):
  """Returns the shapes of the variables, which depend on no platform and no mask."""
  x = jax.ShapeDtypeStruct((1, layout.length, WIDTH), jnp.float32)
  init = lambda x: module.init(jax.random.key(0), x, layout, train=False)  # noqa: E731
  return jax.eval_shape(init, x)


def program(platform, name, dtype="float32", layout=GRID, masked=False, **fields):
  """Returns a mixer's training step, lowered for a platform, as text.

  The step computes the outputs and the gradients by parameters and inputs.
  """
  module = MIXERS[name](HEADS, implementation="kernelized", dtype=jnp.dtype(dtype), **fields)
  x = jax.ShapeDtypeStruct((1, layout.length, WIDTH), jnp.dtype(dtype))
  mask = jax.ShapeDtypeStruct((1, layout.length), bool) if masked else None
  draw = jax.random.key(0)
  state = dict(variable_shapes(module.clone(dtype=jnp.float32), layout))
  params = state.pop("params", {})

  def step(params, x, state, mask):
    def loss(params, x):
      out, new = module.apply(
        *({"params": params, **state}, x, layout),
        **{"mask": mask, "train": True, "mutable": list(state), "rngs": {"graph": draw}},
      )
      return jnp.sum(out.astype(jnp.float32) ** 2), (out, new)

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)

  return lower(step, params, x, state, mask, platform=platform)


def names(*without):
  return [name for name in MIXERS if name not in {*NO_IMPLEMENTATIONS, *RANDOM, *without}]


def test_every_mixer_with_implementations_is_tested():
  single = {name for name, mixer in MIXERS.items() if not mixer.properties.implementations}
  assert single == NO_IMPLEMENTATIONS


# The TPU's own kernel computes most patterns, all in one way: tests/ops/test_lowering.py.
FOR_TPU = ("softmax", "bigbird", "cvt", "levit")
CASES = [(name, "cuda") for name in names()] + [(name, "tpu") for name in FOR_TPU]


@pytest.mark.parametrize(("name", "platform"), all_but(*QUICK, of=CASES))
def test_no_program_contains_a_square_matrix(name, platform):
  dtype = "float32" if platform == "cuda" else "bfloat16"
  assert not matrices(program(platform, name, dtype), GRID.length)


# Of the mixers of patterns, one: tests/ops/test_lowering.py has the others with a prefix.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "bigbird", *sorted(ALIKE - {"watts_strogatz"})])
def test_no_program_with_a_class_token_and_hidden_keys_contains_a_square_matrix(name):
  assert not matrices(program("cuda", name, "bfloat16", PREFIXED, masked=True), PREFIXED.length)


@pytest.mark.parametrize(("name", "fields"), all_but(*QUICK_VARIANTS, of=VARIANTS))
def test_no_program_of_a_variant_contains_a_square_matrix(name, fields):
  platform = "tpu" if fields == {"causal": True} and name not in ALIKE else "cuda"
  assert not matrices(program(platform, name, **fields), GRID.length)
