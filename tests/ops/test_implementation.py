"""Which implementation runs, and that what a mixer says it runs is what it runs."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from vitx.attention.choices import chosen, implementation_of
from vitx.attention.registry import MIXERS
from vitx.attention.softmax import SoftmaxAttention
from vitx.errors import ConfigError
from vitx.ops.layout import TokenLayout


def test_what_is_asked_for_runs():
  assert chosen("masked") == "masked" and chosen("masked", 0.1) == "masked"
  assert chosen("kernelized", masked_is_faster=True) == "kernelized"


def test_auto_is_the_faster_unless_dropout_must_be_drawn():
  assert chosen("auto") == "kernelized"
  assert chosen("auto", masked_is_faster=True) == "masked"
  assert chosen("auto", 0.1) == "masked"


def test_errors_name_the_field_and_the_way_out():
  with pytest.raises(ConfigError, match=r"token_mixer\.dropout=0\.1.*'masked' or 'auto'"):
    chosen("kernelized", 0.1)
  with pytest.raises(ConfigError, match="implementation='fast'"):
    chosen("fast")


@pytest.mark.parametrize("name", MIXERS)
def test_no_mixer_holds_the_matrix_of_many_tokens(name):
  """No kernelized path is slower than its masked path from 1024 tokens on."""
  mixer = MIXERS[name](num_heads=2)
  assert mixer.properties.masked_up_to < 1024
  single = not mixer.properties.implementations
  assert implementation_of(mixer, 1024) == ("auto" if single else "kernelized")
  if not single:
    assert implementation_of(mixer.clone(implementation="masked"), 1024) == "masked"


class Counted(SoftmaxAttention):
  properties = dataclasses.replace(SoftmaxAttention.properties, masked_up_to=9)


@pytest.mark.parametrize(("n", "expected"), [(9, "masked"), (10, "kernelized")])
def test_the_rule_is_what_runs(n, expected):
  mixer, x = Counted(num_heads=2), jnp.ones((1, n, 8))
  assert implementation_of(mixer, n) == expected
  variables = mixer.init(jax.random.key(0), x, TokenLayout((n,)), train=False)
  apply = lambda: mixer.apply(  # noqa: E731
    {"params": variables["params"]}, x, TokenLayout((n,)), train=False, mutable=["intermediates"]
  )
  sown = jax.eval_shape(apply)[1]
  assert ("attention" in sown.get("intermediates", {})) == (expected == "masked")


def test_a_module_that_promises_nothing_has_one_path():
  class Plain(nn.Module):
    num_heads: int

  assert implementation_of(Plain(2), 64) == "auto"
