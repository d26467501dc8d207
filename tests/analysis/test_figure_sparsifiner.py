"""The figure of Sparsifiner: its captured arrays, its table and its files."""

import csv
import itertools

import numpy as np
import pytest

from tests.analysis.test_figure_arrays import make
from vitx.analysis.figures.papers.sparsifiner import capture, describe_layer
from vitx.config.errors import ConfigError
from vitx.inference.visualize import Options, visualize
from vitx.ops.layout import TokenLayout

LAYOUT = TokenLayout((2, 3), prefix=1)


def test_a_layer_is_described_by_counts():
  random = np.random.default_rng(0)
  edges = random.random((2, 3, 7, 7)) < 0.5
  sparse = edges * random.random(edges.shape)
  full = random.dirichlet(np.ones(7), edges.shape[:3])
  coefficients = (random.random((2, 3, 6, 4)) < 0.3).astype(float)
  layer = dict(sparse=sparse, full=full, coefficients=coefficients, pruned_basis=np.eye(7)[:, :4])
  inside, of_queries, of_images, sizes = [], [], [], []

  def overlap(a, b):
    return len(a & b) / max(len(a | b), 1)

  for b, h in np.ndindex(2, 3):
    sets = [set(np.flatnonzero(edges[b, h, q])) for q in range(1, 7)]
    sizes += map(len, sets)
    inside += [full[b, h, q + 1, sorted(keys)].sum() for q, keys in enumerate(sets)]
    of_queries += [overlap(*pair) for pair in itertools.combinations(sets, 2)]
  for h, q in np.ndindex(3, 6):
    of_images.append(overlap(*(set(np.flatnonzero(edges[b, h, q + 1])) for b in range(2))))
  assert describe_layer(layer, LAYOUT) == pytest.approx(
    {
      "basis_zeros": 1 - 4 / 28,
      "coefficient_zeros": np.mean(coefficients == 0),
      "kept_keys": np.mean(sizes),
      "attention_kept": np.mean(inside),
      "overlap_of_queries": np.mean(of_queries),
      "overlap_of_images": np.mean(of_images),
    }
  )
  one = {name: array[:1] for name, array in layer.items() if name != "pruned_basis"}
  described = describe_layer({**layer, **one}, LAYOUT)
  assert np.isnan(described["overlap_of_images"]) and described["overlap_of_queries"] > 0


def test_a_capture_has_attention_with_masks_and_without():
  layers = capture(*make(dict(name="sparsifiner", slots=3, keep=0.4)))
  assert len(layers) == 2
  for layer in layers:
    for name in ("sparse", "full"):
      assert layer[name].shape == (2, 2, 10, 10)
      np.testing.assert_allclose(layer[name].sum(-1), 1, rtol=1e-5)
    assert np.all((layer["sparse"] > 0)[:, :, 1:].sum(-1) == 4) and np.all(layer["full"] > 0)
    assert np.all(layer["sparse"][:, :, 0] > 0)  # The class token attends to all tokens.
  np.testing.assert_allclose(layers[0]["full"][:, :, 0], layers[0]["sparse"][:, :, 0], rtol=1e-5)


@pytest.mark.slow  # draws three pictures
def test_the_figure_writes_its_files(tmp_path):
  pytest.importorskip("matplotlib")
  config = "configs/digits.py:sparsifiner,model.width=16,model.depth=1,model.num_heads=2,pool=cls"
  config += ",token_mixer.slots=3,stem=linear,stem.patch=2"
  options = Options(examples=2, queries=(5,))
  files = visualize("sparsifiner", tmp_path, config=config, options=options)
  assert [path.name for path in files] == [
    *(f"sparsifiner_sparsifiner_{end}.png" for end in ("0", "1", "basis")),
    "sparsifiner_sparsifiner.csv",
  ]
  rows = list(csv.DictReader(files[-1].read_text().splitlines()))
  assert [row["layer"] for row in rows] == ["0"]


@pytest.mark.parametrize(
  "mixer", [dict(name="softmax"), dict(name="sparsifiner", slots=3, keep=0.4, sparse=False)]
)
def test_a_model_without_masks_is_refused(mixer):
  with pytest.raises(ConfigError, match=r"token_mixer\.sparse=True"):
    capture(*make(mixer, depth=1))
