"""Whether several processes can meet, looked at before JAX does: what it cannot do ends a process.

JAX waits for minutes without a word, and then aborts with a stack trace.
"""

import socket
import time

from vitx.errors import ConfigError
from vitx.training.progress import announce

PATIENCE = 300.0  # seconds for process 0 to begin; JAX waits as long for the others
PAUSE = 0.5  # seconds between two attempts


def check(coordinator: str, process: int) -> None:
  """Finds out whether this process can reach the coordinator, or can be it.

  Args:
    coordinator: `host:port` of process 0.
    process: which one this is; process 0 listens at the port.

  Raises:
    ConfigError: no `host:port`, a port that is taken, a host that does not exist, or nobody who
      listens there.
  """
  host, port = _parse(coordinator)
  if process == 0:
    _check_free(coordinator, port)
  else:
    announce(f"waiting for process 0 at {coordinator}", lambda: _reach(coordinator, host, port))


def _parse(coordinator: str) -> tuple[str, int]:
  host, _, port = coordinator.rpartition(":")
  if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
    raise ConfigError(
      f"--coordinator={coordinator!r} is not of the form HOST:PORT with a port in 1..65535, such as"
      " host0:1234"
    )
  return host.strip("[]"), int(port)


def _check_free(coordinator: str, port: int) -> None:
  with socket.socket() as listener:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
      listener.bind(("", port))
      listener.listen()
    except OSError as error:
      raise ConfigError(
        f"--coordinator={coordinator!r}: process 0 cannot listen at port {port} of this host"
        f" ({error.strerror}); choose another port, the same in all processes"
      ) from error


def _reach(coordinator: str, host: str, port: int) -> None:
  end = time.monotonic() + PATIENCE
  while True:
    try:
      socket.create_connection((host, port), timeout=max(end - time.monotonic(), PAUSE)).close()
      return
    except socket.gaierror as error:
      raise ConfigError(
        f"--coordinator={coordinator!r}: there is no host {host!r} ({error.strerror}); name the"
        " host of process 0"
      ) from error
    except OSError as error:
      if time.monotonic() > end:
        raise ConfigError(
          f"--coordinator={coordinator!r}: nobody has listened there for {PATIENCE:.0f} s"
          f" ({error}); start process 0 with the same flag, or name its host and port"
        ) from error
    time.sleep(PAUSE)
