"""Optimizers against torch.optim (recorded by tests/golden) and their defining properties."""

import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

from tests.slow import all_but
from tests.training.optim.directions import close, directions, leaves, network, settings
from vitx.config.errors import ConfigError
from vitx.training.optim.optimizers import DECAY_MASKS, OPTIMIZERS, layer_scales, make_optimizer

GOLDEN = np.load(Path(__file__).parents[2] / "golden" / "optimizers.npz")
# The recorded file has vitx's settings under older names.
RENAMED = {"decay": "weight_decay_mask", "clip_norm": "grad_clip_norm"}
CASES = {
  name: {RENAMED.get(field, field): value for field, value in case.items()}
  for name, case in json.loads(str(GOLDEN["cases"])).items()
}


@pytest.mark.parametrize("name", CASES)
def test_optimizers_follow_torch(name):
  params = {key: GOLDEN[f"start/{key}"] for key in ("kernel", "bias")}
  optimizer = make_optimizer(settings(**CASES[name]), params)
  state = jax.jit(optimizer.init)(params)
  # As users compile: unoptimized, Adam's 1 - 0.999^t loses its fourth digit.
  update = jax.jit(optimizer.update, compiler_options={"xla_backend_optimization_level": 3})
  for i, rate in enumerate(GOLDEN["rates"]):
    grads = {key: GOLDEN[f"grads/{key}"][i] for key in params}
    updates, state = update(grads, state, params)
    params = jax.tree.map(lambda p, u, rate=rate: p - rate * np.asarray(u), params, updates)
    for key, value in params.items():
      recorded = GOLDEN[f"params/{name}/{key}"][i]
      np.testing.assert_allclose(value, recorded, rtol=1e-5, atol=1e-6)


def test_decay_masks_select_matrices_or_everything():
  matrices = leaves(DECAY_MASKS["matrices"](network()))
  assert {name for name, decays in matrices.items() if decays} == {
    "stem/conv/kernel",
    "block_0/attention/query/kernel",
    "block_1/mlp/kernel",
    "head/kernel",
  }
  assert all(leaves(DECAY_MASKS["all"](network())).values())


def test_decay_by_rank_agrees_with_timm():
  """Parameters without decay have one axis in PyTorch, or are timm's embeddings and class tokens.

  They are `pos_embed`, `cls_token` and DeiT's `dist_token`.
  """
  params = network()
  slots = {"key_slots": np.ones((9, 3)), "value_slots": np.ones((9, 3))}
  params["block_1"]["attention"] = slots
  rank, tensors = (leaves(DECAY_MASKS[name](params)) for name in ("rank", "tensors"))
  assert {name for name, decays in rank.items() if decays} == {
    "extra",
    "stem/conv/kernel",
    "block_0/attention/query/kernel",
    "block_1/attention/key_slots",
    "block_1/attention/value_slots",
    "block_1/mlp/kernel",
    "head/kernel",
  }
  assert {name for name in rank if rank[name] != tensors[name]} == {"cls", "posemb/table"}


@pytest.mark.parametrize("name", all_but("adamw", "muon", of=OPTIMIZERS))
def test_frozen_parameters_do_not_move(name):
  params = network()
  # Gradients of frozen parameters are NaN, so that any use of them shows.
  grads = network(1) | {"stem": jax.tree.map(lambda p: p * np.float32(np.nan), params["stem"])}
  config = settings(
    optimizer=dict(name=name, weight_decay=0.5),
    weight_decay_mask="all",
    grad_clip_norm=0.5,
    layer_decay=0.9,
    freeze=("stem/.*", r"block_\d/.*bias"),
  )
  updates, _ = directions(config, params, grads, 3)
  for key, update in leaves(updates).items():
    frozen = key.startswith("stem/") or (key.startswith("block_") and key.endswith("bias"))
    if frozen:
      assert np.all(np.asarray(update) == 0), key
    else:
      assert np.all(np.isfinite(update)) and np.any(update != 0), key


def test_frozen_parameters_have_no_moments():
  params = network()
  frozen = ("block_.*", "stem/.*", "cls", "extra", "posemb/.*", "norm/.*")
  state = jax.eval_shape(make_optimizer(settings(freeze=frozen), params).init, params)
  count = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
  assert count == 2 * (4 * 5 + 5)  # the head's two moments


def test_freezing_leaves_the_others_as_they_would_be_alone():
  params, grads = network(), network(1)
  config = settings(optimizer={"name": "adamw", "weight_decay": 0.3}, grad_clip_norm=0.5)
  head = {"head": params["head"]}
  alone, _ = directions(config, head, {"head": grads["head"]}, 3)
  config.freeze = ("(?!head/).*",)
  together, _ = directions(config, params, grads, 3)
  close(together["head"], alone["head"])


def test_layer_scales_fall_from_the_head_to_the_stem():
  scales = leaves(layer_scales(network(), 0.5))
  expected = {
    "stem": 1 / 8,
    "posemb": 1 / 8,
    "cls": 1 / 8,
    "extra": 1 / 8,
    "block_0": 1 / 4,
    "block_1": 1 / 2,
  }
  assert scales == {name: expected.get(name.split("/")[0], 1.0) for name in scales}
  part = {name: tree for name, tree in network().items() if name in ("block_0", "head")}
  assert leaves(layer_scales(part, 0.5, depth=2)) == {name: scales[name] for name in leaves(part)}


def test_layer_decay_scales_the_whole_direction():
  params, grads = network(), network(1)
  optimizer = dict(name="adamw", weight_decay=0.3)
  plain, _ = directions(settings(optimizer=optimizer), params, grads)
  scaled, _ = directions(settings(optimizer=optimizer, layer_decay=0.5), params, grads)
  scales = layer_scales(params, 0.5)
  jax.tree.map(
    lambda a, b, s: np.testing.assert_allclose(a, s * b, rtol=1e-6), scaled, plain, scales
  )


def test_an_optimizer_needs_shapes_only():
  params = network()
  config = settings(grad_clip_norm=1.0, layer_decay=0.9, freeze=("stem/.*",))
  from_shapes = make_optimizer(config, jax.eval_shape(lambda: params))
  update = lambda grads: from_shapes.update(grads, from_shapes.init(params), params)  # noqa: E731
  updates, _ = jax.jit(update)(network(1))
  expected, _ = directions(config, params, network(1))
  close(updates, expected)


def test_a_config_may_name_the_users_own_optimizer():
  name = f"{__name__}:half_of_the_gradient"
  updates, _ = directions(settings(optimizer=dict(name=name, by=0.5)), network(), network(1))
  jax.tree.map(lambda u, g: np.testing.assert_allclose(u, g / 2), updates, network(1))


def half_of_the_gradient(decay_mask, *, by):
  return optax.scale(by)


@pytest.mark.parametrize(
  "fields, message",
  [
    (dict(optimizer={"name": "adam", "weigth_decay": 0.9}), r"Did you mean 'weight_decay'"),
    (dict(optimizer={"name": "adam", "decay_mask": 1}), r"optimizer\.decay_mask"),
    (dict(freeze=("stem",)), r"freeze='stem' matches no whole name.*stem/conv/bias"),
  ],
)
def test_optimizers_that_cannot_work_are_refused(fields, message):
  with pytest.raises(ConfigError, match=message):
    make_optimizer(settings(**fields), network())


def test_rates_scale_the_directions_of_the_parameters_that_they_name():
  params, grads = network(), network(1)
  plain, _ = directions(settings(), params, grads)
  rates = (("head/.*", 2.0), (".*/bias", 4.0))
  scaled, _ = directions(settings(rates=rates), params, grads)
  factors = {"head/kernel": 2.0, "head/bias": 8.0}
  for name, direction in leaves(scaled).items():
    factor = factors.get(name, 4.0 if name.endswith("/bias") else 1.0)
    np.testing.assert_allclose(direction, factor * leaves(plain)[name], rtol=1e-6)
  with pytest.raises(ConfigError, match=r"rates='heads/\.\*' matches no whole name .*head/bias"):
    make_optimizer(settings(rates=(("heads/.*", 2.0),)), params)


def test_layer_decay_needs_one_sequence_of_blocks():
  params = {"encoder": {"block_0": {"kernel": np.ones((2, 2))}}}
  with pytest.raises(ConfigError, match=r"layer_decay=0\.9 needs blocks"):
    make_optimizer(settings(layer_decay=0.9), params)
