"""`init_from=hf:NAME` downloads files from a local server; no test reaches the Hub."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.interop.conftest import set_constants
from tests.interop.published import FILES
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.interop import foreign, hub

COMMIT = f"{1:040}"  # the first commit on the local server
NOWHERE = "http://127.0.0.1:9"  # nothing listens there


@pytest.mark.parametrize("source", ["hf:timm/tiny", "timm:tiny", f"hf:timm/tiny@{COMMIT}"])
def test_safetensors_come_first(source, hub_server):
  weights = Path(FILES["timm_vit"]).read_bytes()
  hub_server.add("timm/tiny", {"model.safetensors": weights, "pytorch_model.bin": b"not this"})
  ours, unused, *_ = foreign.read_variables(source, 3)
  expected, *_ = foreign.read_variables(FILES["timm_vit"], 3)
  np.testing.assert_array_equal(ours["params"]["cls"], expected["params"]["cls"])
  assert unused == []


def test_a_revision_selects_an_older_file(hub_server):
  hub_server.add("timm/tiny", {"pytorch_model.bin": b"old"})
  hub_server.add("timm/tiny", {"pytorch_model.bin": b"new"})
  assert Path(hub.download(f"hf:timm/tiny@{COMMIT}")).read_bytes() == b"old"
  assert Path(hub.download("hf:timm/tiny")).read_bytes() == b"new"


def test_a_repository_without_weights_is_refused(hub_server):
  hub_server.add("timm/tiny", {"README.md": b""})
  with pytest.raises(ConfigError, match=r"init_from='hf:timm/tiny' has none of the files model\.s"):
    hub.download("hf:timm/tiny")


def test_an_unreachable_hub_is_asked_once(hub_server, monkeypatch, tmp_path):
  """A file in the cache is used, and a missing one is named, both without a second try."""
  hub_server.add("timm/tiny", {"model.safetensors": b"weights"})
  path = hub.download("hf:timm/tiny")
  set_constants(monkeypatch, NOWHERE, tmp_path / "hub_cache")
  monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("the library tries again"))
  assert hub.download("hf:timm/tiny") == path
  with pytest.raises(ConfigError, match=r"the Hub cannot be reached: .*[Cc]onnect"):
    hub.download("hf:timm/other")


def test_a_cached_file_of_less_priority_is_used_without_a_network(
  hub_server, monkeypatch, tmp_path
):
  hub_server.add("timm/tiny", {"pytorch_model.bin": b"weights"})
  path = hub.download("hf:timm/tiny")
  set_constants(monkeypatch, NOWHERE, tmp_path / "hub_cache")
  assert hub.download("hf:timm/tiny") == path


def test_a_missing_library_names_its_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(MissingExtraError, match=r'hf:timm/tiny.*"\.\[hub\]"'):
    hub.download("hf:timm/tiny")
