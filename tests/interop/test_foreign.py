"""Published weights give the outputs of their own code, convert in both ways, or are refused."""

import functools
import json
import re
import struct
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from tests import runs
from tests.interop import torch_writer
from tests.interop.published import (
  DINOV3,
  FILES,
  FRESH,
  GOLDEN,
  HEADLESS,
  NETWORKS,
  OUTPUTS,
  TOWERS,
  begin,
  fill,
  golden,
  make,
  run,
)
from tests.slow import all_but
from vitx.checkpoints.tree import name_leaves
from vitx.config.errors import ConfigError
from vitx.interop import foreign, foreign_names
from vitx.interop.transfer import transfer
from vitx.ops.layout import TokenLayout
from vitx.training import loop
from vitx.training.experiment import Experiment, make_experiment

# Files whose class token has a position, which vitx adds to the token.
PLACED = ("dinov2_registers", "transformers_dinov2")
ROPE = DINOV3["posemb"]
WITH_ATTENTION = [name for name in NETWORKS if "mixer" not in name]


@functools.partial(jax.jit, static_argnums=0)
def run_sown(model, variables, images):
  """Returns the logits of a network, and the intermediates that it sows."""
  return model.apply(variables, images, mutable=["intermediates"])


def assert_outputs(name, model, variables):
  images, expected = golden(name)
  logits = run(model, variables, images)
  np.testing.assert_allclose(logits, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
  ("name", "implementation"),
  all_but(
    *("timm_vit", "kernelized"),
    of=[*((name, "masked") for name in WITH_ATTENTION), ("timm_registers", "kernelized")],
  ),
)
def test_outputs_are_those_of_their_own_code(name, implementation):
  mixer = {"name": "softmax", **NETWORKS[name][1].get("token_mixer", {})}
  assert_outputs(name, *fill(name, token_mixer=mixer | {"implementation": implementation}))


@pytest.mark.parametrize("name", ["timm_mixer", "timm_convmixer"])
def test_outputs_without_attention_are_those_of_their_own_code(name):
  assert_outputs(name, *fill(name))


@pytest.mark.parametrize("name", all_but("transformers_dinov3", of=TOWERS))
def test_towers_give_their_own_features_at_two_sizes(name):
  """The positions are those of the library, whose cubic interpolation differs from vitx's."""
  model, variables = fill(name)
  with np.load(OUTPUTS[name]) as file:
    arrays = dict(file)
  for part, side in (("", 24), ("wide_", (24, 40))):
    if f"{part}table" in arrays:
      table = fill(name, side=side, layout=TokenLayout((3, 5)))[1]["params"]["posemb"]["table"]
      assert np.abs(table - arrays[f"{part}table"]).max() < 0.15 * np.abs(table).max()
      variables["params"]["posemb"] = {"table": arrays[f"{part}table"]}
    pooled, sown = run_sown(model, variables, arrays[f"{part}images"])
    tokens = sown["intermediates"]["patch_tokens"][0]
    for output, kind in ((pooled, "logits"), (tokens, "tokens")):
      expected = arrays[part + kind]  # a tolerance of 3e-6 detects another epsilon than DINOv3's
      np.testing.assert_allclose(output, expected, atol=3e-6 * np.abs(expected).max())


def test_big_visions_names_are_read():
  """Big Vision has AugReg's names, with other numbers and under `params/`."""
  theirs = foreign.read_arrays(FILES["augreg"])[0]
  expected, _ = foreign_names.to_ours(theirs, 3)
  for old, new in (
    ("Transformer/posembed_input/pos_embedding", "pos_embedding"),
    ("LayerNorm_2", "LayerNorm_1"),
    ("DotProductAttention_1", "DotProductAttention_0"),
    ("MlpBlock_3", "MlpBlock_0"),
  ):
    theirs = {name.replace(old, new): x for name, x in theirs.items()}
  ours, unused = foreign_names.to_ours({f"params/{name}": x for name, x in theirs.items()}, 3)
  assert unused == []
  jax.tree.map(np.testing.assert_array_equal, ours, expected)


@pytest.mark.parametrize(
  "name",
  all_but(*("timm_vit", "lv_vit", "augreg"), of=[name for name in NETWORKS if name not in PLACED]),
)
def test_there_and_back_is_the_identity(name):
  theirs, _ = foreign_names.strip(foreign.read_arrays(FILES[name])[0], foreign.STATE_DICTS)
  ours, unused = foreign_names.to_ours(theirs, 3)
  head = {"params/head/kernel", "params/head/bias"} if name in HEADLESS else set()
  assert unused == [] and set(ours) | head == set(name_leaves(make(name)[1]))
  back = foreign_names.to_theirs(ours, foreign_names.find_family(theirs))
  counters = {key for key in theirs if key.endswith(("num_batches_tracked", "mask_token"))}
  expected = {key: theirs[key] for key in theirs if key not in counters}
  jax.tree.map(np.testing.assert_array_equal, back, expected)


@pytest.mark.parametrize("family", ["dinov2_registers", "registers"])
def test_registers_go_there_and_back(family):
  """DINOv2 keeps a position of the class token; timm and vitx keep its sum with the token."""
  theirs = foreign.read_arrays(FILES["dinov2_registers"])[0]
  ours, unused = foreign_names.to_ours(theirs, 3)
  assert unused == [] and theirs["pos_embed"].shape == (1, 10, 12)
  back = foreign_names.to_theirs(ours, family)
  jax.tree.map(np.testing.assert_array_equal, foreign_names.to_ours(back, 3)[0], ours)


def test_a_class_token_of_another_shape_is_refused():
  theirs = foreign.read_arrays(FILES["dinov2_registers"])[0] | {"cls_token": np.ones((3, 12))}
  with pytest.raises(ConfigError, match="is not the shape of a row"):
    foreign_names.to_ours(theirs, 3)


def in_front(prefix, arrays):
  return {prefix + name: x for name, x in arrays.items()}


HEAD = ("head.weight", "head.bias")
# The content of a file of `torch.save`, made of a network's weights w, its body b and head h, and
# names that the report contains.
WRAPPED = {
  "ddp": (lambda w, b, h: in_front("module.", w), ["module."]),
  "compiled": (lambda w, b, h: in_front("_orig_mod.", w), ["_orig_mod."]),
  "compiled_blocks": (
    lambda w, b, h: {n.replace("blocks.0.", "blocks.0._orig_mod."): x for n, x in w.items()},
    ["_orig_mod."],
  ),
  "chunks": (  # as DINOv2's code with `block_chunks` names blocks, whose numbers go on
    lambda w, b, h: {re.sub(r"(?<=blocks)(\.\d)", r"\1\1", n): x for n, x in w.items()},
    ["blocks.0."],
  ),
  "fsdp": (lambda w, b, h: in_front("_fsdp_wrapped_module.", w), ["_orig_mod."]),
  "lightning": (lambda w, b, h: {"state_dict": in_front("model.", w)}, ["state_dict.", "model."]),
  "of_one's_own": (lambda w, b, h: {"state_dict": in_front("net.vit.", w)}, ["net.vit."]),
  "tutorial": (lambda w, b, h: {"model_state_dict": w, "epoch": 3}, ["model_state_dict.", "epoch"]),
  "two_keys": (lambda w, b, h: {"state": {"model": w}, "epoch": 1}, ["epoch"]),
  "average": (lambda w, b, h: {"model": w, "model_ema": in_front("module.", b)}, ["model_ema"]),
  "ijepa": (
    lambda w, b, h: {
      "encoder": in_front("module.", {name: 0 * x for name, x in w.items()}),
      "predictor": {"module.predictor_pos_embed": w["pos_embed"]},
      "target_encoder": in_front("module.", w),
    },
    ["target_encoder.", "encoder", "predictor", "module."],
  ),
  "head_beside": (lambda w, b, h: in_front("backbone.", b) | h, ["backbone."]),
  "two_networks": (
    lambda w, b, h: in_front("teacher.backbone.", w) | in_front("student.backbone.", w),
    ["teacher.backbone.", "student.backbone.cls_token"],
  ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrappers_of_weights_are_removed_and_reported(name, tmp_path):
  wrap, reported = WRAPPED[name]
  whole = foreign.read_arrays(FILES["timm_vit"])[0]
  body, head = ({n: x for n, x in whole.items() if (n in HEAD) == is_head} for is_head in (0, 1))
  path = torch_writer.save(wrap(whole, body, head), tmp_path / "a.ckpt")
  variables, unused, beside, *_ = foreign.read_variables(path, 3)
  expected, *_ = foreign.read_variables(FILES["timm_vit"], 3)
  jax.tree.map(np.testing.assert_array_equal, variables, expected)
  assert unused == [] and set(reported) <= beside.keys()


def test_a_network_beside_unknown_parts_comes_without_them(tmp_path):
  """DINO's teacher is loaded without its head, which is a projection and no classifier."""
  whole = foreign.read_arrays(FILES["timm_vit"])[0]
  teacher = in_front("backbone.", {n: x for n, x in whole.items() if n not in HEAD})
  teacher |= {"head.mlp.0.weight": np.ones((4, 12)), "head.weight": whole["head.weight"]}
  content = {"student": in_front("module.", teacher), "teacher": teacher, "epoch": 3}
  path = torch_writer.save(content, tmp_path / "dino.pth")
  variables, unused, beside, *_ = foreign.read_variables(path, 3)
  assert "head" not in variables["params"] and unused == []
  assert {"teacher.", "student", "backbone.", "head.mlp.0.weight", "head.weight"} <= beside.keys()
  assert "other weights" in beside["student"]


@pytest.mark.parametrize(
  ("wrap", "message"),
  [
    (lambda w: {"a": w, "b": w}, "has arrays under each of 'a', 'b'"),
    (lambda w: in_front("a.", w) | in_front("b.", w), r"several networks, a\.\*, b\.\*; save one"),
    (
      lambda w: in_front("module._orig_mod.", w) | in_front("module.", w),
      "two of its arrays have one name",
    ),
    (lambda w: {"epoch": 3, "name": "x"}, "names of its arrays"),
    (lambda w: [w], "no dict of arrays but of the type list; save the state_dict"),
  ],
)
def test_ambiguous_files_are_refused(wrap, message, tmp_path):
  path = torch_writer.save(wrap(foreign.read_arrays(FILES["timm_vit"])[0]), tmp_path / "a.pth")
  with pytest.raises(ConfigError, match=rf"a\.pth.*{message}"):
    foreign.read_variables(path, 3)


_PARTS = {
  **{
    f"attention.attention.{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value")
  },
  "attention.output.dense": "attention.o_proj",
}
# The names in memory, in newer versions of the library, by those in files.
NEWER_NAMES = {
  "transformers_vit": {
    **_PARTS,
    "encoder.layer": "layers",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "vit.": "",
  },
  "transformers_dinov2": _PARTS,
  "transformers_dinov3": {"layer.": "model.layer."},
}


@pytest.mark.parametrize("name", NEWER_NAMES)
def test_newer_names_of_transformers_are_read(name):
  """Files of a network without a classifier also have a layer after the class token."""
  arrays, _ = foreign_names.strip(foreign.read_arrays(FILES[name])[0], foreign.STATE_DICTS)
  named = {"pooler.dense.weight": np.ones(12)}
  for old, x in arrays.items():
    new = old
    for part, newer in NEWER_NAMES[name].items():
      new = new.replace(part, newer)
    named[new] = x
  (expected, unused), (ours, newer_unused) = (foreign_names.to_ours(x, 3) for x in (arrays, named))
  assert named.keys() & arrays.keys() != arrays.keys() and unused == newer_unused == []
  jax.tree.map(np.testing.assert_array_equal, ours, expected)


def test_dinov2_of_transformers_needs_no_registers():
  arrays, _ = foreign.read_arrays(FILES["transformers_dinov2"])
  expected, _ = foreign_names.to_ours(arrays, 3)
  del arrays["embeddings.register_tokens"], expected["params/extra"]
  expected["params/cls"] = arrays["embeddings.cls_token"]
  expected["params/posemb/table"] = arrays["embeddings.position_embeddings"]
  ours, unused = foreign_names.to_ours(arrays, 3)
  assert unused == [] and foreign_names.find_family(arrays) == "transformers_dinov2"
  jax.tree.map(np.testing.assert_array_equal, ours, expected)


def test_a_class_token_beside_the_network_is_left_out():
  """The names of the distilled network have a rule for two tokens, of which one is not there."""
  theirs = foreign.read_arrays(FILES["timm_distilled"])[0]
  named = {f"student.{name}": x for name, x in theirs.items()} | {"cls_token": np.ones((1, 1, 12))}
  arrays, notes = foreign_names.strip(named, foreign.STATE_DICTS)
  assert arrays.keys() == theirs.keys()
  assert notes["cls_token"] == "outside the network student.*"


def dinov3_under_other_names(arrays):
  """Returns timm's arrays under the names of DINOv3's own code, with a mask of the keys' bias."""
  short = {"reg_token": "storage_tokens"}
  short |= {f"blocks.{i}.gamma_{j}": f"blocks.{i}.ls{j}.gamma" for i in (0, 1) for j in (1, 2)}
  named = {short.get(name, name): x for name, x in arrays.items() if "_bias" not in name}
  for i in (0, 1):
    query, value = (arrays[f"blocks.{i}.attn.{x}_bias"] for x in "qv")
    named[f"blocks.{i}.attn.qkv.bias"] = np.concatenate([query, np.ones(24), value])
    named[f"blocks.{i}.attn.qkv.bias_mask"] = np.repeat([1.0, 0.0, 1.0], 24)
  return named | {"mask_token": np.ones((1, 24)), "rope_embed.periods": np.ones(2)}


def test_names_of_dinov3_are_read():
  """timm's files have biases of queries and values, or none, since the published ones are zero."""
  arrays, _ = foreign.read_arrays(str(GOLDEN / "exported_dinov3.safetensors"))
  expected, unused = foreign_names.to_ours(arrays, 3)
  assert unused == [] and foreign_names.find_family(arrays) == "timm_dinov3"
  named = dinov3_under_other_names(arrays)
  ours, unused = foreign_names.to_ours(named, 3)
  assert unused == [] and foreign_names.find_family(named) == "dinov3"
  jax.tree.map(np.testing.assert_array_equal, ours, expected)
  back = foreign_names.to_theirs(ours, "dinov3")
  jax.tree.map(np.testing.assert_array_equal, foreign_names.to_ours(back, 3)[0], expected)
  named["blocks.1.attn.qkv.bias_mask"] = np.ones(72)
  with pytest.raises(ConfigError, match=r"blocks\.1\.attn\.qkv\.bias .*leaves a bias of the keys"):
    foreign_names.to_ours(named, 3)
  plain = {name: x for name, x in arrays.items() if "_bias" not in name}
  ours, unused = foreign_names.to_ours(plain, 3)
  assert unused == [] and foreign_names.find_family(plain) == "timm_dinov3_without_biases"
  zeros = {n: 0 * x if n.endswith(("query/bias", "value/bias")) else x for n, x in expected.items()}
  jax.tree.map(np.testing.assert_array_equal, ours, zeros)
  back = foreign_names.to_theirs(ours, "timm_dinov3_without_biases")
  jax.tree.map(np.testing.assert_array_equal, back, plain)


def test_the_tower_of_texts_is_ignored(capsys):
  fill("transformers_siglip")
  printed = capsys.readouterr().out
  assert "ignored     41\n  vision_model.  in front of 48 names; removed\n" in printed
  assert "outside the network vision_model.*\n" in printed and "  and 36 more" in printed
  assert all(f"{fate:<8}     0" in printed for fate in ("skipped", "unused"))


def test_another_grid_is_resized_and_other_classes_start_anew(capsys):
  _, variables = fill("timm_vit", side=40, layout=TokenLayout((5, 5), 1), num_classes=7)
  assert variables["params"]["posemb"]["table"].shape == (1, 26, 12)
  assert np.all(variables["params"]["head"]["kernel"] == FRESH)
  printed = capsys.readouterr().out
  assert "1 + 3 x 3 tokens -> 1 + 5 x 5 tokens" in printed and "head/kernel" in printed


def test_another_mixer_keeps_the_projections_that_it_shares():
  mixer = dict(name="linformer", slots=4)
  with pytest.raises(ConfigError, match=r"key_slots.*not in the source.*init_from_except"):
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
    ("timm_vit", dict(mlp_dim=20), r"mlp/up/kernel.*shapes differ"),
    ("timm_vit", dict(width=10, num_heads=5), r"num_heads=5"),
    ("timm_dinov2", dict(block="pre_norm"), r"block_0/mixer_scale \(has no place"),
    ("transformers_dinov3", dict(token_mixer="softmax"), r"key/bias \(is not in the source\)"),
    (
      "transformers_dinov3",
      dict(posemb="none"),
      r"set model\.posemb=dict\(name='rope', kind='cent",
    ),
    ("transformers_dinov3", dict(posemb=ROPE | dict(kind="axial")), "set model.posemb"),
    ("transformers_dinov3", dict(posemb=dict(name="rope", kind="centered")), r"base=100\.0\)"),
    ("timm_mixer", dict(posemb="sincos"), r"posemb \(set model\.posemb=dict\(name='none'\)"),
    ("transformers_siglip", dict(pool="mean"), r"pool/probe \(has no place"),
    (
      "timm_mixer",
      dict(token_mixer="mlp_mixing"),
      r"up/kernel \(\[9, 6\] -> \[9, 9\]: the shapes differ in more than",
    ),
  ],
)
def test_another_network_is_refused(name, fields, message):
  with pytest.raises(ConfigError, match=f"init_from=.*{name}.*{message}"):
    fill(name, **fields)


def test_the_config_may_accept_other_positions():
  fill("transformers_dinov3", posemb="none", allowed=("posemb",))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth", ".bin"])
@pytest.mark.parametrize("content", ["empty", "noise", "truncated"])
def test_damaged_files_are_refused(tmp_path, suffix, content):
  whole = {".safetensors": FILES["timm_vit"], ".npz": FILES["augreg"]}
  whole = Path(whole.get(suffix, GOLDEN / "torch_archive.pth")).read_bytes()
  path = tmp_path / f"a{suffix}"
  written = {"empty": b"", "noise": b"\xff" * 64, "truncated": whole[: len(whole) // 2]}[content]
  path.write_bytes(written)
  with pytest.raises(ConfigError, match=rf"a\{suffix}' (is no readable|cannot be read)"):
    foreign.read_variables(str(path), 3)
  assert path.read_bytes() == written


def safetensors(path, dtype, content, *, shape=(4,), size=None, head=None):
  """Writes a safetensors file with one array, whose head may state a wrong size."""
  about = {"dtype": dtype, "shape": shape, "data_offsets": [0, size or len(content)]}
  text = json.dumps({"a": about}).encode()
  path.write_bytes(struct.pack("<Q", head or len(text)) + text + content)
  return str(path)


@pytest.mark.parametrize(
  ("dtype", "array"),
  [
    ("F8_E4M3", np.array([0.5, -1, 2, 448], ml_dtypes.float8_e4m3fn)),
    ("F8_E5M2", np.array([0.5, -1, 2, 4096], ml_dtypes.float8_e5m2)),
    ("F8_E8M0", np.array([0.5, 1, 2, 4], ml_dtypes.float8_e8m0fnu)),
    ("BF16", np.array([0.5, -1, 2, 3], ml_dtypes.bfloat16)),
    ("F64", np.array([0.5, -1, 2, np.pi])),
    ("U16", np.array([1, 2, 3, 65535], np.uint16)),
  ],
)
def test_all_numbers_of_safetensors_are_read(tmp_path, dtype, array):
  arrays, _ = foreign.read_arrays(safetensors(tmp_path / "a.safetensors", dtype, array.tobytes()))
  assert arrays["a"].dtype == array.dtype
  np.testing.assert_array_equal(arrays["a"], array)


@pytest.mark.parametrize(
  ("how", "message"),
  [
    (dict(dtype="C64", content=bytes(32)), "no readable safetensors file: 'C64'"),
    (dict(dtype="F32", content=bytes(16), size=3 * 10**9, shape=(750_000_000,)), "no readable"),
    (dict(dtype="F32", content=bytes(16), head=2**63), "no readable safetensors"),
    (dict(dtype="F32", content=bytes(16), shape=(-4,)), "no readable safetensors"),
  ],
)
def test_damaged_safetensors_are_refused(tmp_path, how, message):
  path = safetensors(tmp_path / "a.safetensors", **how)
  with pytest.raises(ConfigError, match=rf"a\.safetensors'.*{message}"):
    foreign.read_arrays(path)


def test_weights_with_unknown_names_are_refused():
  with pytest.raises(
    ConfigError, match=r"torch_archive\.pth.*names of its arrays .* are not known"
  ):
    foreign.read_variables(str(GOLDEN / "torch_archive.pth"), 3)


ON_DIGITS = (
  *("duration=6 steps", "learning_rate=0.0", "data.image_size=24", "stem.patch=8", "pool=cls"),
  *("model.width=12", "model.depth=2", "model.num_heads=3", "model.mlp_dim=48"),
  f"init_from={GOLDEN / 'timm_vit.safetensors'}",
)


def test_a_run_names_misfits_before_it_compiles(tmp_path, monkeypatch):
  """The error names Linformer's slots, which no published file has."""
  experiment = make_experiment(runs.tiny(*ON_DIGITS, "token_mixer=linformer"))
  monkeypatch.setattr(loop, "make_experiment", lambda *_, **__: experiment)
  monkeypatch.setattr(Experiment, "start_init", None)
  for dry_run in (False, True):
    with pytest.raises(ConfigError, match=r"token_mixer/key_slots"):
      loop.train(experiment.settings, tmp_path, dry_run=dry_run)
    assert not (tmp_path / "config.json").exists()


def test_a_run_begins_with_published_weights(tmp_path, capsys):
  """The run has gray images, so the first convolution is summed over the colors."""
  config = runs.tiny(*ON_DIGITS)
  state, expected = begin(config, tmp_path).load(), fill("timm_vit", num_classes=10)[1]["params"]
  jax.tree.map(np.testing.assert_array_equal, state.ema, state.params)
  params = state.params
  for name in ("kernel", "bias"):
    np.testing.assert_array_equal(params["head"][name], expected["head"][name])
  summed = expected["stem"]["embed"]["kernel"].sum(axis=2, keepdims=True)
  expected["stem"]["embed"]["kernel"] = summed
  assert summed.shape == (8, 8, 1, 12)
  jax.tree.map(np.testing.assert_array_equal, params, expected)
  said = "params/stem/embed/kernel  [8, 8, 3, 12] -> [8, 8, 1, 12]: summed over the colors"
  assert said in capsys.readouterr().out


@pytest.mark.parametrize("source", [(8, 8, 2, 12), (8, 8, 1, 12), (4, 4, 3, 12), (8, 3, 12)])
def test_other_first_convolutions_start_anew_or_fit(source):
  """For gray images, a gray kernel fits, and kernels of two channels or another size start anew."""
  fresh = {"stem": {"embed": {"kernel": np.zeros((8, 8, 1, 12))}}, "norm": {"scale": np.ones(2)}}
  theirs = {"stem": {"embed": {"kernel": np.ones(source)}}, "norm": {"scale": np.ones(2)}}
  _, report = transfer(fresh, theirs)
  assert report.resized == {} and ("stem/embed/kernel" in report.skipped) == (source[2] != 1)
