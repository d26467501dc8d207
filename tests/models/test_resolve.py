"""The seed of a model's random graphs and the layout of its tokens, from a config's entry."""

import flax.linen as nn
import pytest

from vitx.models import create_model, resolve_model, token_layout
from vitx.ops.layout import TokenLayout

SMALL = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8}


@pytest.mark.parametrize(
  ("mixer", "resolved"),
  [
    ("bigbird", {"name": "bigbird", "seed": 3}),
    ({"name": "bigbird", "block": 2}, {"name": "bigbird", "block": 2, "seed": 3}),
    ({"name": "bigbird", "seed": 7}, {"name": "bigbird", "seed": 7}),
    ("softmax", "softmax"),
  ],
  ids=str,
)
def test_graphs_get_a_seed(mixer, resolved):
  model = {"name": "vit", "token_mixer": mixer, "depth": 2}
  complete = resolve_model(model, seed=3)
  assert complete == {"name": "vit", "token_mixer": resolved, "depth": 2}
  assert model["token_mixer"] == mixer


def test_an_entry_without_a_mixer_stays_unchanged():
  assert resolve_model({"name": "resnet"}, seed=3) == {"name": "resnet"}
  assert resolve_model({"name": "vit"}, seed=3) == {"name": "vit"}


@pytest.mark.parametrize(
  ("name", "fields", "layout"),
  [
    ("vit", {**SMALL, "extra_tokens": 8}, TokenLayout((4, 4), prefix=9)),
    ("vit", {**SMALL, "pool": "mean", "posemb": "none"}, TokenLayout((4, 4))),
    ("vit", {**SMALL, "posemb": "rope"}, TokenLayout((4, 4), prefix=1)),
    ("pit", {**SMALL, "width": (8, 16), "depth": (1, 1)}, TokenLayout((4, 4), prefix=1)),
    ("resnet", {"depth": 8}, None),
  ],
)
def test_tracing_finds_the_layout_of_the_positions(name, fields, layout):
  assert token_layout(create_model(name, num_classes=3, **fields), (2, 16, 16, 3)) == layout


class Wrapper(nn.Module):
  network: nn.Module

  def __call__(self, images, *, train):
    return self.network(images, train=train)


def test_tracing_finds_the_layout_inside_another_module():
  model = Wrapper(create_model("vit", num_classes=3, **SMALL))
  assert token_layout(model, (2, 16, 24, 3)) == TokenLayout((4, 6), prefix=1)
