"""README and docs: their commands and Python run, and their links and files exist."""

import contextlib
import importlib
import io
import itertools
import re
import shutil

import pytest
from PIL import Image

from tests import documents
from tests.documents import PAGES, PYTHON, SHELL
from tests.runs import ROOT
from tests.test_folder_end_to_end import draw
from vitx.cli.main import COMMANDS, main
from vitx.config.loader import load_config, open_config
from vitx.training import loop

# How the commands begin that another test or CI runs.
ELSEWHERE = (
  "pip install -e . && python train.py --config configs/digits.py",
  'pip install -e ".[test]" && pytest',
  "pytest",
  "python train.py --config configs/digits.py --workdir runs/two",
  "vitx benchmark",
  'vitx sweep --config "configs/digits.py:duration=2',
  'vitx sweep --config "digits:duration=100',
  "vitx sweep --config configs/sparsifiner_small.py:digits_dense",
  'vitx sweep --config "configs/sparsifiner_small.py:digits_tuned',
  'vitx sweep --config configs/digits.py --over "row',
  'vitx sweep --config configs/digits.py:softmax --over "learning',
  "vitx sweep --config configs/digits.py:softmax,data.folds=5",
  "vitx sweep --config configs/photos.py:from_scratch,dataset=folder:flowers,data.folds=5",
  'vitx train --config "digits:nystromformer,pool=cls',
  "vitx visualize gallery --out docs",
  # tests/inference/test_ensemble.py
  *(f"vitx {verb} --workdir runs/calibrated" for verb in ("evaluate", "predict")),
  *(
    f"vitx visualize {figure}"
    for figure in (
      *("graph", "landmarks", "memory", "performer_error", "posemb", "projections"),
      *("receptive_field", "reconstructions", "sparsifiner"),
    )
  ),
  "vitx probe --config configs/digits.py",
  "vitx plan",
  "python -m tests.benchmarks",
)
OTHERS = ("pip", "pytest", "srun", "gcloud", "pre-commit", ".ci/run", "python", "sphinx-build")
TABLES = (
  *("vix_cifar10", "vix_tiny_imagenet", "bbvit_imagenette", "imagenet", "cifar10"),
  *("sparsifiner_imagenet", "simplified_cifar10", "small_data"),
)
TRAINING = ("train", "sweep", "reproduce")
# Workdirs that the tiny run of all tests replaces, besides `runs/digits`.
TRAINED = ("runs/cosine", "runs/large", "runs/mixers", "runs/rates")
# Python blocks that plain `pytest` runs, without a trained run; `--all` runs whole pages.
QUICK = (("README.md", 1), ("docs/mixers.md", 0), ("docs/training.md", 0))


def elsewhere(command):
  """Returns whether another test or CI runs a command."""
  return command.text.startswith(ELSEWHERE)


def python_blocks(page):
  return [text for language, text in documents.blocks(page) if language == PYTHON]


@pytest.fixture
def own_code(tmp_path, monkeypatch):
  """The working directory of a reader, with the mixer that the pages show."""
  (tmp_path / "my_package").mkdir()
  (tmp_path / "my_package" / "__init__.py").touch()
  shutil.copy(
    ROOT / "tests" / "attention" / "third_party.py", tmp_path / "my_package" / "my_file.py"
  )
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.syspath_prepend(str(tmp_path))
  return tmp_path


@pytest.fixture
def place(finished_run, own_code):
  """The working directory of a reader, with configs, a trained run, files and own code."""
  for workdir in ("runs/digits", *TRAINED):
    shutil.copytree(finished_run[0], own_code / workdir)
  shutil.copytree(ROOT / "configs", own_code / "configs")
  draw(own_code / "flowers", per_class=8)
  (own_code / "flowers" / "bright").rename(own_code / "flowers" / "rose")
  Image.new("RGB", (20, 30), (200, 30, 30)).save(own_code / "flowers" / "rose" / "2.png")
  Image.new("L", (8, 8), 128).save(own_code / "scan.png")
  (own_code / "book.txt").write_text("Once upon a time there was a patch. " * 1500)
  (own_code / "chapter.txt").write_text("Once upon a time there was a token.")


def run_python(page, number):
  name = f"{page}, Python block {number}"
  exec(compile(python_blocks(page)[number], name, "exec"), {"__name__": "documents"})


def run_command(command):
  """Runs a command of a page in the working directory; a training ends after few steps."""
  words = command.vitx
  if words[0] in TRAINING:
    words = documents.shorten(words)
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    status = main(words)
  assert status == 0, f"{command.text}\nas {words}\n{output.getvalue()[-2000:]}"
  if command.into:
    with open(command.into, "w", encoding="utf-8") as file:
      file.write(output.getvalue())


def make_ready(command, monkeypatch):
  """Runs everything of a training command that comes before the compilation."""
  words = documents.shorten(command.vitx)
  phases = load_config(words[words.index("--config") + 1]).get("phases")  # tried separately
  with monkeypatch.context() as patch:
    if phases:
      patch.setattr(loop, "train", lambda *arguments, **more: loop.Result("", 0, True))
    patch.setattr(loop.compilation, "dry_run", lambda *arguments, **more: None)
    assert main([*words, "--dry_run"]) == 0, command.text


def understand(command, monkeypatch):
  """Returns the options that the command's own parser reads."""
  words, calls = command.vitx, []
  assert words[0] in COMMANDS, command.text
  module = importlib.import_module(f"vitx.cli.{words[0]}")
  monkeypatch.setattr(module, "run", lambda *arguments, **options: calls.append(options))
  assert main(words) == 0, command.text
  return calls[0]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_understood(page, monkeypatch, capsys):
  files = {command.into for command in documents.page_commands(page)}
  for command in documents.page_commands(page):
    if command.vitx is None:
      assert command.words[0] in OTHERS, f"no test knows {command.text}"
      assert command.needs or elsewhere(command), f"not run, and not said why: {command.text}"
      continue
    try:
      config = understand(command, monkeypatch).get("config")
    except SystemExit:
      pytest.fail(f"{command.text}\n{capsys.readouterr().err}")
    of_run = ":swap,init_from=runs/", ":lora,init_from=runs/"  # they read the run's config
    needs_run = any(text in (config or "") for text in of_run)
    if config and not needs_run and not {config, config.split(":")[0]} & files:
      load_config(config)  # raises where file, row or field is unknown


@pytest.mark.parametrize(("page", "number"), QUICK)
def test_the_python_of_a_page_runs(page, number, own_code):
  run_python(page, number)


def runs_here(page):
  """Returns the commands and the numbers of Python blocks that no page before this one runs."""
  before = {
    command.text
    for other in PAGES[: PAGES.index(page)]
    for command in documents.page_commands(other)
    if not command.needs
  }
  numbers, parts = itertools.count(), []
  for language, text in documents.blocks(page):
    parts += [next(numbers)] if language == PYTHON else []
    parts += [
      command
      for command in (documents.commands(text) if language == SHELL else ())
      if not command.needs and not elsewhere(command) and command.text not in before
    ]
  return parts


def is_read(command, rest, page):
  """Returns whether a later part of a page reads the workdir that a command trains."""
  workdir = command.vitx[command.vitx.index("--workdir") + 1]
  texts = [python_blocks(page)[one] if isinstance(one, int) else one.text for one in rest]
  return workdir not in TRAINED and bool(re.search(rf"{workdir}\b", "\n".join(texts)))


@pytest.mark.slow  # trains several networks for few steps
@pytest.mark.usefixtures("whole_runs", "place", "shared_programs")
@pytest.mark.parametrize("page", [page for page in PAGES if runs_here(page)])
def test_a_page_runs_from_top_to_bottom(page, monkeypatch):
  # `test_third_party` keeps this mixer to the contract.
  monkeypatch.setattr("vitx.testing.check_token_mixer", lambda mixer: None)
  todo = runs_here(page)
  for number, one in enumerate(todo):
    if isinstance(one, int):
      run_python(page, one)
    elif one.vitx[0] == "train" and not is_read(one, todo[number + 1 :], page):
      make_ready(one, monkeypatch)
    else:
      run_command(one)


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_exist(page):
  folder = (ROOT / page).parent
  for link in documents.links(page):
    path, _, anchor = link.partition("#")
    assert "://" not in link, f"{page}: {link}: no address is built in"
    target = folder / path.replace("\\", "") if path else ROOT / page
    assert target.exists(), f"{page}: {link}"
    assert not anchor or anchor in documents.anchors(target), f"{page}: {link}"
  missing = {name for name in documents.named_files(page) if not (ROOT / name).exists()}
  assert not missing, f"{page} names {missing}"


def test_the_index_leads_to_every_page():
  index = {link.partition("#")[0] for link in documents.links("docs/README.md")}
  pages = {path.name for path in ROOT.glob("docs/*.md")} - {"README.md", "index.md"}
  assert pages <= index, f"docs/README.md leaves out {pages - index}"
  notebooks = {f"../colab/{path.stem}" for path in ROOT.glob("colab/*.ipynb")}
  listed = set(documents.read("docs/index.md").split())  # in the menu of the site
  assert {page.removesuffix(".md") for page in pages} | notebooks <= listed


def test_the_mixer_shown_is_the_one_tested():
  code = (ROOT / "tests" / "attention" / "third_party.py").read_text(encoding="utf-8")
  assert code in documents.read("docs/mixers.md")


@pytest.mark.parametrize("name", TABLES)
def test_papers_has_every_published_row(name):
  lines = documents.read("docs/papers.md").splitlines()
  for row, figures in open_config(f"configs/{name}.py")["PUBLISHED"].items():
    printed = {figures.get(figure) for figure in ("parameters", "top1")} - {None}
    table_lines = [line for line in lines if line.startswith(f"| `{row}` |")]
    assert any(all(f" {value:,} |" in line for value in printed) for line in table_lines), row
