"""Memory in large pages, for training on a CPU.

A step's temporary memory is hundreds of megabytes that are taken anew for every dispatch. Pages of
4 KiB cost a fault each, and are more than the processor remembers the places of. glibc asks for
large ones if it is told before the process begins, hence the restart.
"""

import os
import re
import sys
from pathlib import Path

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLES = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
OLDEST = (2, 35)  # glibc that knows the tunable


def restart() -> None:
  """Begins this process anew with large pages, where that helps and nobody decided otherwise.

  It does nothing where Linux gives them to all or to none, without a glibc that asks for them,
  where `GLIBC_TUNABLES` names `glibc.malloc.hugetlb`, and where `JAX_PLATFORMS` leaves no CPU. The
  process keeps its number and arguments. Call it before anything else: what it did is lost.
  """
  tunables = os.environ.get(TUNABLES, "")
  if TUNABLE in tunables or not sys.executable or not _can_ask():
    return
  given = f"{TUNABLE}=1"
  environment = os.environ | {TUNABLES: f"{tunables}:{given}" if tunables else given}
  sys.stdout.flush()
  os.execve(sys.executable, sys.orig_argv, environment)


def _can_ask() -> bool:
  platforms = os.environ.get("JAX_PLATFORMS", "")
  if sys.platform != "linux" or (platforms and "cpu" not in platforms.split(",")):
    return False
  try:
    library = os.confstr("CS_GNU_LIBC_VERSION") or ""
    offered = LARGE_PAGES.read_text()
  except (OSError, ValueError):  # no glibc, or no such pages
    return False
  version = tuple(map(int, re.findall(r"\d+", library)[:2]))
  return version >= OLDEST and "[madvise]" in offered
