"""Names of code in configs may be imported only by those who trust it."""

import functools
import sys

import pytest

from vitx.attention import MIXERS
from vitx.config.errors import ConfigError
from vitx.config.registry import build, lookup, refuse_names_of_code, trusting
from vitx.ops.patterns import PATTERNS
from vitx.training.optim.schedules import SCHEDULES

EVIL = "raise SystemExit('evil was imported')\n"
OWN = """
import functools
import flax.linen as nn
from vitx.attention.softmax import SoftmaxAttention
from vitx.ops.patterns import Window

class Mixer(nn.Module):
  width: int = 3

def schedule(run):
  return None

partial = functools.partial(SoftmaxAttention, use_bias=False)
pattern = Window(3)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  (tmp_path / "evil_code.py").write_text(EVIL)
  (tmp_path / "own_code.py").write_text(OWN)
  monkeypatch.syspath_prepend(tmp_path)
  yield
  sys.modules.pop("own_code", None)


def test_a_users_own_code_is_found_by_name():
  assert lookup(MIXERS, "own_code:Mixer", "token_mixer").__name__ == "Mixer"
  assert isinstance(build(MIXERS, "own_code:partial", "token_mixer"), functools.partial)
  assert lookup(SCHEDULES, "own_code:schedule", "schedule").__name__ == "schedule"
  assert lookup(PATTERNS, "own_code:pattern", "edges") == PATTERNS["window"].__class__(3)


def test_untrusted_names_are_not_imported():
  with trusting(False):
    assert lookup(MIXERS, "softmax", "token_mixer") is MIXERS["softmax"]
    name = "vitx.attention.softmax:SoftmaxAttention"
    assert lookup(MIXERS, name, "token_mixer") is MIXERS["softmax"]
    with pytest.raises(ConfigError, match=r"token_mixer='evil_code:Mixer'.*trust_code=True"):
      lookup(MIXERS, "evil_code:Mixer", "token_mixer")
    # A foreign object that one of vitx's modules has imported.
    with pytest.raises(ConfigError, match=r"subprocess\.run.*trust_code=True"):
      lookup({"f": print}, "vitx.runtime.environment:subprocess.run", "schedule")
    with trusting(True), trusting(False):  # a context that trusts is kept
      assert lookup(MIXERS, "own_code:Mixer", "token_mixer")
  with pytest.raises(SystemExit, match="evil was imported"):
    lookup(MIXERS, "evil_code:Mixer", "token_mixer")


def test_code_that_a_command_has_named_is_its_own_until_it_ends():
  find = functools.partial(lookup, MIXERS, field="token_mixer")
  with trusting(None):
    find("own_code:Mixer")
    with trusting(False):
      assert find("own_code:Mixer").__name__ == "Mixer"
      with pytest.raises(ConfigError, match="trust_code"):
        find("own_code:partial")
  with trusting(True):
    find("own_code:Mixer")  # a stranger's, though it is trusted
    with pytest.raises(ConfigError, match="trust_code"):
      refuse_names_of_code({"token_mixer": "own_code:Mixer"}, "")
  with trusting(False), pytest.raises(ConfigError, match="trust_code"):
    find("own_code:Mixer")
