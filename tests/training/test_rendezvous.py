"""Processes that cannot meet are told why, before JAX would abort them."""

import socket
import threading
import time

import pytest

from vitx.errors import ConfigError
from vitx.training import rendezvous


@pytest.fixture
def listener():
  """A socket that listens at a port of its own."""
  with socket.socket() as made:
    made.bind(("127.0.0.1", 0))
    made.listen()
    yield made


def address(listener):
  return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
  "text", ["host", "host:", ":1", "host:x", "host:0", "h:65536", "http://h:1"]
)
@pytest.mark.parametrize("process", [0, 1])
def test_what_is_no_address_is_refused(text, process):
  with pytest.raises(ConfigError, match="is not of the form HOST:PORT"):
    rendezvous.check(text, process)


def test_a_port_that_is_taken_is_refused(listener):
  with pytest.raises(ConfigError, match=r"cannot listen at port \d+ .* choose another port"):
    rendezvous.check(address(listener), 0)


def test_a_free_port_may_be_listened_at(listener):
  free = address(listener)
  listener.close()
  rendezvous.check(free, 0)


def test_a_host_that_does_not_exist_is_told():
  with pytest.raises(ConfigError, match=r"there is no host 'no\.such\.host\.invalid'"):
    rendezvous.check("no.such.host.invalid:1234", 1)


def test_nobody_listens(listener, monkeypatch, capsys):
  silent = address(listener)
  listener.close()
  monkeypatch.setattr(rendezvous, "PATIENCE", 0.2)
  with pytest.raises(ConfigError, match=r"nobody has listened there for .*start process 0"):
    rendezvous.check(silent, 1)
  assert f"waiting for process 0 at {silent}" in capsys.readouterr().out


def test_process_0_may_come_later(monkeypatch):
  monkeypatch.setattr(rendezvous, "PAUSE", 0.01)
  with socket.socket() as late:
    late.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: (time.sleep(0.2), late.listen()))
    thread.start()
    rendezvous.check(address(late), 1)
    thread.join()
