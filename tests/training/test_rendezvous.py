"""Processes meet, or are told why they cannot, before JAX would abort them."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.training import rendezvous

GO = b'"go"\n'


@pytest.fixture
def coordinator():
  """An address that is this test's own, and at which nobody listens."""
  with socket.socket() as held:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # process 0 may listen besides
    held.bind(("127.0.0.1", 0))
    yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def come(coordinator, monkeypatch):
  """Lets processes come, by what each says, after process 0 listens and before it waits."""
  made = []

  def connect(what, work):
    for said in told:
      made.append(socket.create_connection(("127.0.0.1", int(coordinator.rpartition(":")[2]))))
      made[-1].settimeout(60)
      made[-1].sendall(said if isinstance(said, bytes) else json.dumps(said).encode() + b"\n")
      if isinstance(said, Ended):
        made[-1].close()
    return work()

  told = []
  monkeypatch.setattr(rendezvous, "announce", connect)
  yield lambda *given: told.extend(given) or made
  for connection in made:
    connection.close()


class Ended(dict):
  """What a process says that ends thereafter."""


def number(process, processes):
  return {"process": process, "processes": processes}


@pytest.fixture
def soon(monkeypatch):
  """Lets patience end soon, by a clock that stands still but for pauses."""
  now = [0.0]
  pause = lambda seconds: now.append(now.pop() + seconds)  # noqa: E731
  monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
  for name in ("PATIENCE", "CONNECT", "PAUSE"):
    monkeypatch.setattr(rendezvous, name, 0.1)


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


def test_a_port_that_is_taken_is_refused():
  with socket.socket() as other:
    other.bind(("", 0))
    other.listen()
    with pytest.raises(ConfigError, match=r"cannot listen at port \d+ .* choose another port"):
      rendezvous.meet(f"127.0.0.1:{other.getsockname()[1]}", 2, 0)


def test_a_host_that_does_not_exist_is_told(monkeypatch):
  def look_up(*_, **__):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

  monkeypatch.setattr(socket, "getaddrinfo", look_up)
  with pytest.raises(ConfigError, match=r"there is no host 'no\.such\.host' \(Name or"):
    rendezvous.meet("no.such.host:1234", 2, 1)


def test_a_host_that_no_name_can_be_is_told():
  with pytest.raises(ConfigError, match=r"there is no host 'a\.\.b' \(.*label"):
    rendezvous.meet("a..b:1234", 2, 1)


def test_nobody_listens(coordinator, soon, capsys):
  with pytest.raises(
    ConfigError, match=r"nobody has listened there for .*refused.*start process 0"
  ):
    rendezvous.meet(coordinator, 2, 1)
  assert f"waiting for process 0 at {coordinator}" in capsys.readouterr().out


def test_one_process_waits_for_nobody(coordinator):
  rendezvous.meet(coordinator, 1, 0)


def test_all_go_on_when_the_last_has_come(coordinator, monkeypatch):
  """Also if it is process 0, before which the others try in vain."""
  refused = threading.Semaphore(0)
  pause = lambda seconds: (refused.release(), time.sleep(0.01))  # noqa: E731
  monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))
  with ThreadPoolExecutor(2) as pool:
    others = [pool.submit(rendezvous.meet, coordinator, 3, process) for process in (1, 2)]
    for _ in others:
      assert refused.acquire(timeout=300)
    assert not any(other.done() for other in others)
    rendezvous.meet(coordinator, 3, 0)
    assert [other.result() for other in others] == [None, None]
  rendezvous.meet(coordinator, 1, 0)  # the port is free again


def test_those_that_do_not_come_are_told_by_their_numbers(coordinator, come, soon):
  made = come(number(2, 4))
  with pytest.raises(
    ConfigError, match=r"of 4 processes 1, 3 did not come within .* s; start"
  ) as told:
    rendezvous.meet(coordinator, 4, 0)
  assert json.loads(made[0].makefile().readline()) == str(told.value)


def test_numbers_that_differ_are_told_to_both(coordinator):
  first, second = meet_all(coordinator, (2, 0), (3, 1))
  assert first == second
  assert "--processes=2 of process 0 and --processes=3 of process 1 differ" in first


def test_a_number_that_two_have_is_told(coordinator):
  first, *others = meet_all(coordinator, (3, 0), (3, 1), (3, 1))
  assert "--process=1 was given to two processes; number them 0 to 2" in first
  assert others == [first, first]


def test_a_process_that_begins_again_takes_its_own_place(coordinator, come):
  """Those that wait are not sent on in the meantime, as if it were still there."""
  made = come(Ended(number(1, 3)), number(2, 3), number(1, 3))
  rendezvous.meet(coordinator, 3, 0)
  assert [connection.recv(100) for connection in made[1:]] == [GO, GO]


def test_a_process_that_came_and_ended_is_told_to_be_missing(coordinator, come, soon):
  come(Ended(number(1, 3)))
  with pytest.raises(ConfigError, match="of 3 processes 1, 2 did not come within"):
    rendezvous.meet(coordinator, 3, 0)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff" * 2000])
def test_other_programs_are_not_counted(said, coordinator, come):
  made = come(said, number(1, 2))
  rendezvous.meet(coordinator, 2, 0)
  assert made[1].recv(100) == GO


def test_another_program_that_listens_is_told(soon):
  with socket.socket() as other:
    other.bind(("127.0.0.1", 0))
    other.listen()
    coordinator = f"127.0.0.1:{other.getsockname()[1]}"
    with pytest.raises(ConfigError, match="what listens there did not send this process on"):
      rendezvous.meet(coordinator, 2, 1)


def test_process_0_alone_ends_a_command_in_one_line(
  coordinator, soon, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  flags = [f"--coordinator={coordinator}", "--processes=2", "--process=0"]
  assert main(["train", "--config", "digits", "--workdir", "run", *flags]) == 1
  told = capsys.readouterr().err
  assert told.splitlines()[-1].startswith("ConfigError: --coordinator=")
  assert "of 2 processes 1 did not come within" in told
  assert "Traceback" not in told and not list(tmp_path.iterdir())
