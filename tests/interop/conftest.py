"""A local server in place of the Hugging Face Hub, to which huggingface_hub is directed."""

import pytest

from tests.interop.hub_server import TOKEN, serving


@pytest.fixture
def hub_server(monkeypatch, tmp_path):
  """A Hub of the tests' own with a cache of its own; its user "me" is logged in."""
  library = pytest.importorskip("huggingface_hub", reason='needs the extra "hub"')
  with serving() as hub:
    set_constants(monkeypatch, hub.address, tmp_path / "hub_cache")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield hub
    library.close_session()


def set_constants(monkeypatch, address, cache):
  """Sets the constants that huggingface_hub reads from the environment at its import."""
  from huggingface_hub import constants

  monkeypatch.setattr(constants, "ENDPOINT", address)
  template = address + "/{repo_id}/resolve/{revision}/{filename}"
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # this server has no Xet storage
