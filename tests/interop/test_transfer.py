"""The transfer of a run's weights to a new run."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vitx.config.errors import ConfigError
from vitx.interop.init_from import Fit
from vitx.interop.transfer import Report, transfer
from vitx.models import token_tables
from vitx.ops.layout import TokenLayout


def model(*, side=4, prefix=1, classes=10, width=8, seed=0, key="table") -> dict:
  rng = np.random.default_rng(seed)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  return {
    "stem": {"kernel": normal(4, 4, 3, width)},
    "posemb": {key: normal(1, prefix + side**2, width)},
    "blocks_0": {"mlp": {"kernel": normal(width, 2 * width), "bias": normal(2 * width)}},
    "head": {"kernel": normal(width, classes), "bias": normal(classes)},
  }


def layout(side=4, prefix=1) -> TokenLayout:
  return TokenLayout((side, side), prefix)


def resize(source, target, *layouts):
  """Returns a table of positions on another grid."""
  return token_tables.resize(source, target, -2, False, *layouts)


def test_the_same_shapes_are_loaded_whole():
  source = model(seed=1)
  params, report = transfer(model(seed=2), source)
  jax.tree.map(np.testing.assert_array_equal, params, source)
  assert len(report.loaded) == 6
  assert not (report.resized or report.head or report.skipped or report.new or report.unused)


def test_each_parameter_is_reported():
  source, target = model(classes=10, side=4, seed=1), model(classes=3, side=6, seed=2)
  source["old"] = {"scale": np.ones(3)}
  target["gate"] = {"scale": np.full(3, 7.0, np.float32)}
  target["blocks_0"]["mlp"]["bias"] = np.zeros(5, np.float32)
  params, report = transfer(target, source, layout(6), layout(4))
  assert set(report.loaded) == {"stem/kernel", "blocks_0/mlp/kernel"}
  assert report.head == {"head/kernel": "[8, 10] -> [8, 3]", "head/bias": "[10] -> [3]"}
  assert report.resized == {
    "posemb/table": "[1, 17, 8] -> [1, 37, 8]: 1 + 4 x 4 tokens -> 1 + 6 x 6 tokens"
  }
  assert list(report.skipped) == ["blocks_0/mlp/bias"]
  assert list(report.new) == ["gate/scale"] and list(report.unused) == ["old/scale"]
  for name in ("head", "gate"):
    jax.tree.map(np.testing.assert_array_equal, params[name], target[name])
  np.testing.assert_array_equal(params["blocks_0"]["mlp"]["bias"], 0)
  np.testing.assert_array_equal(params["stem"]["kernel"], source["stem"]["kernel"])
  text = str(report)
  for part in (
    "loaded       2",
    "posemb/table  [1, 17, 8] -> [1, 37, 8]",
    "gate/scale",
    "old/scale",
  ):
    assert part in text


def test_a_head_is_taken_by_the_names_of_its_classes():
  source, target = model(classes=5, seed=1), model(classes=3, seed=2)
  params, report = transfer(target, source, indices=np.array([4, 0, 1]))
  for name in ("kernel", "bias"):
    np.testing.assert_array_equal(params["head"][name], source["head"][name][..., [4, 0, 1]])
  assert report.resized["head/kernel"] == "[8, 5] -> [8, 3]: classes by their names"
  params, report = transfer(model(seed=2), model(seed=1), indices=np.arange(10))
  assert len(report.loaded) == 6 and not report.resized
  np.testing.assert_array_equal(params["head"]["kernel"], model(seed=1)["head"]["kernel"])


def test_a_head_of_as_many_other_classes_starts_anew():
  target = model(classes=5, seed=2)
  params, report = transfer(target, model(classes=5, seed=1), indices="other classes (a, not b)")
  np.testing.assert_array_equal(params["head"]["kernel"], target["head"]["kernel"])
  assert report.head["head/bias"] == "[5] -> [5]: other classes (a, not b)"


def test_the_result_has_the_targets_structure_and_dtypes():
  target = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model(side=2))
  params, _ = transfer(target, model(side=4, seed=1), layout(2), layout(4))
  assert jax.tree.structure(params) == jax.tree.structure(target)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("lead", [(), (1,)])
@pytest.mark.parametrize("prefix", [0, 1, 2, 9])
def test_prefix_tokens_stay_and_a_smooth_grid_keeps_its_form(lead, prefix):
  def table(side):
    at = (np.arange(side) + 0.5) / side  # centers, so that a resized ramp stays linear inside
    grid = np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)
    tokens = np.full((prefix, 2), 5.0 + np.arange(prefix)[:, None])
    return np.concatenate([tokens, grid]).reshape(*lead, -1, 2).astype(np.float32)

  resized = resize(table(8), np.zeros_like(table(16)), layout(8, prefix), layout(16, prefix))
  expected = table(16)
  assert resized.shape == expected.shape
  flat, target = resized.reshape(-1, 2), expected.reshape(-1, 2)
  np.testing.assert_array_equal(flat[:prefix], target[:prefix])
  inside = (slice(4, -4), slice(4, -4))
  grids = [x[prefix:].reshape(16, 16, 2)[inside] for x in (flat, target)]
  np.testing.assert_allclose(*grids, atol=1e-5)


@pytest.mark.parametrize(("before", "after"), [(1, 0), (0, 1), (2, 1), (1, 2), (9, 2)])
def test_shared_prefix_tokens_stay(before, after):
  source = model(prefix=before, side=4, seed=1)["posemb"]["table"]
  target = model(prefix=after, side=4, seed=2)["posemb"]["table"]
  resized = resize(source, target, layout(4, before), layout(4, after))
  shared = min(before, after)
  np.testing.assert_array_equal(resized[:, :shared], source[:, :shared])
  np.testing.assert_array_equal(resized[:, shared:after], target[:, shared:after])
  np.testing.assert_allclose(resized[:, after:], source[:, before:], atol=1e-6)


@pytest.mark.parametrize(
  ("change", "layouts", "reason"),
  [
    ({"width": 6}, (layout(5), layout(4)), "in more than the number of tokens"),
    ({"side": 5}, (None, layout(4)), "is not known"),
    ({"side": 5}, (layout(7), layout(4)), "26 entries do not fit 1 \\+ 7 x 7 tokens"),
    ({"side": 5}, (TokenLayout((25,), 1), layout(4)), "different numbers of axes"),
  ],
)
def test_a_table_that_cannot_be_resized_is_skipped_with_the_reason(change, layouts, reason):
  source, target = model(side=4), model(side=4)
  target["posemb"] = model(**{"side": 5} | change)["posemb"]
  params, report = transfer(target, source, *layouts)
  assert list(report.skipped) == ["posemb/table"]
  assert re.search(reason, str(report))
  np.testing.assert_array_equal(params["posemb"]["table"], target["posemb"]["table"])


def test_the_grid_is_known_and_not_guessed():
  """9 prefix tokens and 4 x 4 patches are 25 rows, as many as 5 x 5 patches without a prefix."""
  source, target = model(side=4, prefix=9, seed=1), model(side=5, prefix=0, seed=2)
  params, report = transfer(target, source, layout(5, 0), layout(4, 9))
  assert report.resized == {
    "posemb/table": "[1, 25, 8] -> [1, 25, 8]: 9 + 4 x 4 tokens -> 5 x 5 tokens"
  }
  grid = source["posemb"]["table"][0, 9:].reshape(4, 4, 8)
  expected = jax.image.resize(grid, (5, 5, 8), "cubic").reshape(25, 8)
  np.testing.assert_allclose(params["posemb"]["table"][0], expected, rtol=1e-6)
  larger = model(side=8, prefix=9, seed=3)  # 73 rows
  params, report = transfer(larger, source, layout(8, 9), layout(4, 9))
  np.testing.assert_array_equal(params["posemb"]["table"][0, :9], source["posemb"]["table"][0, :9])
  assert list(report.resized) == ["posemb/table"]


def test_a_table_without_prefix_and_square_is_resized():
  table = np.arange(12, dtype=np.float32).reshape(6, 2)
  wide = resize(
    table, np.zeros((24, 2), np.float32), TokenLayout((2, 3), 1), TokenLayout((4, 6), 2)
  )
  expected = jax.image.resize(table.reshape(2, 3, 2), (4, 6, 2), "cubic").reshape(24, 2)
  np.testing.assert_allclose(wide, expected, rtol=1e-6)


def sized(depth=2, width=8, **parts) -> dict:
  """Returns parameters of blocks whose MLPs are twice as wide as the tokens."""
  mlp = {"up": {"kernel": np.ones((width, 2 * width)), "bias": np.ones(2 * width)}}
  blocks = {f"block_{i}": {"mlp": mlp} for i in range(depth)}
  return {"params": {"gain": {"scale": np.ones(3)}, **blocks, **parts}}


def test_another_depth_and_width_are_reported_once():
  _, report = transfer(sized(depth=9, width=16), sized())
  sizes = (
    "the source has 2 blocks, the config 9 and the source has 8 channels, the config 16. Set"
    " model.depth=2 and model.width=8."
  )
  assert str(report).startswith(f"sizes differ: {sizes}") and len(str(report).splitlines()) < 30
  with pytest.raises(ConfigError, match=f"network: {sizes} params/block_2"):
    Fit().check(report, "file.pth", is_run=False)
  Fit(("params/block_.*",)).check(report, "file.pth", is_run=False)


def report_of(**fates) -> Report:
  return Report(
    **{name: {} for name in ("loaded", "resized", "head", "skipped", "new", "unused")} | fates
  )


@pytest.mark.parametrize(
  ("fates", "fit", "is_run", "message"),
  [
    (dict(skipped={"a/b": "shapes differ"}), Fit(), True, r"a/b \(shapes differ\)"),
    (dict(skipped={"a/b": "shapes differ"}), Fit(allowed=("a/.*",)), True, None),
    (dict(skipped={"a/b": "shapes differ"}), Fit(allowed=("a",)), True, r"a/b \(shapes differ\)"),
    (dict(new={"a": ""}), Fit(), False, r"a \(is not in the source\)"),
    (dict(new={"a": ""}), Fit(), True, None),
    (dict(new={"a": ""}), Fit(may_add=False), True, r"a \(is not in the source\)"),
    (dict(new={"head/bias": ""}), Fit(), False, None),
    (dict(new={"head/bias": ""}), Fit(new_head=False), False, r"head/bias \(is not in the source"),
    (dict(head={"head/bias": "[5] -> [3]"}), Fit(), False, None),
    (dict(head={"head/bias": "[5] -> [3]"}), Fit(new_head=False), True, r"head/bias \(\[5\] -> "),
    (dict(unused={"a": ""}), Fit(), False, r"a \(has no place in this network\)"),
    (dict(unused={"a": ""}), Fit(), True, None),
    (dict(unused=dict.fromkeys("abcdefg", "")), Fit(), False, "and 2 more"),
  ],
)
def test_misfits_are_refused_unless_allowed(fates, fit, is_run, message):
  refused = pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext()
  with refused:
    fit.check(report_of(**fates), "file.pth", is_run=is_run)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])  # the last overflows in float32
def test_weights_that_are_not_finite_are_refused(value):
  source = jax.tree.map(lambda x: x.astype(np.float64), model(seed=1))
  source["stem"]["kernel"].flat[3] = value
  source["head"]["bias"][0] = value
  message = r"^(stem|head)/\w+ of the source and 1 others hold NaN or infinity"
  with np.errstate(over="ignore"), pytest.raises(ConfigError, match=message):
    transfer(model(seed=2), source)
  transfer(model(classes=3), {"other": np.array(value), **model(seed=1)})  # this is not transferred


def test_nothing_in_common_is_an_error():
  with pytest.raises(ConfigError, match="none of the network's 6 parameters fits"):
    transfer(model(), {"encoder": {"kernel": np.ones(3)}})
