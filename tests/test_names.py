"""A name means one thing in the package, and is a noun, a verb or an adjective."""

import ast
import collections
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "vitx"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PARTICIPLES = {"alike", "asked", "begun", "fed", "kept", "looked_at", "told", "turned"}
VAGUE = {"each", "found", "given", "own"}


@functools.cache
def read_trees() -> dict[str, ast.Module]:
  files = sorted(PACKAGE.rglob("*.py"))
  return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in files}


def class_names(tree: ast.Module) -> set[str]:
  """Returns the names of a module's public classes and of its types."""
  names = set()
  for node in tree.body:
    if isinstance(node, ast.ClassDef):
      names.add(node.name)
    elif isinstance(node, ast.Assign):
      names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
  return {name for name in names if name[0].isupper() and not name.isupper()}


def function_names(tree: ast.Module) -> set[str]:
  """Returns the names of functions, of their parameters and of the fields of classes."""
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, FUNCTIONS):
      names |= {node.name, *(arg.arg for arg in (*node.args.args, *node.args.kwonlyargs))}
    elif isinstance(node, ast.ClassDef):
      fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
      names |= {target.id for target in fields if isinstance(target, ast.Name)}
  return names


def test_no_two_public_classes_share_a_name():
  count = collections.Counter(name for tree in read_trees().values() for name in class_names(tree))
  assert not {name for name, files in count.items() if files > 1}


def test_no_participle_is_a_name():
  named = {path: function_names(tree) & PARTICIPLES for path, tree in read_trees().items()}
  assert not {path: names for path, names in named.items() if names}


def test_no_package_hides_a_module_behind_another_thing():
  hidden = set()
  for path, tree in read_trees().items():
    folder = (PACKAGE / path).parent
    if path.endswith("__init__.py"):
      here = ".".join(folder.relative_to(PACKAGE.parent).parts)
      imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module != here]
      names = {alias.asname or alias.name for node in imports for alias in node.names}
      hidden |= {f"{folder.name}.{name}" for name in names if (folder / f"{name}.py").exists()}
  assert not hidden


def test_a_binding_has_the_name_of_its_thing():
  """No variable, parameter, function, class or import is called by a word that fits anything."""
  riddles = [
    f"{path.relative_to(ROOT)}:{node.lineno} {name}"
    for folder in ("vitx", "configs", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not VAGUE.isdisjoint(re.findall(r"\w+", text := path.read_text()))  # others cost a parse
    for node in ast.walk(ast.parse(text))
    if not isinstance(node, ast.keyword) and not isinstance(getattr(node, "ctx", None), ast.Load)
    for name in {getattr(node, field, None) for field in ("id", "arg", "name", "asname")} & VAGUE
  ]
  assert not riddles, "\n".join(riddles)
