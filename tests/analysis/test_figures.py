"""The numbers behind the figures: shares of attention, maps of queries, patterns of layers."""

import jax
import numpy as np
import pytest

from tests.drawn import draw_variables
from vitx.analysis.figures import capture as mixers
from vitx.analysis.figures import patterns, style
from vitx.analysis.figures.papers.attention_past import attention_mass, capture, uniform_mass
from vitx.config.errors import ConfigError, escape
from vitx.models import create_model, model_from_config
from vitx.models.masked_autoencoder import make_autoencoder
from vitx.models.sown import collect
from vitx.ops.layout import TokenLayout

GRID = (2, 3, 2)  # rows, columns, channels: twelve tokens


def make_model(grid=GRID, depth=2, **mixer):
  return model_from_config(
    {
      **{"name": "sparse_transformer", "vocabulary": 17, "grid": grid, "depth": depth},
      **{"width": 8, "num_heads": 2, "mlp_dim": 8, "token_mixer": mixer},
    }
  )


def first_only(n):
  """Returns attention (1, N, N) in which every query attends only token 0."""
  return np.eye(n)[[0] * n][None]


def test_attention_to_the_first_token_counts_in_its_row_and_column():
  assert attention_mass(np.eye(12)[None], GRID, 1) == {"local": 1, "row": 1, "column": 1}
  shares = attention_mass(first_only(12), GRID, 2)
  # Token 0 is among the last two tokens of two queries, in the row of six, in the column of four.
  expected = {"local": 2 / 12, "row": 6 / 12, "column": 4 / 12}
  assert shares == pytest.approx(expected)


def test_shares_average_heads_and_a_sequence_has_no_rows():
  both = np.concatenate([first_only(6), np.eye(6)[None]])
  shares = attention_mass(both, (6,), 2)
  assert set(shares) == {"local"} and float(shares["local"]) == pytest.approx((2 / 6 + 1) / 2)


def test_shares_of_uniform_attention_agree_with_counts():
  shares = uniform_mass((3, 4), 3)
  near = np.mean([min(i + 1, 3) / (i + 1) for i in range(12)])
  row = np.mean([(i % 4 + 1) / (i + 1) for i in range(12)])
  column = np.mean([(i // 4 + 1) / (i + 1) for i in range(12)])
  assert shares == pytest.approx({"local": near, "row": row, "column": column})


def test_queries_of_zero_attend_uniformly():
  model = make_model(name="softmax", implementation="masked")
  tokens = np.arange(24, dtype=np.int32).reshape(2, 12) % 17
  blind = jax.tree_util.tree_map_with_path(
    lambda path, x: np.zeros_like(x) if "query" in jax.tree_util.keystr(path) else x,
    draw_variables(model.init, tokens, scale=1.0),
  )
  maps, masses = capture(model, blind, tokens, grid=GRID, local=2, queries=(0, 5))
  assert maps.shape == (2, 2, 12)
  np.testing.assert_allclose(maps[:, 1, :6], 1 / 6, rtol=1e-5)
  np.testing.assert_array_equal(maps[:, 1, 6:], 0)
  expected = {name: float(x) for name, x in uniform_mass(GRID, 2).items()}
  assert masses == [pytest.approx(expected)] * 2


def test_a_mixer_that_holds_no_matrix_is_refused():
  model = make_model(name="softmax", implementation="kernelized")
  tokens = np.zeros((1, 12), np.int32)
  variables = draw_variables(model.init, tokens)
  with pytest.raises(ConfigError, match="hold the matrix"):
    capture(model, variables, tokens, grid=GRID, local=2, queries=(0,))


def test_collected_layers_have_the_order_of_their_numbers():
  sown = {f"block_{i}": {"token_mixer": {"attention": (np.full(1, i),)}} for i in (0, 10, 2, 1)}
  sown["tokens"] = (np.full(1, 99),)
  assert [int(x[0]) for x in collect(sown, "attention").values()] == [0, 1, 2, 10]


def test_layers_with_one_pattern_share_a_drawing():
  fields = {"name": "strided", "form": "code", "stride": 4, "arrangement": "layers"}
  model = make_model((4, 4, 3), 8, local_layers=3, **fields)
  column, local = patterns.find_patterns(model, model.input_spec)
  assert column.layer == "layers 0, 4" and local.layer == "layers 1, 2, 3, 5, 6, 7"
  assert column.layout == TokenLayout((4, 4, 3)) and column.heads == 2
  seen = [
    np.flatnonzero(patterns.edges_between(used, 0, np.array([21]), np.arange(48))[0]).tolist()
    for used in (column, local)
  ]
  assert seen == [[1, 5, 9, 13, 17, 21], [18, 19, 20, 21]]


def test_a_masked_autoencoder_shows_its_encoder():
  """The figures of a masked autoencoder show its encoder and leave out its decoder.

  The decoder has another width, and softmax attention, which has no pattern.
  """
  sizes = {"width": 8, "num_heads": 2, "mlp_dim": 8}
  mixer = {"name": "locality", "implementation": "masked"}
  parts = {"stem": {"name": "linear", "patch": 4}, "posemb": "sincos", "token_mixer": mixer}
  body = create_model("vit", num_classes=3, depth=2, **sizes, **parts)
  decoder = {"depth": 1, "posemb": "sincos", **sizes, "width": 16}
  model = make_autoencoder(body, (8, 8, 1), mask_ratio=0.5, **decoder)
  images = np.zeros((1, 8, 8, 1), np.float32)
  spec = jax.ShapeDtypeStruct(images.shape, images.dtype)
  assert [edge.layer for edge in patterns.list_edges(model, spec)] == [0, 1]
  variables = draw_variables(model.init, images)
  layers = [layer.path for layer in mixers.capture(model, variables, images)]
  assert layers == ["block_0/token_mixer", "block_1/token_mixer"]


def test_a_causal_mixer_has_a_causal_pattern():
  model = make_model((4, 4), name="axial")
  for used in patterns.find_patterns(model, model.input_spec):
    edges = patterns.edges_between(used, 1, np.arange(16), np.arange(16))
    assert edges.any() and not np.triu(edges, 1).any()
  dense = make_model(name="softmax")
  assert patterns.find_patterns(dense, dense.input_spec) == []


@pytest.mark.parametrize("name", [r"$\frac{$", "a $5 and $6", "x\x1b[2J_$^$"])
def test_a_picture_shows_names_as_plain_text(name, tmp_path):
  texts = pytest.importorskip("matplotlib.text")
  canvas, panels = style.make_panels(1, 1, 6.0, 6.0, f"method {name}")
  panels[0, 0].plot([1, 10], [1, 100], label=name)
  panels[0, 0].set(yscale="log")
  style.name_axes(panels[0, 0], name, name, title=name)
  style.add_legend(canvas, panels[0, 0])
  assert style.save(canvas, tmp_path, "a").stat().st_size > 1000
  shown = [text for text in canvas.findobj(texts.Text) if escape(name) in text.get_text()]
  assert len(shown) == 5 and not any(text.get_parse_math() for text in shown)
