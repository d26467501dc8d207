"""Packages import each other only in the listed direction; heavy libraries stay in their file."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

from vitx.attention import MIXERS
from vitx.blocks.registry import BLOCKS
from vitx.config.registry import table_of

ROOT = Path(__file__).resolve().parents[1]
FREE = {"config", "files"}  # any package may import these
LOOSE = {"configs"}  # the config files, which are beside the package
MAY_IMPORT = {
  "config": {"configs"},  # their folder
  "ops": set(),
  "layers": {"ops"},
  "attention": {"layers", "ops"},
  "blocks": {"attention", "layers", "ops"},
  "models": {"blocks", "attention", "layers", "ops"},
  "data": set(),
  "tasks": {"models", "data", "ops"},
  "analysis": {"models", "attention", "ops"},
  "checkpoints": {"tasks", "ops"},
  "interop": {"checkpoints", "models", "ops"},
  "runtime": {"tasks", "models", "data", "interop", "checkpoints", "analysis", "ops"},
  "training": {"runtime", "tasks", "models", "data", "interop", "checkpoints", "analysis", "ops"},
  "inference": {"runtime", "tasks", "models", "data", "interop", "checkpoints", "analysis", "ops"},
  "sweeps": {"training", "runtime", "tasks", "data", "analysis", "checkpoints"},
  "benchmark": {"training", "tasks", "data", "attention", "ops", "analysis"},
  "cli": {"attention", "ops", "data", "tasks", "analysis", "checkpoints", "interop", "runtime"}
  | {"training", "benchmark", "inference", "sweeps"},
}
FILES = sorted((ROOT / "vitx").rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
parse = functools.cache(lambda path: ast.parse(path.read_text()))


@functools.cache
def imports(path: Path) -> set[str]:
  """Returns the dotted names that a file imports, anywhere in it, by a string too."""
  names: set[str] = set()
  for node in ast.walk(parse(path)):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{path} imports relatively"
      names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
      names |= {str(x.value) for x in node.args if isinstance(x, ast.Constant)}
  return names


def room_of(name: str) -> str | None:
  parts = name.split(".")
  return parts[1] if parts[0] == "vitx" and len(parts) > 1 else None


def test_every_room_is_listed():
  rooms = {path.parent.name for path in (ROOT / "vitx").glob("*/__init__.py")}
  assert rooms == set(MAY_IMPORT) | LOOSE


def test_arrows_point_one_way():
  for path in FILES:
    room = path.relative_to(ROOT / "vitx").parts[0]
    if room in MAY_IMPORT:  # files outside of packages may import everything
      used = {room_of(name) for name in imports(path)} - {None, room} - FREE
      assert used <= MAY_IMPORT[room], f"{path} imports {used - MAY_IMPORT[room]}"


def imports_library(path: Path, library: str) -> bool:
  return any(name.split(".")[0] == library for name in imports(path))


def test_ops_hold_no_flax():
  for path in (ROOT / "vitx" / "ops").rglob("*.py"):
    assert not imports_library(path, "flax"), path


def test_each_fact_has_one_home():
  homes = {
    "jax.pmap": [path for path in FILES if "jax.pmap" in path.read_text()],
    "orbax": [path for path in FILES if imports_library(path, "orbax")],
  }
  assert {k: [str(p.relative_to(ROOT / "vitx")) for p in v] for k, v in homes.items()} == {
    "jax.pmap": ["runtime/parallel.py"],
    "orbax": ["checkpoints/reading.py", "checkpoints/store.py"],
  }


def test_recipes_import_the_room_of_configs_and_each_other():
  for path in (ROOT / "configs").glob("*.py"):
    used = {name for name in imports(path) if room_of(name) == "config"}
    assert all(name.count(".") < 3 for name in used), path  # its public face alone
    assert {room_of(name) for name in imports(path)} <= {None, "config", "configs"}, path
    libraries = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names)
    assert libraries <= {"vitx", "ml_collections", "numpy"}, path


def module_of(path: Path) -> str:
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def graph_of_imports() -> dict[str, set[str]]:
  """Returns the modules that each module imports when it is imported itself."""
  modules = {module_of(path): path for path in FILES}
  graph: dict[str, set[str]] = {}
  for name, path in modules.items():
    tree = parse(path)
    late = {id(n) for f in ast.walk(tree) if isinstance(f, FUNCTIONS) for n in ast.walk(f)}
    late |= {id(n) for i in tree.body if is_for_types(i) for n in ast.walk(i)}
    used = graph.setdefault(name, set())
    for node in ast.walk(tree):
      if isinstance(node, ast.ImportFrom) and id(node) not in late:
        inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
        outer = len(inner) < len(node.names) and node.module in modules
        used |= inner | ({node.module} if outer else set())
      elif isinstance(node, ast.Import) and id(node) not in late:
        used |= {alias.name for alias in node.names} & modules.keys()
    used -= {name}
  return graph


def test_no_circle_of_imports():
  """Only imports inside functions and imports for types may close a circle."""
  graph = graph_of_imports()
  list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names them


def test_a_prediction_loads_only_modules_that_it_uses():
  choices = {"model": "vit", "task": "classification"}
  places = [table_of(field).data[name] for field, name in choices.items()]
  places += [MIXERS.data["softmax"], BLOCKS.data["pre_norm"]]
  loaded: set[str] = set()
  new = {"vitx.inference.predict", "vitx.interop.repository", *(p.split(":")[0] for p in places)}
  while new:
    loaded |= new
    packages = {name.rpartition(".")[0] for name in new} - {""}
    new = (packages | set().union(*map(graph_of_imports().get, new))) - loaded
  unused = ("sparsifiner", "audio", "vitx.data.sources.tfds", "vitx.sweeps", "vitx.training")
  assert not {name for name in loaded if any(part in name for part in unused)}
  assert len(loaded) <= 170


def is_for_types(node: ast.stmt) -> bool:
  return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


# Imported one after the other by one process.
PUBLIC = (
  "vitx.attention",
  "vitx.models",
  "vitx.checkpoints.store",
  "vitx.training.loop",
  "vitx.cli.main",
  "vitx.config.describe",
  "vitx.benchmark.rows",
  "vitx.cli.live",
  "vitx.data.prepare",
  *(f"vitx.inference.{name}" for name in ("evaluate", "predict", "sample", "visualize", "convert")),
)


@pytest.mark.slow  # a process of its own
def test_imports_no_tensorflow_and_touches_no_device():
  code = (
    "import importlib, sys\n"
    "import vitx\n"
    "from vitx.sweeps import points, workers\n"
    "vitx.load_config('digits:performer,seed=3,optimizer=sgd')\n"
    "assert not {'tensorflow', 'jax', 'flax'} & set(sys.modules), 'vitx'\n"
    "from jax._src import xla_bridge\n"
    f"for name in {PUBLIC}:\n"
    "  importlib.import_module(name)\n"
    "  assert 'tensorflow' not in sys.modules, f'{name} imports tensorflow'\n"
    "  assert not xla_bridge._backends, f'{name} touches a device'"
  )
  subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
