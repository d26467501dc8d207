"""Sparse and mixing modules equal Hugging Face's modules with equal weights."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.golden import BOTH, HEADS, close, linear, load, outward, run
from tests.slow import all_but
from vitx.attention.fnet import FNet
from vitx.attention.grid import ShiftedWindowAttention
from vitx.attention.longformer import LongformerAttention
from vitx.attention.nystromformer import Nystromformer
from vitx.attention.pattern import PatternAttention
from vitx.ops.layout import TokenLayout
from vitx.ops.patterns import GivenBlocks, Global, RandomBlocks, Window

THREE = ("query", "key", "value")
BLOCK = 4


def drawn_pattern(drawn):
  """Returns BigBird's pattern with recorded random blocks, int (H, m - 2, r).

  The first and the last of the m blocks of queries have no random blocks.
  """
  none = np.pad(np.asarray(drawn), ((0, 0), (1, 1), (0, 0)), constant_values=-1)
  window = Window(1, block=BLOCK, count_prefix=True)
  return window | Global(blocks=(0, -1), block=BLOCK) | GivenBlocks(none, BLOCK)


class DrawnBigBird(PatternAttention):
  drawn: Sequence = ()

  def pattern(self, layout):
    return drawn_pattern(self.drawn)


def big_bird(g, implementation):
  params = {name: linear(g, name) for name in THREE}
  fields = {"drawn": tuple(map(tuple, g["drawn"].tolist())), "tile": BLOCK}
  return params, DrawnBigBird(HEADS, out_projection=False, implementation=implementation, **fields)


@BOTH
def test_big_bird_equals_transformers(implementation):
  g = load("big_bird")
  params, module = big_bird(g, implementation)
  layout = TokenLayout((g["x"].shape[1],))

  @jax.jit
  def outputs_and_gradients(params, x):
    apply = lambda p, x, m: module.apply({"params": p}, x, layout, mask=m, train=False)  # noqa: E731
    out, pull = jax.vjp(lambda p, x: apply(p, x, None), params, x)
    return out, apply(params, x, g["mask"]), pull(jnp.asarray(g["cotangent"]))

  out, masked, (grads, dx) = outputs_and_gradients(params, g["x"])
  close(out, g["out"])
  close(masked, g["masked_out"], g["mask"])  # transformers sets outputs of masked queries to zero
  close(dx, g["grad.x"])
  largest = max(np.abs(g[f"grad.{name}.weight"]).max() for name in THREE)
  for name in THREE:
    gradient, expected = grads[name], linear(g, f"grad.{name}")
    close(gradient["kernel"], expected["kernel"])
    # A key's bias changes no probability, so its gradient is rounding alone.
    np.testing.assert_allclose(gradient["bias"], expected["bias"], rtol=2e-5, atol=1e-5 * largest)


@pytest.mark.parametrize(
  ("n", "block", "r"), [(56, 4, 2), (530, 10, 3), (1024, 64, 3), (3072, 64, 3), (4096, 64, 3)]
)
def test_big_bird_plan_draws_where_the_published_one_does(n, block, r):
  expected = load("big_bird_plans")[f"{n},{block},{r}"]
  pattern = RandomBlocks(r, block, "bigbird", heads=400, window=3, anchors=(0, -1))
  indices = pattern.indices(TokenLayout((n,)))
  m = len(expected)
  assert (indices[:, [0, -1]] == -1).all() and (indices[:, 1:-1] >= 0).all()
  edges = np.zeros((m, m + 1), bool)
  edges[np.arange(m)[:, None], indices] = True
  np.testing.assert_array_equal(edges[:, :m], expected)


LONGFORMER = {"window": 2, "tile": 4}


def longformer(g, implementation, **fields):
  names = THREE if not fields else (*THREE, *(f"{name}_global" for name in THREE))
  params = {name: linear(g, name) for name in names}
  module = LongformerAttention(
    HEADS, out_projection=False, implementation=implementation, **LONGFORMER, **fields
  )
  layout = TokenLayout((g["x"].shape[1] - 1,), prefix=1)
  close(run(module, {"params": params}, g["x"], layout=layout), g["out"])
  masked = run(module, {"params": params}, g["x"], g["mask"], layout)
  close(masked, g["masked_out"], g["mask"])


@pytest.mark.slow
@BOTH
def test_longformer_equals_transformers_with_shared_projections(implementation):
  longformer(load("longformer_shared"), implementation)


@pytest.mark.slow  # compiles long programs
@BOTH
def test_longformer_equals_transformers_with_separate_projections(implementation):
  longformer(load("longformer"), implementation, global_projections="separate")


@BOTH
@pytest.mark.parametrize("layer", all_but(1, of=[0, 1]))
def test_swin_equals_transformers(layer, implementation):
  g = load("swin_shifted" if layer else "swin_plain")
  params = {name: linear(g, f"self.{name}") for name in THREE}
  params["out"] = outward(g["output.dense.weight"], g["output.dense.bias"])
  params["relative_bias_0"] = g["self.relative_position_bias_table"].T.reshape(HEADS, 5, 5)
  module = ShiftedWindowAttention(
    HEADS, size=3, layer=layer, relative_bias="window", implementation=implementation, tile=9
  )
  close(run(module, {"params": params}, g["x"], layout=TokenLayout((6, 9))), g["out"])


@BOTH
def test_fnet_equals_transformers(implementation):
  g = load("fnet")
  close(run(FNet(1, implementation=implementation), {}, g["x"]), g["out"])


@BOTH
def test_nystromformer_equals_transformers(implementation):
  g = load("nystromformer")
  width = g["x"].shape[-1]
  params = {name: linear(g, name) for name in THREE}
  params["out"] = outward(np.eye(width, dtype=np.float32), np.zeros(width, np.float32))
  params["convolution"] = g["conv.weight"][:, 0, :, 0].T
  module = Nystromformer(
    HEADS, landmarks=4, kernel_size=5, pinv_scale="batch", implementation=implementation
  )
  close(run(module, {"params": params}, g["x"]), g["out"])
