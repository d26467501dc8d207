"""Several processes meet before JAX begins: what JAX cannot do about it ends a process.

JAX waits for minutes without a word, and then aborts with a stack trace. So process 0 first listens
at the coordinator's port itself, until each of the others has told which one it is and how many
there are.
"""

import json
import socket
import time
from typing import Any

from vitx.config.errors import ConfigError, listing
from vitx.training.record.progress import announce

PATIENCE = 300  # seconds for all to come
CONNECT = 5.0  # seconds for one attempt to reach a host
PAUSE = 0.5  # between two attempts, and for a connection to say what it is
GO = "go"
LONGEST = 1000  # bytes of a message


def meet(coordinator: str, processes: int, process: int) -> None:
  """Waits until all processes are there.

  Args:
    coordinator: `host:port` of process 0.
    processes: how many there are.
    process: which one this is; process 0 listens at the port.

  Raises:
    ConfigError: no `host:port`, a port that is taken, a host that does not exist, nobody or
      another program who listens there, processes that did not come, or that were told otherwise.
  """
  host, port = _parse(coordinator)
  if process:
    announce(
      f"waiting for process 0 at {coordinator}",
      lambda: _join(coordinator, host, port, processes, process),
    )
    return
  with _listen(coordinator, port) as listener:
    if processes > 1:
      announce(
        f"waiting for {processes - 1} other processes at {coordinator}",
        lambda: _gather(coordinator, listener, processes),
      )


def _parse(coordinator: str) -> tuple[str, int]:
  host, _, port = coordinator.rpartition(":")
  if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
    raise ConfigError(
      f"--coordinator={coordinator!r} is not of the form HOST:PORT with a port in 1..65535, such as"
      " host0:1234"
    )
  return host.strip("[]"), int(port)


def _listen(coordinator: str, port: int) -> socket.socket:
  both = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if both else socket.AF_INET
  try:
    return socket.create_server(("", port), family=family, dualstack_ipv6=both)
  except OSError as error:
    raise ConfigError(
      f"--coordinator={coordinator!r}: process 0 cannot listen at port {port} of this host"
      f" ({error.strerror}); choose another port, the same in all processes"
    ) from error


def _gather(coordinator: str, listener: socket.socket, processes: int) -> None:
  """Waits as process 0 for all others, and sends them on."""
  there: dict[int, socket.socket] = {}
  end = time.monotonic() + PATIENCE
  try:
    while len(_find_waiting(there)) < processes - 1:  # one that has come may have ended since
      listener.settimeout(max(end - time.monotonic(), 0.01))
      try:
        connection, _ = listener.accept()
      except TimeoutError:
        missing = sorted(set(range(1, processes)) - _find_waiting(there))
        raise ConfigError(
          f"--coordinator={coordinator!r}: of {processes} processes {listing(map(str, missing))}"
          f" did not come within {PATIENCE} s; start each with the same --coordinator and"
          " --processes, and its own --process"
        ) from None
      connection.settimeout(PAUSE)
      told = _receive(connection)
      if told is None or not isinstance(told.get("process"), int):
        connection.close()  # of another program, or of a process that ended
        continue
      problem = _find_problem(told, processes, there)
      if problem:
        _send(connection, problem)
        connection.close()
        raise ConfigError(problem)
      if told["process"] in there:  # it ended, and began again
        there.pop(told["process"]).close()
      there[told["process"]] = connection
    for connection in there.values():
      _send(connection, GO)
  except ConfigError as error:
    for connection in there.values():  # none of them would ever be sent on
      _send(connection, str(error))
    raise
  finally:
    for connection in there.values():
      connection.close()


def _find_waiting(there: dict[int, socket.socket]) -> set[int]:
  """Returns which of those that have come still wait."""
  return {process for process, connection in there.items() if _is_open(connection)}


def _find_problem(told: dict[str, Any], processes: int, there: dict[int, socket.socket]) -> str:
  process = told["process"]
  if told.get("processes") != processes:
    return (
      f"--processes={processes} of process 0 and --processes={told.get('processes')} of process"
      f" {process} differ; give all the same"
    )
  if process in _find_waiting(there):
    return f"--process={process} was given to two processes; number them 0 to {processes - 1}"
  return ""


def _join(coordinator: str, host: str, port: int, processes: int, process: int) -> None:
  """Tells process 0 of this one, and waits until all are there."""
  end = time.monotonic() + PATIENCE
  said, reason = False, ""
  while time.monotonic() < end:
    try:
      with socket.create_connection((host, port), timeout=CONNECT) as connection:
        said = _send(connection, {"process": process, "processes": processes})
        connection.settimeout(PATIENCE + CONNECT)  # process 0 was there first and gives up before
        answer = _receive(connection, str)
    except (socket.gaierror, UnicodeError) as error:  # the latter of a name such as a..b
      reason = getattr(error, "strerror", None) or str(error)
      raise ConfigError(
        f"--coordinator={coordinator!r}: there is no host {host!r} ({reason}); name the host of"
        " process 0"
      ) from error
    except OSError as error:
      answer, reason = None, f" ({error})"
    if answer == GO:
      return
    if answer is not None:
      raise ConfigError(answer)
    time.sleep(min(PAUSE, max(end - time.monotonic(), 0.0)))
  if said:
    raise ConfigError(
      f"--coordinator={coordinator!r}: what listens there did not send this process on within"
      f" {PATIENCE} s; see that it is process 0 of this run, and that the others have come"
    )
  raise ConfigError(
    f"--coordinator={coordinator!r}: nobody has listened there for {PATIENCE} s{reason}; start"
    " process 0 with the same flag, or name its host and port"
  )


def _send(connection: socket.socket, value: Any) -> bool:
  """Sends a value as a line of JSON; returns whether it could be."""
  try:
    connection.sendall(json.dumps(value).encode() + b"\n")
  except OSError:  # the other end is gone, which shows elsewhere
    return False
  return True


def _receive(connection: socket.socket, kind: type = dict) -> Any:
  """Returns what the other end sends as a line of JSON; None if it is nothing of that kind."""
  line = b""
  try:
    while not line.endswith(b"\n") and len(line) < LONGEST:
      part = connection.recv(LONGEST)
      if not part:
        return None
      line += part
    value = json.loads(line)
  except (OSError, ValueError):  # silent, gone, or no such line
    return None
  return value if isinstance(value, kind) else None


def _is_open(connection: socket.socket) -> bool:
  """Returns whether the other end still waits."""
  connection.setblocking(False)
  try:
    return bool(connection.recv(1, socket.MSG_PEEK))
  except BlockingIOError:
    return True
  except OSError:
    return False
