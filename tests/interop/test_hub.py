"""`init_from=hf:NAME`: the calls of huggingface_hub, and the layout of its cache.

No test reaches the Hub.
"""

import os
import shutil
import sys
import time
import types

import numpy as np
import pytest

from tests.interop.published import FILES
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.interop import foreign, hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Errors(types.ModuleType):
  """The errors of huggingface_hub, in its class hierarchy."""

  class EntryNotFoundError(Exception):
    pass

  class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):
    pass

  class HfHubHTTPError(OSError):
    pass

  class RepositoryNotFoundError(HfHubHTTPError):
    pass


@pytest.fixture
def library(monkeypatch):
  """Replaces huggingface_hub by a list of its calls and a dict of its answers by file."""
  asked, answers = [], {}
  module, errors = types.ModuleType("huggingface_hub"), Errors("huggingface_hub.errors")

  def hf_hub_download(name, file, *, revision=None, local_files_only=False):
    asked.append((name, file, revision, *["in the cache"] * local_files_only))
    answer = answers.get(file, Errors.EntryNotFoundError(f"404: {file}"))
    if isinstance(answer, Exception):
      raise answer
    return answer

  def get_hf_file_metadata(url):
    if isinstance(answer := answers.get("the Hub"), Exception):
      raise answer

  module.hf_hub_url = lambda name, file, revision: file
  module.get_hf_file_metadata = get_hf_file_metadata
  module.hf_hub_download, module.errors = hf_hub_download, errors
  monkeypatch.setitem(sys.modules, "huggingface_hub", module)
  monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
  return asked, answers


def test_the_safetensors_come_first(library):
  asked, answers = library
  answers["model.safetensors"] = FILES["timm_vit"]
  found, left, *_ = foreign.read_variables("hf:timm/tiny", 3)
  wanted, *_ = foreign.read_variables(FILES["timm_vit"], 3)
  assert asked == [("timm/tiny", "model.safetensors", None)] and left == []
  kernel = found["params"]["block_1"]["mlp"]["up"]["kernel"]
  np.testing.assert_array_equal(kernel, wanted["params"]["block_1"]["mlp"]["up"]["kernel"])


def test_a_revision_and_an_older_file(library):
  asked, answers = library
  answers["pytorch_model.bin"] = "/there/pytorch_model.bin"
  assert hub.download("hf:timm/tiny@v1.0") == "/there/pytorch_model.bin"
  assert asked == [("timm/tiny", file, "v1.0") for file in hub.FILES]


@pytest.mark.parametrize(
  ("answer", "message"),
  [
    (None, "has no model.safetensors and no pytorch_model.bin"),
    (
      Errors.RepositoryNotFoundError("\n401 Client Error.\nMore"),
      "does not exist or is private. Correct the name, or log in with `hf auth login`",
    ),
    (ConnectionError("no route to host"), "cannot be downloaded: no route to host"),
    (ValueError("Repo id must use letters"), "cannot be downloaded: Repo id"),
    (Errors.LocalEntryNotFoundError("offline"), "not in the cache, and the Hub cannot be reached"),
  ],
)
def test_what_cannot_be_fetched(library, answer, message):
  library[1].update({"model.safetensors": answer} if answer else {})
  with pytest.raises(ConfigError, match=f"init_from='hf:timm/tiny'.*{message}"):
    hub.download("hf:timm/tiny")


def test_an_unreachable_hub_is_asked_once_and_only_the_cache_is_read(library):
  asked, answers = library
  answers |= {"the Hub": OSError("no route"), "model.safetensors": "/cache/model.safetensors"}
  assert hub.download("hf:timm/tiny") == "/cache/model.safetensors"
  assert asked == [("timm/tiny", "model.safetensors", None, "in the cache")]
  asked.clear()
  answers["the Hub"] = Errors.HfHubHTTPError("403")  # the Hub answers with an error
  assert hub.download("hf:timm/tiny") == "/cache/model.safetensors"
  assert asked == [("timm/tiny", "model.safetensors", None)]


def test_the_library_makes_no_second_try_without_a_connection(hub_server, monkeypatch):
  from huggingface_hub import constants

  template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"  # nothing listens there
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("the library tries again"))
  with pytest.raises(ConfigError, match=r"the Hub cannot be reached \(.*[Cc]onnect"):
    hub.download("hf:timm/tiny")


@pytest.mark.parametrize(
  "source", ["hf:", "hf:tiny", "hf:a/b/c", "hf:timm/tiny@", "hf:a b/c", "timm:", "timm:a/b"]
)
def test_names_that_are_none(library, source):
  with pytest.raises(ConfigError, match=r"write hf:OWNER/NAME, .*@REVISION, timm:NAME or"):
    hub.download(source)
  assert library[0] == []


def test_without_the_library(monkeypatch):
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(MissingExtraError, match=r'hf:timm/tiny.*"\.\[hub\]"'):
    hub.download("hf:timm/tiny")


@pytest.fixture
def cache(tmp_path, monkeypatch):
  """A cache in the layout of huggingface_hub, which may not reach the network."""
  library = pytest.importorskip("huggingface_hub", reason='needs the extra "hub"')
  from huggingface_hub import constants

  repository = tmp_path / "models--timm--tiny"
  for folder in ("blobs", "refs", f"snapshots/{COMMIT}"):
    os.makedirs(repository / folder)
  shutil.copy(FILES["timm_vit"], repository / "blobs" / "abc")
  (repository / "refs" / "main").write_text(COMMIT)
  (repository / "snapshots" / COMMIT / "model.safetensors").symlink_to("../../blobs/abc")
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
  return library


@pytest.mark.parametrize("source", ["hf:timm/tiny", f"hf:timm/tiny@{COMMIT}"])
def test_the_librarys_own_cache(cache, source):
  found, *_ = foreign.read_variables(source, 3)
  wanted, *_ = foreign.read_variables(FILES["timm_vit"], 3)
  np.testing.assert_array_equal(found["params"]["cls"], wanted["params"]["cls"])


@pytest.mark.parametrize("source", ["hf:timm/other", "hf:timm/tiny@v2"])
def test_what_the_librarys_cache_has_not(cache, source):
  with pytest.raises(ConfigError, match=f"init_from='{source}': .* the Hub cannot be reached"):
    hub.download(source)
