"""Processes meet, or are told why they cannot, before JAX would abort them."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from vitx.errors import ConfigError
from vitx.training import rendezvous


@pytest.fixture
def coordinator():
  """An address at which nobody listens."""
  with socket.socket() as made:
    made.bind(("127.0.0.1", 0))
    return f"127.0.0.1:{made.getsockname()[1]}"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
  monkeypatch.setattr(rendezvous, "PATIENCE", 2)
  monkeypatch.setattr(rendezvous, "CONNECT", 1)
  monkeypatch.setattr(rendezvous, "PAUSE", 0.05)


@pytest.fixture
def patient(monkeypatch):
  """For processes that all come: a slow machine is no reason to give up."""
  monkeypatch.setattr(rendezvous, "PATIENCE", 60)


def reach(coordinator):
  """Returns a connection to process 0, which may not listen yet."""
  host, _, port = coordinator.rpartition(":")
  for _ in range(1000):
    try:
      return socket.create_connection((host, int(port)))
    except ConnectionRefusedError:
      time.sleep(0.01)
  raise AssertionError("nobody listens")


def meet_all(coordinator, *told):
  """Returns how `meet(coordinator, *told)` ends for each, side by side: None or a ConfigError."""

  def end(given):
    try:
      return rendezvous.meet(coordinator, *given)
    except ConfigError as error:
      return str(error)

  with ThreadPoolExecutor(len(told)) as pool:
    return list(pool.map(end, told))


@pytest.mark.parametrize(
  "text", ["host", "host:", ":1", "host:x", "host:0", "h:65536", "http://h:1"]
)
@pytest.mark.parametrize("process", [0, 1])
def test_what_is_no_address_is_refused(text, process):
  with pytest.raises(ConfigError, match="is not of the form HOST:PORT"):
    rendezvous.meet(text, 2, process)


def test_a_port_that_is_taken_is_refused(coordinator):
  with socket.socket() as other:
    other.bind(("", int(coordinator.rpartition(":")[2])))
    other.listen()
    with pytest.raises(ConfigError, match=r"cannot listen at port \d+ .* choose another port"):
      rendezvous.meet(coordinator, 2, 0)


def test_a_host_that_does_not_exist_is_told():
  with pytest.raises(ConfigError, match=r"there is no host 'no\.such\.host\.invalid'"):
    rendezvous.meet("no.such.host.invalid:1234", 2, 1)


def test_nobody_listens(coordinator, capsys):
  with pytest.raises(ConfigError, match=r"nobody has listened there for .*start process 0"):
    rendezvous.meet(coordinator, 2, 1)
  assert f"waiting for process 0 at {coordinator}" in capsys.readouterr().out


def test_one_process_waits_for_nobody(coordinator):
  rendezvous.meet(coordinator, 1, 0)


def test_all_go_on_when_the_last_has_come(coordinator, patient):
  start = time.monotonic()
  late = threading.Timer(0.5, rendezvous.meet, (coordinator, 3, 0))
  late.start()
  assert meet_all(coordinator, (3, 1), (3, 2)) == [None, None]
  assert time.monotonic() - start >= 0.5
  late.join()
  rendezvous.meet(coordinator, 1, 0)  # the port is free again


def test_those_that_do_not_come_are_told_by_their_numbers(coordinator):
  first, second = meet_all(coordinator, (4, 0), (4, 2))
  assert "of 4 processes 1, 3 did not come within 2 s; start each with the same" in first
  assert first == second


def test_numbers_that_differ_are_told_to_both(coordinator):
  first, second = meet_all(coordinator, (2, 0), (3, 1))
  assert first == second
  assert "--processes=2 of process 0 and --processes=3 of process 1 differ" in first


def test_a_number_that_two_have_is_told(coordinator):
  first, *others = meet_all(coordinator, (3, 0), (3, 1), (3, 1))
  assert "--process=1 was given to two processes; number them 0 to 2" in first
  assert first in others


def test_a_process_that_begins_again_takes_its_own_place(coordinator, patient):
  """Those that wait are not sent on in the meantime, as if it were still there."""
  first = threading.Thread(target=rendezvous.meet, args=(coordinator, 3, 0))
  first.start()
  with reach(coordinator) as lost:
    lost.sendall(b'{"process": 1, "processes": 3}\n')
  other = threading.Thread(target=rendezvous.meet, args=(coordinator, 3, 2))
  other.start()
  time.sleep(0.2)
  assert first.is_alive() and other.is_alive()
  rendezvous.meet(coordinator, 3, 1)
  first.join()
  other.join()


def test_a_process_that_came_and_ended_is_told_to_be_missing(coordinator):
  with ThreadPoolExecutor(1) as pool:
    first = pool.submit(rendezvous.meet, coordinator, 3, 0)
    with reach(coordinator) as lost:
      lost.sendall(b'{"process": 1, "processes": 3}\n')
    with pytest.raises(ConfigError, match="of 3 processes 1, 2 did not come within 2 s"):
      first.result()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff" * 2000])
def test_other_programs_are_not_counted(said, coordinator, patient):
  first = threading.Thread(target=rendezvous.meet, args=(coordinator, 2, 0))
  first.start()
  with reach(coordinator) as other:
    other.sendall(said)
    rendezvous.meet(coordinator, 2, 1)
  first.join()


def test_another_program_that_listens_is_told():
  with socket.socket() as other:
    other.bind(("127.0.0.1", 0))
    other.listen()
    coordinator = f"127.0.0.1:{other.getsockname()[1]}"
    with pytest.raises(ConfigError, match="what listens there did not send this process on"):
      rendezvous.meet(coordinator, 2, 1)
