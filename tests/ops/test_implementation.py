"""The choice of an implementation, and that the recorded implementation is the one that runs."""

import jax
import jax.numpy as jnp
import pytest

from vitx import ops
from vitx.analysis.implementations import describe_choices
from vitx.attention import MIXERS
from vitx.benchmark.mixers import make_grid
from vitx.config.errors import ConfigError
from vitx.ops import TokenLayout, recording_implementations
from vitx.ops.implementation import choosing_by, resolve_implementation
from vitx.ops.patterns import Axial, Causal, Full, Others, Window, per_head
from vitx.ops.rule import FAMILIES, Rule


def rule(**masked):
  """Returns a rule that picks "masked" only within the given bounds."""
  return Rule("any", "a test", dict.fromkeys(FAMILIES, ()) | masked)


GIVEN = rule(pattern_blocks=((128, None), (256, 16)), linear=((64, 8),))


def resolve(implementation, n, batch=1, family="pattern_blocks", **options):
  with choosing_by(GIVEN):
    return resolve_implementation(implementation, family, (batch, n, 4, 8), **options)


def test_auto_is_the_faster_unless_dropout_must_be_drawn():
  assert resolve("auto", 9, family="dense") == "kernelized"
  assert resolve("auto", 9) == resolve("auto", 128, batch=10**6) == "masked"
  assert resolve("auto", 257) == "kernelized"
  assert resolve("auto", 257, dropout=0.1) == "masked"


def test_auto_depends_on_the_batch():
  assert resolve("auto", 256, batch=4) == "masked"
  assert resolve("auto", 256, batch=5) == "kernelized"
  for batch, expected in ((4, "masked"), (5, "kernelized")):
    q = jax.ShapeDtypeStruct((batch, 256, 4, 8), jnp.float32)
    with choosing_by(GIVEN), recording_implementations() as choices:
      jax.eval_shape(lambda q: ops.attention(q, q, q, Window(2)), q)
    assert choices == [("pattern_blocks", expected)]


def test_an_impossible_request_is_refused():
  with pytest.raises(ConfigError, match=r"dropout=0\.1.*'masked' or 'auto'"):
    resolve("kernelized", 9, dropout=0.1)
  with pytest.raises(ConfigError, match="implementation='fast'"):
    resolve("fast", 9)


def choose(module, n):
  """Returns the implementation that a mixer picks for N tokens, and whether it sows a matrix."""
  x = jax.ShapeDtypeStruct((1, n, 8), jnp.float32)
  layout = make_grid(n)

  def run(x):
    with recording_implementations() as choices:
      sown = module.init(jax.random.key(0), x, layout, train=False, mutable=True)
    return choices, "attention" in sown.get("intermediates", {})

  result = []
  jax.eval_shape(lambda x: result.append(run(x)), x)
  return describe_choices(result[0][0]), result[0][1]


@pytest.mark.parametrize("name", MIXERS)
def test_no_mixer_holds_the_matrix_of_many_tokens(name):
  """From 1,024 tokens on, "auto" picks the kernelized path of every mixer that has one."""
  mixer = MIXERS[name](num_heads=2)
  single = not mixer.properties.implementations
  assert choose(mixer, 1024) == ("auto" if single else "kernelized", False)
  if not single:
    assert choose(mixer.clone(implementation="masked"), 64) == ("masked", True)


@pytest.mark.parametrize(
  ("name", "last_masked"), [("bigbird", 256), ("linear_transformer", 64), ("performer", 64)]
)
def test_mixers_follow_the_rule(name, last_masked):
  mixer = MIXERS[name](num_heads=2)
  with choosing_by(GIVEN):
    assert choose(mixer, last_masked) == ("masked", True)
    assert choose(mixer, last_masked + 8) == ("kernelized", False)


def test_the_family_of_a_pattern_follows_its_dense_runs():
  q = jax.ShapeDtypeStruct((1, 64, 2, 4), jnp.float32)
  layout = TokenLayout((8, 8))
  for pattern, *expected in (
    (Window(2), "pattern_blocks", "masked"),
    (Axial(0), "pattern_runs", "kernelized"),
    (Full(), "dense", "kernelized"),
    (Window(2) | Full(), "dense", "kernelized"),
    (per_head(Causal(), Others()), "dense", "kernelized"),
    (per_head(Full(), Axial(0)), "pattern_runs", "kernelized"),
  ):
    with choosing_by(GIVEN), recording_implementations() as choices:
      jax.eval_shape(lambda q, p=pattern: ops.attention(q, q, q, p, layout), q)
    assert choices == [tuple(expected)]
