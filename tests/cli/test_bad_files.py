"""Configs that fail, unwritable places, and processes that cannot meet are refused at once.

Each error is one line.
"""

import socket

import pytest

import vitx
from tests import runs
from tests.cli.refusal import elsewhere, refuse
from vitx.config.errors import ConfigError
from vitx.sweeps import points

__all__ = ["elsewhere"]

TINY = "configs/digits.py:" + runs.TINY

# A user's own config file, and the texts that the message must contain.
FILES = {
  "syntax": ("def get_config(:\n", "config='mine.py'", "mine.py, line 1: SyntaxError"),
  "no_python": ("# A title\n\nSome text of a page.\n", "config='mine.py'", "mine.py, line 3"),
  "import": ("import nowhere_to_be_found\n", "line 1: ModuleNotFoundError", "nowhere_to_be_found"),
  "name": ("\nx = y\n", "mine.py, line 2: NameError: name 'y' is not defined"),
  "exit": ("raise RuntimeError('not today')\n", "line 1: RuntimeError: not today"),
  "none": ("x = 3\n", "config='mine.py' has no function get_config(arg); define it"),
  "no_function": (
    "get_config = 3\n",
    "config='mine.py' has no function get_config(arg); define it",
  ),
  "no_argument": ("def get_config():\n  return 3\n", "get_config() takes 0 positional arguments"),
  "nothing": ("def get_config(arg=None):\n  pass\n", "get_config returned NoneType; return a"),
  "raises": (
    "def get_config(arg=None):\n  return {}['width']\n",
    "mine.py, line 2: KeyError: 'width'",
  ),
  "refuses": (
    "def get_config(arg=None):\n  raise ValueError('row=7 is unknown;\\n choose 8')\n",
    "ConfigError: row=7 is unknown; choose 8",
  ),
  "binary": (b"\xff\xfe\x00\x01", "config='mine.py'", "SyntaxError"),
  "empty": ("", "config='mine.py' has no function get_config(arg); define it"),
}


@pytest.mark.parametrize("command", ["train", "plan", "sweep"])
@pytest.mark.parametrize("name", FILES)
def test_a_config_file_that_does_not_run(command, name, elsewhere, capsys):
  content, *parts = FILES[name]
  path = elsewhere / "mine.py"
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  given = {
    "train": ["train", "--config", "mine.py:row", "--workdir", "run"],
    "plan": ["plan", "--config", "mine.py:row"],
    "sweep": ["sweep", "--config", "mine.py:row", "--seeds", "2", "--workdir", "runs"],
  }
  refuse(capsys, elsewhere, given[command], *parts)


# Arguments that are no config, and the texts that the message must contain.
NAMES = [
  ("", "config='' does not exist"),
  ("digts", "config='digts' does not exist. Did you mean 'digits'?"),
  ("digts.py", "config='digts.py' does not exist. Did you mean 'digits'?"),
  ("folder", "config='folder' does not exist"),
  ("nowhere.json", "config='nowhere.json' cannot be read as JSON"),
  ("list.json", "config='list.json' must hold a JSON object, the fields of a config"),
  ("cut.json", "config='cut.json' cannot be read as JSON"),
  ("text.json", "config='text.json' cannot be read as JSON"),
  ("unknown.json", "has no field 'wdth'"),
  ("digits:performr", "Did you mean 'performer'?"),
  ("digits:softmax,softmax", "config override 'softmax' must have the form field=value"),
  ("digits:softmax,seed=3,seed", "config override 'seed' must have the form field=value"),
]


@pytest.mark.parametrize("case", NAMES, ids=lambda case: case[0])
def test_what_is_no_config(case, elsewhere, capsys):
  (elsewhere / "folder").mkdir()
  for name, text in {
    "list": "[]",
    "cut": '{"seed": ',
    "text": "x",
    "unknown": '{"wdth": 3}',
  }.items():
    (elsewhere / f"{name}.json").write_text(text)
  given, *parts = case
  refuse(capsys, elsewhere, ["train", "--config", given, "--workdir", "run"], *parts)


# Flags of processes, and the texts that the message must contain.
PROCESSES = [
  (["--coordinator=h:1"], "--coordinator, --processes and --process belong together"),
  (["--processes=2", "--process=0"], "belong together: give all three or none"),
  (["--coordinator=h:1", "--processes=0", "--process=0"], "--processes=0 must be at least 1"),
  (["--coordinator=h:1", "--processes=-2", "--process=0"], "--processes=-2 must be at least 1"),
  (
    ["--coordinator=h:1", "--processes=2", "--process=2"],
    "--process=2 must be a number from 0",
  ),
  (
    ["--coordinator=h:1", "--processes=2", "--process=-1"],
    "--process=-1 must be a number from 0",
  ),
  (["--coordinator=h:1", "--processes=two", "--process=0"], "argument --processes: invalid int"),
  (
    ["--coordinator=h", "--processes=2", "--process=0"],
    "--coordinator='h' is not of the form HOST",
  ),
  (["--coordinator=h:x", "--processes=2", "--process=1"], "--coordinator='h:x' is not of the form"),
  (["--coordinator=h:99999", "--processes=2", "--process=1"], "with a port in 1..65535"),
  (["--coordinator=http://h:1", "--processes=2", "--process=1"], "is not of the form HOST:PORT"),
  (
    ["--coordinator=no.such.host.invalid:1", "--processes=2", "--process=1"],
    "there is no host 'no.such.host.invalid'",
  ),
]


@pytest.mark.parametrize("case", PROCESSES, ids=lambda case: " ".join(case[0]))
def test_processes_that_cannot_meet(case, elsewhere, capsys):
  flags, *parts = case
  refuse(capsys, elsewhere, ["train", "--config", TINY, "--workdir", "run", *flags], *parts)


def test_a_port_that_another_program_has(elsewhere, capsys):
  with socket.socket() as other:
    other.bind(("", 0))
    other.listen()
    address = f"localhost:{other.getsockname()[1]}"
    flags = [f"--coordinator={address}", "--processes=2", "--process=0"]
    message = f"--coordinator='{address}': process 0 cannot listen at port"
    refuse(capsys, elsewhere, ["train", "--config", TINY, "--workdir", "run", *flags], message)


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"])
def test_a_launcher_that_gives_no_number(name, elsewhere, capsys, monkeypatch):
  monkeypatch.setenv(name, "many")
  message = f"the environment variable {name}='many' must be the number of processes. Unset it"
  refuse(capsys, elsewhere, ["train", "--config", TINY, "--workdir", "run"], message)


# Arguments with a path or a name, and its name in the message.
NUL = {
  "workdir": (["train", "--config", TINY, "--workdir", "a\0b"], "argument 5='a\\x00b'"),
  "data_dir": (["train", "--config", TINY + ",data.data_dir=a\0b", "--workdir", "run"], "argument"),
  "sweep": (["sweep", "--config", TINY, "--seeds", "2", "--workdir", "a\0b"], "argument 7"),
  "prepare": (["prepare", "tiny_imagenet", "--from", "a\0b"], "argument 4='a\\x00b'"),
  "figure": (["visualize", "gallery", "--out", "a\0b"], "argument 4='a\\x00b'"),
  "predict": (["predict", "--workdir", "run", "a\0b.png"], "argument 4='a\\x00b.png'"),
  "convert": (["convert", "a\0b.pth", "--config", TINY, "--out", "run"], "argument 2"),
}


@pytest.mark.parametrize("name", NUL)
def test_a_nul_in_what_is_given(name, elsewhere, capsys):
  given, argument = NUL[name]
  refuse(capsys, elsewhere, given, argument, "holds the character NUL; leave")


def test_a_nul_given_to_the_library(elsewhere):
  config = vitx.load_config(TINY)
  other = config.copy_and_resolve_references()
  other.data.data_dir = "a\0b"
  for call in (
    lambda: vitx.load("a\0b"),
    lambda: vitx.evaluate("a\0b"),
    lambda: vitx.predict("a\0b", ["x.png"]),
    lambda: vitx.sample("a\0b"),
    lambda: vitx.export("a\0b", "out"),
    lambda: vitx.read_metrics("a\0b"),
    lambda: vitx.train(config, "a\0b"),
    lambda: vitx.train(other, "run"),
  ):
    with pytest.raises(ConfigError, match=r"'a.x00b' holds the character NUL"):
      call()
  for given in ("a\0b", "a\0b.py", "a\0b.json"):
    with pytest.raises(ConfigError, match=r"config='a.x00b"):
      vitx.load_config(given)
  assert list(elsewhere.iterdir()) == []


# Commands that write to a file or into a folder at their end. Their inputs do not exist, but the
# place of the output is checked first.
WRITES = [
  ("evaluate --workdir nowhere --json {file}", "json"),
  ("evaluate --workdir nowhere --predictions {file}", "predictions"),
  ("predict x.png --workdir nowhere --json {file}", "json"),
  ("predict x.png --workdir nowhere --csv {file}", "csv"),
  ("export --workdir nowhere --out {file}", "out"),
  ("compress nowhere.txt --workdir nowhere --out {file}", "out"),
  ("decompress nowhere.vtx --workdir nowhere --out {file}", "out"),
  ("benchmark mixers --csv {file}", "csv"),
  ("benchmark mixers --plot {file}", "plot"),
  ("benchmark choose --out a_folder", "out"),
  ("benchmark choose --out some.txt/below", "out"),
  ("plan --config digits --csv {file}", "csv"),
  ("plan --config digits --json {file}", "json"),
  ("sample --workdir nowhere --out {folder}", "out"),
  ("visualize attention --workdir nowhere --out {folder}", "out"),
  ("convert nowhere.npz --config digits:softmax --out {folder}", "out"),
  ("sweep --config digits:softmax --workdir runs --out {folder}", "out"),
  ("sweep --config digits:softmax --workdir runs --name a/b", "name='a/b'"),
  ("sweep --config digits:softmax --workdir runs --name .", "name='.'"),
  ("sweep --config digits:softmax --workdir . ", "name='.'"),
  ("reproduce --config digits --rows softmax --out {folder}", "out"),
  ("reproduce --config digits --rows softmax --name a/b", "name='a/b'"),
]


@pytest.mark.parametrize(("command", "part"), WRITES, ids=lambda value: value)
def test_a_place_where_nothing_can_be_written_is_refused_first(command, part, elsewhere, capsys):
  (elsewhere / "some.txt").write_text("some text")
  (elsewhere / "a_folder").mkdir()
  files = {"a_folder", "no_folder/x.csv", "some.txt/x.csv", "x" * 300}
  for place in files if "{file}" in command else {"some.txt", "some.txt/below/it"}:
    given = command.format(file=place, folder=place).split()
    refuse(capsys, elsewhere, given, part)


def test_results_that_are_folders_are_refused_first(elsewhere, capsys):
  (elsewhere / "results" / "runs.csv").mkdir(parents=True)
  command = ["sweep", "--config", "digits:softmax", "--workdir", "runs"]
  refuse(capsys, elsewhere, command, "name='results/runs.csv' is a folder")


@pytest.mark.parametrize(
  "more",
  [["--seeds", "1000000"], ["--over", ",".join(f"f{i}=[{','.join('12345')}]" for i in range(9))]],
)
def test_a_sweep_that_nobody_waits_for_is_refused_at_once(more, elsewhere, capsys, monkeypatch):
  monkeypatch.setattr(points, "load_config", lambda *_: pytest.fail("it began"))
  command = ["sweep", "--config", "digits:softmax", "--workdir", "runs", *more]
  refuse(capsys, elsewhere, command, more[0][2:], " points, but 10,000 is the most; vary less")
