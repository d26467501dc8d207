"""Devices, a cache of programs, strict dtypes; `--all`, `--optimize` and `--platform`."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from absl import logging

from vitx.data.builders import BUILDERS
from vitx.data.images import statistics

# Threads of NumPy's BLAS spin where the tests' processes have all cores already. The first process
# reads this too late, and passes it on to those that run the tests.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests compile the same small programs again and again, in pytest's other processes and in those
# that tests start too: all of them inherit the first one's directory.
if "PYTEST_XDIST_WORKER" not in os.environ:
  _CACHE = tempfile.TemporaryDirectory(prefix="vitx-jax-")
  os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.0"
# Operations do not note in which lines they were called: half of the time goes into tracing.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
jax.config.update("jax_traceback_in_locations_limit", 0)
# For the same reason Python's collector looks at new objects more rarely, and at imports never.
gc.freeze()
gc.set_threshold(50_000, 20, 20)
# Whatever rule of "auto" the user keeps, tests go by the shipped one.
os.environ["VITX_CHOICES"] = str(Path(os.environ["JAX_COMPILATION_CACHE_DIR"]) / "no_choices")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def pytest_addoption(parser):
  parser.addoption("--all", action="store_true", help="run the tests marked slow as well")
  parser.addoption("--optimize", action="store_true", help="compile as users do: takes longer")
  parser.addoption("--platform", default="cpu", help="cuda or tpu, for tests/ops, tests/attention")


def pytest_configure(config):
  platform = config.getoption("--platform")
  if platform == "cpu":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    _compile_quickly(config)
  else:
    jax.config.update("jax_platforms", f"{platform},cpu")
    # Accelerators multiply float32 in fewer bits, unless told; the tests' tolerances are float32's.
    jax.config.update("jax_default_matmul_precision", "highest")
    # Tests that ask for equal bits need sums that are added in one order.
    flags = "--xla_gpu_deterministic_ops=true" if platform == "cuda" else ""
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}"


def _compile_quickly(config):
  """Most of the time goes into compiling, so LLVM optimizes under `--optimize` alone.

  XLA makes a module of LLVM's of each program, not several; and before jax 0.11, whose XLA has no
  other way, no compiler of MLIR's for each fusion, which takes half of all the time.
  """
  if config.getoption("--optimize"):
    return
  fast = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
  if jax.__version_info__ < (0, 11):
    fast.append("--xla_cpu_use_fusion_emitters=false")
  os.environ["XLA_FLAGS"] = " ".join([*fast, os.environ.get("XLA_FLAGS", "")])


def pytest_terminal_summary(terminalreporter):
  """Prints how many different programs the tests compiled, their child processes included."""
  directory = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
  terminalreporter.write_line(f"compiled programs: {len(list(directory.glob('*-cache')))}")


def pytest_collection_modifyitems(config, items):
  # Whole programs take the longest: begun last, one of them would keep one process alone.
  items.sort(key=lambda item: item.path.parent != Path(__file__).parent)
  if config.getoption("--all"):
    return
  skip = pytest.mark.skip(reason="slow: runs with --all")
  for item in items:
    if "slow" in item.keywords:
      item.add_marker(skip)


# Rooms of arithmetic, where no operation may choose its own dtype.
STRICT = {
  Path(__file__).parent / room for room in ("ops", "attention", "layers", "blocks", "tasks")
}


@pytest.fixture(autouse=True)
def strict_dtypes(request):
  """Makes every implicit promotion of dtypes an error, in the tests of the rooms of arithmetic."""
  if STRICT.isdisjoint(request.path.parents):
    yield
    return
  with jax.numpy_dtype_promotion("strict"):
    yield


@pytest.fixture
def whole_runs():
  """Lets optax's schedules, which promote implicitly, take part."""
  with jax.numpy_dtype_promotion("standard"):
    yield


@pytest.fixture(scope="session", autouse=True)
def data_dir(request, tmp_path_factory):
  """A TFDS directory for the tests alone; the tests of ops read no data."""
  directory = tmp_path_factory.mktemp("tfds")
  os.environ["TFDS_DATA_DIR"] = str(directory)
  if any(item.path.parent.name != "ops" for item in request.session.items):
    BUILDERS["digits"].prepare(directory)  # here, and not in the user's cache
  return directory


@pytest.fixture(scope="session", autouse=True)
def read_pixels_once():
  """Computes the statistics of the digits' pixels once, and not in each of hundreds of runs."""
  choose, cache = statistics._choose_statistics, {}

  def find(info, train, threads):
    if info.name != "digits" or train is None:
      return choose(info, train, threads)
    key = info.fingerprint, np.asarray(train.labels).tobytes()
    if key not in cache:
      cache[key] = choose(info, train, threads)
    return cache[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(statistics, "_choose_statistics", find)
    yield


@pytest.fixture(scope="session")
def finished_run(data_dir, tmp_path_factory):
  """An uninterrupted tiny run and its result, for every test that reads one; writers copy it."""
  from tests import programs, runs
  from vitx.training import loop

  workdir = tmp_path_factory.mktemp("finished")
  with programs.shared():
    result = loop.train(runs.tiny(), workdir)
  before = runs.snapshot(workdir)
  yield workdir, result
  assert runs.snapshot(workdir) == before, "a test has written into the run that all share"


@pytest.fixture
def shared_programs():
  """Lets all runs of one config in this process, that of `finished_run` too, share programs."""
  from tests import programs

  with programs.shared():
    yield


@pytest.fixture
def run_copy(finished_run, tmp_path):
  """The finished run in another place, to be changed."""
  return shutil.copytree(finished_run[0], tmp_path / "copy")


@pytest.fixture
def warnings(monkeypatch):
  """The messages of the warnings that a test logs."""
  messages: list[str] = []
  monkeypatch.setattr(logging, "warning", lambda text, *values: messages.append(text % values))
  return messages


MAPS = Path("/proc/self/maps")


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
  """Frees what has been compiled when there is much of it.

  A program holds a few memory maps, of which Linux gives a process 65,530; one process that runs
  every test would exceed them, and XLA aborts. No file of tests needs half as many.
  """
  yield
  if not MAPS.exists() or MAPS.read_bytes().count(b"\n") > 15_000:
    jax.clear_caches()
    gc.collect()
