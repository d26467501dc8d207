"""Published weights: outputs as their own code has them, names there and back, what is refused."""

import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from tests import runs
from tests.checkpoints.published import (
  DINOV2,
  FILES,
  FRESH,
  GOLDEN,
  HEADLESS,
  NETWORKS,
  begin,
  fill,
  golden,
  make,
  run,
)
from vitx.checkpoints import foreign, foreign_names
from vitx.checkpoints.tree import name_leaves
from vitx.errors import ConfigError
from vitx.ops.layout import TokenLayout
from vitx.training import loop
from vitx.training.setup import Experiment, make_experiment

WITH_ATTENTION = [name for name in NETWORKS if "mixer" not in name]


def assert_outputs(name, model, variables):
  images, expected = golden(name)
  found = run(model, variables, images)
  np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
  ("name", "implementation"),
  [*((name, "masked") for name in WITH_ATTENTION), ("timm_registers", "kernelized")],
)
def test_outputs_are_those_of_their_own_code(name, implementation):
  mixer = {"name": "softmax", **NETWORKS[name][1].get("token_mixer", {})}
  assert_outputs(name, *fill(name, token_mixer=mixer | {"implementation": implementation}))


@pytest.mark.parametrize("name", ["timm_mixer", "timm_convmixer"])
def test_outputs_without_attention(name):
  assert_outputs(name, *fill(name))


def test_big_visions_names():
  """They are AugReg's, counted anew, under `params/`."""
  theirs = foreign.read_arrays(FILES["augreg"])
  wanted, _ = foreign_names.to_ours(theirs, 3)
  for old, new in (
    ("Transformer/posembed_input/pos_embedding", "pos_embedding"),
    ("LayerNorm_2", "LayerNorm_1"),
    ("DotProductAttention_1", "DotProductAttention_0"),
    ("MlpBlock_3", "MlpBlock_0"),
  ):
    theirs = {name.replace(old, new): x for name, x in theirs.items()}
  found, left = foreign_names.to_ours({f"params/{name}": x for name, x in theirs.items()}, 3)
  assert left == [] and found.keys() == wanted.keys()
  for name, value in wanted.items():
    np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "dinov2_registers"])
def test_there_and_back_is_the_identity(name):
  theirs = foreign.read_arrays(FILES[name])
  ours, left = foreign_names.to_ours(theirs, 3)
  head = {"params/head/kernel", "params/head/bias"} if name in HEADLESS else set()
  assert left == [] and set(ours) | head == set(name_leaves(make(name)[1]))
  back = foreign_names.to_theirs(ours, foreign_names.find_family(theirs))
  counters = {key for key in theirs if key.endswith("num_batches_tracked")}
  assert set(back) == set(theirs) - counters
  for key, value in back.items():
    np.testing.assert_array_equal(value, theirs[key], err_msg=key)


@pytest.mark.parametrize("family", ["dinov2_registers", "registers"])
def test_registers_there_and_back(family):
  """DINOv2 keeps a position of the class token, timm and we its sum with the token."""
  theirs = foreign.read_arrays(FILES["dinov2_registers"])
  ours, left = foreign_names.to_ours(theirs, 3)
  assert left == [] and theirs["pos_embed"].shape == (1, 10, 12)
  back = foreign_names.to_theirs(ours, family)
  again, _ = foreign_names.to_ours(back, 3)
  assert again.keys() == ours.keys()
  for key, value in ours.items():
    np.testing.assert_array_equal(again[key], value, err_msg=key)


def test_heads_are_blocks_of_rows():
  """Of the stacked projections the queries come first, and each head's rows are together."""
  theirs = foreign.read_arrays(str(GOLDEN / "timm_vit.safetensors"))
  ours, _ = foreign_names.to_ours(theirs, 3)
  stacked = theirs["blocks.1.attn.qkv.weight"]  # (36, 12)
  key = ours["params/block_1/token_mixer/key/kernel"]  # (12, 3, 4)
  np.testing.assert_array_equal(key[:, 2, 1], stacked[12 + 2 * 4 + 1])
  out = ours["params/block_1/token_mixer/out/kernel"]  # (3, 4, 12)
  np.testing.assert_array_equal(out[2, 1], theirs["blocks.1.attn.proj.weight"][:, 2 * 4 + 1])


def test_another_grid_and_other_classes(capsys):
  _, variables = fill("timm_vit", side=40, layout=TokenLayout((5, 5), 1), num_classes=7)
  assert variables["params"]["posemb"]["table"].shape == (1, 26, 12)
  assert np.all(variables["params"]["head"]["kernel"] == FRESH)
  printed = capsys.readouterr().out
  assert "1 + 3 x 3 tokens -> 1 + 5 x 5 tokens" in printed and "head/kernel" in printed


def test_another_mixer_keeps_the_projections_that_it_shares():
  mixer = dict(name="linformer", slots=4)
  with pytest.raises(ConfigError, match=r"key_slots.*not in the file.*init_from_except"):
    fill("timm_vit", token_mixer=mixer)
  _, variables = fill("timm_vit", token_mixer=mixer, allowed=(".*_slots",))
  _, plain = fill("timm_vit")
  for part in ("query", "key", "value", "out"):
    jax.tree.map(
      np.testing.assert_array_equal,
      variables["params"]["block_0"]["token_mixer"][part],
      plain["params"]["block_0"]["token_mixer"][part],
    )


@pytest.mark.parametrize(
  ("name", "fields", "message"),
  [
    ("timm_vit", dict(width=24), r"does not fit this network.*shapes differ"),
    ("timm_vit", dict(depth=3), r"params/block_2/.*is not in the file"),
    ("timm_vit", dict(depth=1), r"params/block_1/.*has no place in this network"),
    ("timm_vit", dict(mlp_dim=20), r"mlp/up/kernel.*shapes differ"),
    ("timm_vit", dict(width=10, num_heads=5), r"num_heads=5"),
    ("lv_vit", dict(token_mixer="softmax"), r"query/bias \(is not in the file\)"),
    ("timm_dinov2", dict(block="pre_norm"), r"block_0/mixer_scale \(has no place"),
    ("timm_vit", dict(block=DINOV2["block"]), r"block_0/mixer_scale \(is not in the file\)"),
    ("dinov2_registers", dict(extra_tokens=0), r"params/extra \(has no place"),
    (
      "timm_mixer",
      dict(token_mixer="mlp_mixing"),
      r"up/kernel \(\[9, 6\] -> \[9, 9\]: shapes differ, and not",
    ),
  ],
)
def test_another_network_is_refused(name, fields, message):
  with pytest.raises(ConfigError, match=f"init_from=.*{name}.*{message}"):
    fill(name, **fields)


def test_names_may_be_allowed_but_not_by_a_broken_expression():
  fill("timm_vit", depth=1, allowed=("params/block_1/.*",))
  with pytest.raises(ConfigError, match="init_from_except"):
    fill("timm_vit", depth=1, allowed=("(",))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".bin"])
@pytest.mark.parametrize("content", ["empty", "noise", "truncated"])
def test_files_that_are_none(tmp_path, suffix, content):
  whole = {".safetensors": FILES["timm_vit"], ".npz": FILES["augreg"]}
  whole = Path(whole.get(suffix, GOLDEN / "torch_archive.pth")).read_bytes()
  path = tmp_path / f"a{suffix}"
  written = {"empty": b"", "noise": b"\xff" * 64, "truncated": whole[: len(whole) // 2]}[content]
  path.write_bytes(written)
  with pytest.raises(ConfigError, match=rf"a\{suffix}' is no readable"):
    foreign.read_variables(str(path), 3)
  assert path.read_bytes() == written


@pytest.mark.parametrize("suffix", [".npz", ".pth", ".bin"])
def test_a_pickle_that_wants_to_execute(tmp_path, suffix):
  """It is refused without having run, and stays as it is."""

  class Payload:
    def __reduce__(self):
      return open, (str(tmp_path / "executed"), "w")

  path = tmp_path / f"a{suffix}"
  if suffix == ".npz":
    np.savez(path, weights=np.array([Payload()], dtype=object), allow_pickle=True)
  else:
    path.write_bytes(pickle.dumps({"model": Payload()}))
  before = path.read_bytes()
  with pytest.raises(ConfigError, match=rf"a\{suffix}"):
    foreign.read_variables(str(path), 3)
  assert path.read_bytes() == before and not (tmp_path / "executed").exists()


def test_weights_of_unknown_names():
  with pytest.raises(ConfigError, match=r"torch_archive\.pth.*named by none of the sources"):
    foreign.read_variables(str(GOLDEN / "torch_archive.pth"), 3)
  with pytest.raises(ConfigError, match=r"nowhere\.pth.*no such file"):
    foreign.read_arrays("nowhere.pth")


ON_DIGITS = (
  *("duration=6 steps", "learning_rate=0.0", "data.image_size=24", "stem.patch=8", "pool=cls"),
  *("model.width=12", "model.depth=2", "model.num_heads=3", "model.mlp_dim=48"),
  f"init_from={GOLDEN / 'timm_vit.safetensors'}",
)


def test_a_run_names_what_does_not_fit_before_anything_is_compiled(tmp_path, monkeypatch):
  """The images are gray, and the mixer's slots are its own."""
  experiment = make_experiment(
    runs.tiny(*ON_DIGITS, "token_mixer=linformer", "init_from_except=('params/stem/embed/kernel',)")
  )
  monkeypatch.setattr(loop, "make_experiment", lambda *_, **__: experiment)
  monkeypatch.setattr(Experiment, "init_state", None)
  for dry_run in (False, True):
    with pytest.raises(ConfigError, match=r"key_slots.*model\.token_mixer='linformer'"):
      loop.train(experiment.config, tmp_path, dry_run=dry_run)
    assert not (tmp_path / "config.json").exists()


@pytest.mark.slow  # makes an experiment
def test_a_run_begins_with_them(tmp_path):
  """On gray images, for which the first convolution starts anew."""
  config = runs.tiny(*ON_DIGITS, "init_from_except=('params/stem/embed/kernel',)")
  found, wanted = begin(config, tmp_path).state, fill("timm_vit", num_classes=10)[1]["params"]
  jax.tree.map(np.testing.assert_array_equal, found.ema, found.params)
  found = found.params
  for name in ("kernel", "bias"):
    np.testing.assert_array_equal(found["head"][name], wanted["head"][name])
  assert found["stem"]["embed"].pop("kernel").shape == (8, 8, 1, 12)
  del wanted["stem"]["embed"]["kernel"]
  jax.tree.map(np.testing.assert_array_equal, found, wanted)
