"""A token mixer takes the projections that it shares with a published backbone, or names others."""

import numpy as np
import pytest

from tests.interop.published import FILES, FRESH, fill
from tests.slow import all_but
from vitx.attention import MIXERS
from vitx.checkpoints.tree import name_leaves
from vitx.config.errors import ConfigError
from vitx.interop import foreign
from vitx.interop.export import write_safetensors
from vitx.ops.layout import TokenLayout

# Fields that a mixer needs for 1 + 3 x 3 tokens.
FIELDS = {
  "bigbird": dict(block=2),
  "bilevel": dict(regions=2, top=1),
  "linformer": dict(slots=4),
  "neighborhood": dict(size=3),
  "pattern": dict(edges="window"),
  "watts_strogatz": dict(neighbors=2),
}
# Mixers with the parameters and shapes of softmax attention.
SAME = (
  *("axial", "bigbird", "erdos_renyi", "fixed", "linear_transformer", "longformer"),
  *("neighborhood", "pattern", "performer", "shifted_window", "softmax", "strided"),
  "watts_strogatz",
)
# Mixers with the first parameter that only the file has or that only the mixer has.
OTHER = {
  "bilevel": "local",
  "fnet": "query/kernel",
  "levit": "query/bias",
  "linformer": "key_slots",
  "locality": "temperature",
  "mlp_mixing": "query/kernel",
  "nystromformer": "convolution",
  "shaped": "value/kernel",
  "sparsifiner": "basis",
  "xcit": "temperature",
}
WITHOUT_CLASS = ("cvt",)  # convolves the grid, in which a class token has no place
TAKEN = [name for name in MIXERS if name not in WITHOUT_CLASS]
QUICK = ("performer", "linformer", "fnet")


def projections(variables):
  """Returns the parameters of all token mixers by name."""
  leaves = name_leaves(variables["params"])
  return {name: x for name, x in leaves.items() if "/token_mixer/" in name}


def test_every_mixer_is_one_or_the_other():
  assert set(SAME) | set(OTHER) == set(TAKEN) and not set(SAME) & set(OTHER)


@pytest.mark.parametrize("name", all_but(*QUICK, of=TAKEN))
def test_shared_projections_are_kept_and_others_are_named(name):
  mixer = dict(name=name, **FIELDS.get(name, {}))
  if name in SAME:
    _, variables = fill("timm_vit", token_mixer=mixer)
  else:
    with pytest.raises(ConfigError) as error:
      fill("timm_vit", token_mixer=mixer)
    assert f"token_mixer/{OTHER[name]}" in str(error.value)
    _, variables = fill("timm_vit", token_mixer=mixer, allowed=(".*/token_mixer/.*",))
  published, filled = projections(fill("timm_vit")[1]), projections(variables)
  shared = [key for key, x in published.items() if key in filled and filled[key].shape == x.shape]
  if name in SAME:
    assert shared == list(published) == list(filled)
  elif name not in ("fnet", "mlp_mixing"):
    assert {"block_0/token_mixer/query/kernel", "block_1/token_mixer/key/kernel"} <= set(shared)
  for key, value in filled.items():  # parameters that are not shared have new values
    np.testing.assert_array_equal(value, published[key] if key in shared else FRESH, err_msg=key)


@pytest.mark.parametrize("name", WITHOUT_CLASS)
def test_a_mixer_without_class_token_is_refused(name):
  with pytest.raises(ConfigError, match=f"model.token_mixer={name!r}.*class token"):
    fill("timm_vit", token_mixer=name)


@pytest.mark.slow
def test_predictors_of_sparsifiner_are_read_and_resized(tmp_path, monkeypatch):
  """A backbone's file has predictors under the released code's names; another grid resizes them."""
  random = np.random.default_rng(0)
  theirs = foreign.read_arrays(FILES["timm_vit"])[0]
  for block in range(2):
    name = f"blocks.{block}.attn.mask_predictor"
    for part, shape in (
      *((f"{x}.weight", (2, 4)) for x in ("proj_c_q", "proj_c_k")),
      *((f"{x}.bias", (2,)) for x in ("proj_c_q", "proj_c_k")),
      *((x, (10, 3)) for x in ("proj_n", "proj_back_n")),
    ):
      theirs[f"{name}.{part}"] = random.normal(size=shape).astype(np.float32)
  write_safetensors(tmp_path / "sparse.safetensors", theirs)
  monkeypatch.setitem(FILES, "timm_vit", str(tmp_path / "sparse.safetensors"))
  mixer = dict(name="sparsifiner", slots=3)
  arrays = projections(fill("timm_vit", token_mixer=mixer)[1])
  for ours, expected in (
    ("reduce_query/kernel", theirs["blocks.1.attn.mask_predictor.proj_c_q.weight"].T),
    ("reduce_key/bias", theirs["blocks.1.attn.mask_predictor.proj_c_k.bias"]),
    ("down", theirs["blocks.1.attn.mask_predictor.proj_n"]),
    ("basis", theirs["blocks.1.attn.mask_predictor.proj_back_n"]),
  ):
    np.testing.assert_array_equal(arrays[f"block_1/token_mixer/{ours}"], expected, err_msg=ours)
  larger = projections(
    fill("timm_vit", side=40, layout=TokenLayout((5, 5), 1), token_mixer=mixer)[1]
  )
  for name in ("down", "basis"):
    key = f"block_0/token_mixer/{name}"
    assert larger[key].shape == (26, 3)
    np.testing.assert_array_equal(larger[key][0], arrays[key][0])
