"""Weights of token mixers on another number of tokens."""

import re

import jax
import numpy as np
import pytest

from tests.drawn import draw_variables
from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.checkpoints.tree import name_leaves
from vitx.interop.transfer import transfer
from vitx.models import create_model, names
from vitx.models.token_tables import explain_refusal, resize
from vitx.ops.layout import TokenLayout


def layout(side, prefix=1):
  return TokenLayout((side, side), prefix)


def wave(side, prefix=1):
  """Returns a smooth function of the position, (N,); prefix tokens have the values 100, 101, ..."""
  at = (np.arange(side) + 0.5) / side
  grid = 2 + np.sin(3 * at)[:, None] * np.cos(2 * at)
  return np.concatenate([100 + np.arange(prefix), grid.reshape(-1)]).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize(("before", "after"), [(8, 16), (16, 12)])
def test_a_sum_over_the_tokens_keeps_its_size(axis, prefix, before, after):
  """A resized map from the tokens gives nearly equal results for a smooth image on both grids."""
  kernels = [
    np.stack([wave(side, prefix), np.ones(prefix + side**2)], 1) for side in (before, after)
  ]
  old, new = (np.moveaxis(kernel, 0, axis).astype(np.float32) for kernel in kernels)
  table = resize(old, np.zeros_like(new), axis, True, layout(before, prefix), layout(after, prefix))
  assert table.shape == new.shape and table.dtype == np.float32
  table = np.moveaxis(table, axis, 0)
  np.testing.assert_array_equal(table[:prefix], kernels[0][:prefix].astype(np.float32))
  said = [x[prefix:].T @ wave(side, 0) for x, side in ((kernels[0], before), (table, after))]
  np.testing.assert_allclose(said[1], said[0], rtol=5e-3)


def test_weights_that_are_not_summed_keep_their_values():
  old, expected = wave(8), wave(16)
  resized = resize(old, np.zeros_like(expected), 0, False, layout(8), layout(16))
  np.testing.assert_array_equal(resized[:1], old[:1])
  inside = (slice(4, -4), slice(4, -4))
  grids = [x[1:].reshape(16, 16)[inside] for x in (resized, expected)]
  np.testing.assert_allclose(*grids, atol=5e-3)


@pytest.mark.parametrize(
  ("source", "target", "layouts", "reason"),
  [
    ((17, 4), (26, 4), (layout(4), layout(5)), ""),
    ((17, 4), (26, 5), (layout(4), layout(5)), "in more than the number of tokens"),
    ((17, 4), (26,), (layout(4), layout(5)), "in more than the number of tokens"),
    ((17, 4), (26, 4), (None, layout(5)), "17 tokens, but 26 are needed, .*is not known"),
    ((17, 4), (27, 4), (layout(4), layout(5)), "17 tokens, but 27 are needed, and 27 entries"),
    ((16, 4), (17, 4), (layout(4), layout(4)), "only one of them has entries for the tokens in"),
    ((17, 4), (25, 4), (layout(4), layout(5)), "only one of them has entries for the tokens in"),
    ((16, 4), (25, 4), (layout(4), layout(5)), ""),
    ((17, 4), (26, 4), (layout(4), TokenLayout((25,), 1)), "17 .* 26 .*numbers of axes"),
  ],
)
def test_a_refusal_names_both_lengths(source, target, layouts, reason):
  refusal = explain_refusal(source, target, 0, *layouts)
  assert bool(refusal) == bool(reason) and re.search(reason, refusal)


BOUND = {
  "linformer": dict(slots=4),
  "mlp_mixing": dict(hidden=6),
  "sparsifiner": dict(slots=3),
}


def make(mixer, side, **fields):
  """Returns a network of `side` x `side` patches, and its parameters."""
  settings = dict(num_classes=3, width=8, depth=1, num_heads=2, mlp_dim=8, **fields)
  model = create_model("vit", stem=dict(name="linear", patch=1), token_mixer=mixer, **settings)
  images = np.zeros((1, side, side, 3), np.float32)
  return model, draw_variables(model.init, images, seed=side)["params"]


def test_every_mixer_of_fixed_length_is_known():
  assert set(BOUND) == {name for name, kind in MIXERS.items() if kind.properties.fixed_length}


@pytest.mark.parametrize("name", BOUND)
def test_token_axes_are_the_axes_that_change_with_the_grid(name):
  """`token_axis` has the axis that changes, for each parameter whose shape depends on the grid."""
  small, large = (name_leaves(make(dict(name=name, **BOUND[name]), side)[1]) for side in (3, 4))
  moved = [key for key in small if small[key].shape != large[key].shape]
  assert moved
  for key in moved:
    axis, _ = names.token_axis(key, small[key].ndim)
    assert small[key].shape[axis] in (9, 10) and large[key].shape[axis] in (16, 17), key


@pytest.mark.parametrize("name", all_but("linformer", "mlp_mixing", of=BOUND))
def test_a_network_works_on_another_grid(name):
  """Weights of 3 x 3 patches run on 4 x 4 patches, with a class token and without."""
  for pool, prefix in (("cls", 1), ("mean", 0)):
    mixer = dict(name=name, **BOUND[name])
    (_, source), (model, target) = (make(mixer, side, pool=pool) for side in (3, 4))
    params, report = transfer(target, source, layout(4, prefix), layout(3, prefix))
    assert not (report.skipped or report.new or report.unused)
    bound = {key for key, x in name_leaves(source).items() if names.token_axis(key, x.ndim)}
    assert len(bound) > 1 and set(report.resized) == bound
    images = np.ones((1, 4, 4, 3), np.float32)
    assert jax.eval_shape(model.apply, {"params": params}, images).shape == (1, 3)


def test_a_token_mlp_as_wide_as_the_tokens_is_refused():
  (_, source), (_, target) = (make("mlp_mixing", side) for side in (3, 4))
  _, report = transfer(target, source, layout(4), layout(3))
  reason = "[10, 10] -> [17, 17]: the shapes differ in more than the number of tokens"
  assert report.skipped["block_0/token_mixer/up/kernel"] == reason
