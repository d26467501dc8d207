"""Describes the data, the versions and the machine of a run, for its `environment.json`."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from vitx.checkpoints import workdir as wd
from vitx.config.fields import DataSettings
from vitx.data.dataset import Source
from vitx.data.splits import read_excluded
from vitx.ops.implementation import current_rule
from vitx.ops.sparse.triton_attention import find_capability, find_version

PACKAGES = (
  "jax",
  "jaxlib",
  "flax",
  "optax",
  "orbax-checkpoint",
  "tensorflow-datasets",
  "grain",
  "clu",
  "jax-triton",
  "triton",
  "ml_collections",
  "numpy",
  "pillow",
)
# Patterns for /proc/cpuinfo on x86 and ARM: the entries that tell processors apart, and the
# beginnings of the names of vector extensions.
PROCESSOR = re.compile(r"cpu family|model|stepping|CPU (implementer|variant|part|revision)")
VECTORS = re.compile(r"s?sse|pni|avx|amx|fma|f16c|asimd|sve|sme|bf16|i8mm")


def describe_data(source: Source, data: DataSettings) -> dict[str, Any]:
  """Returns a description of a run's data as JSON, which predictions read too.

  Args:
    source: The opened data.
    data: The config's `data`, whose relative paths are recorded as absolute ones too.
  """
  info = source.info
  return {
    "source": info.name,
    "places": wd.find_places(data),
    "fingerprint": info.fingerprint,
    "examples": {role: len(part) for role, part in source.parts().items()},
    "class_names": None if info.class_names is None else list(info.class_names),
    "vocabulary": info.vocabulary,
    "unreadable": list(source.unreadable),
    **({"excluded": read_excluded(data.exclude)} if data.exclude else {}),
  }


def describe_environment(
  data: Mapping[str, Any], implementations: Mapping[str, str]
) -> dict[str, Any]:
  """Returns a record, as JSON, of all that a run depends on besides its config.

  Args:
    data: The result of `describe_data`.
    implementations: The implementation of each token mixer, by the mixer's path in the network.
  """
  cpuinfo = Path("/proc/cpuinfo")
  return {
    "data": dict(data),
    "commit": _commit(),
    "command": sys.argv,
    "python": platform.python_version(),
    "versions": {name: find_version(name) for name in PACKAGES},
    "devices": [device.device_kind for device in jax.devices()],
    **describe_processor(cpuinfo.read_text() if cpuinfo.exists() else ""),
    "cores": os.cpu_count(),
    "processes": jax.process_count(),
    "implementations": dict(implementations),
    "sparse_kernel": "triton" if find_capability() else "xla",
    "rule": current_rule().to_json(),
  }


def describe_processor(cpuinfo: str) -> dict[str, Any]:
  """Returns the name, the version and the vector extensions of the CPU as JSON.

  Machines whose processors share a name may get other machine code from XLA, and so other bits.

  Args:
    cpuinfo: The content of Linux's file `/proc/cpuinfo`; "" on another operating system.
  """
  lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
  fields = {key.strip(): value.strip() for key, _, value in lines}
  extensions = (fields.get("flags") or fields.get("Features") or "").split()
  return {
    "processor": fields.get("model name") or platform.processor(),
    "processor_version": {name: fields[name] for name in fields if PROCESSOR.fullmatch(name)},
    "vector_extensions": sorted(name for name in extensions if VECTORS.match(name)),
  }


def _commit() -> str | None:
  """Returns the commit of the source tree, with "+" if files have changed; None outside git."""
  root = Path(__file__).resolve().parents[1]
  describe = ("describe", "--always", "--abbrev=40", "--dirty=+")
  try:
    # The package may be installed inside another repository, which does not track it.
    for arguments in (("ls-files", "--error-unmatch", "__init__.py"), describe):
      command = ["git", "-C", str(root), *arguments]
      result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
  except (OSError, subprocess.SubprocessError):
    return None
  return result.stdout.strip()
