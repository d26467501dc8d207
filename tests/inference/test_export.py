"""Exported programs give the model's answers for any batch.

A program has the kernels of a platform only if it is for this platform alone.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax._src.cudnn import fused_attention_stablehlo as cudnn_library

import vitx
from tests.checkpoints import untrained
from tests.cli import density_models
from vitx.attention import MIXERS
from vitx.blocks.token_reduction import TOKEN_REDUCTIONS
from vitx.inference.export import PLATFORMS, input_specs, make_program
from vitx.ops.layout import TokenLayout

ALL = tuple(PLATFORMS)
SMALL = dict(width=8, depth=1, num_heads=2, mlp_dim=16, stem=dict(name="linear", patch=4))
MODELS = {
  "distilled_vit": SMALL,
  "levit": dict(width=8, depth=1, num_heads=2, mlp_dim=16),
  "lv_vit": SMALL
  | dict(stem=dict(name="normalized", channels=(4, 4, 4), strides=(1, 1, 1), patch=4)),
  "pit": dict(width=(8, 16), depth=(1, 1), num_heads=2, mlp_dim=16),
  "resnet": dict(depth=8),
  "swin": dict(
    width=8, depth=(1, 1), num_heads=(2, 4), mlp_ratio=2, stem=dict(name="linear", patch=2)
  ),
}
NEEDED = {  # fields without which a mixer does not fit the 16 tokens or has no default
  "linformer": dict(slots=4),
  "nystromformer": dict(landmarks=4),
  "sparsifiner": dict(slots=4),
  "bilevel": dict(regions=2, top=2),
  "bigbird": dict(block=4),
  "shifted_window": dict(size=2),
}


# Mixers of fixed edges; of their kind, `bigbird` and `shifted_window` are exported.
PATTERNS = ("axial", "erdos_renyi", "fixed", "locality", "longformer", "neighborhood")
PATTERNS += ("pattern", "strided", "watts_strogatz")


def call(program, *arrays):
  """Runs a program after writing it to bytes and reading it again."""
  return jax.jit(export.deserialize(program.serialize()).call)(*arrays)


def check(loaded, program, count):
  images = untrained.images(count)
  outputs, expected = call(program, images), vitx.predict(loaded, images)
  for name in ("logits", "probabilities"):
    np.testing.assert_allclose(outputs[name], expected.rows[name], rtol=1e-5, atol=1e-5)
  assert np.ptp(expected.logits) > 0.1, "nothing is tested by models with equal outputs for all"


def alone(name):
  """Returns the parts of a model that `make_program` reads; the network is one token mixer."""
  mixer, layout = MIXERS[name](2, **NEEDED.get(name, {})), TokenLayout((4, 4))
  tokens = jax.ShapeDtypeStruct((16, 8), jnp.float32)
  init = lambda x: mixer.init(jax.random.key(0), x[None], layout, train=False)  # noqa: E731

  def respond(params, state, inputs):
    variables = {"params": params, **state}
    return {"tokens": mixer.apply(variables, inputs["tokens"], layout, train=False)}

  task = SimpleNamespace(element_spec={"tokens": tokens}, targets=(), respond=respond)
  variables = {"params": {}} | untrained.draw(jax.eval_shape(init, tokens))
  return SimpleNamespace(task=task, variables=variables)


@pytest.mark.slow
def test_one_program_serves_all_platforms_and_batches():
  loaded = untrained.make(**SMALL, pool="mean")
  program = make_program(loaded, ALL, None, "masked")
  assert program.platforms == ALL
  for count in (1, 3):
    check(loaded, program, count)


@pytest.mark.slow  # compiles a program of each network
@pytest.mark.parametrize("reduction", sorted(set(TOKEN_REDUCTIONS) - {"none"}))
def test_every_token_reduction_is_exported(reduction):
  loaded = untrained.make(**SMALL, pool="cls", token_reduction={"name": reduction, "layers": (0,)})
  check(loaded, make_program(loaded, ALL, None, "masked"), 3)


@pytest.mark.slow  # compiles two programs of each mixer
@pytest.mark.parametrize("mixer", sorted(set(MIXERS) - {*PATTERNS}))
def test_every_mixer_is_exported_by_both_implementations(mixer):
  loaded = alone(mixer)
  tokens = np.random.default_rng(1).normal(size=(3, 16, 8)).astype(np.float32)
  masked = call(make_program(loaded, ALL, None, "masked"), tokens)["tokens"]
  kernelized = call(make_program(loaded, ALL, 3, "kernelized"), tokens)["tokens"]
  np.testing.assert_allclose(masked, kernelized, rtol=1e-5, atol=1e-5)
  assert np.ptp(masked, axis=0).max() > 1e-3, (
    "nothing is tested by mixers with equal outputs for all"
  )


@pytest.mark.slow  # compiles two programs of each network
@pytest.mark.parametrize("name", MODELS)
def test_networks_of_each_shape_are_exported(name):
  loaded = untrained.make(name, **MODELS[name])
  check(loaded, make_program(loaded, ALL, None, "masked"), 3)


@pytest.mark.slow
def test_a_density_model_is_exported():
  loaded = density_models.make()
  tokens = np.random.default_rng(0).integers(0, 17, (2, 64), np.uint8)
  inputs = {"tokens": tokens, "first": np.zeros(2, np.int32), "mask": np.ones(2, bool)}
  rows = jax.jit(loaded.task.evaluate)(loaded.variables["params"], {}, {}, inputs)["rows"]
  for batch in (None, 2):
    assert list(input_specs(loaded, batch)) == ["tokens"]
    outputs = call(make_program(loaded, ALL, batch, "masked"), tokens)
    assert outputs["logits"].shape == (2, 64, 17)
    bits = -np.asarray(outputs["log_probabilities"]).mean(axis=1) / np.log(2)
    np.testing.assert_allclose(bits, rows["bits"], rtol=1e-5)


@pytest.mark.slow
def test_a_program_for_one_platform_has_its_kernels(monkeypatch):
  monkeypatch.setattr(cudnn_library, "check_cudnn_version", lambda: 91100)  # as if installed
  half = untrained.make(**SMALL, dtype="bfloat16")
  inputs = {"image": untrained.images(2)}
  # The export must not use this trace, which is for a CPU.
  jax.eval_shape(half.task.respond, half.variables["params"], {}, inputs)

  def text(*platforms, implementation="kernelized"):
    return str(make_program(half, platforms, 2, implementation).mlir_module())

  splash, fused = "tpu_custom_call", "__cudnn$fmha"
  assert splash in text("tpu") and fused in text("cuda")
  for others in (("cpu",), ("cuda", "tpu")):
    program = text(*others)
    assert splash not in program and fused not in program
  assert splash not in text("tpu", implementation="masked")
  assert fused not in text("cuda", implementation="masked")
