"""Pages in Markdown: their commands, Python blocks, links and the files they name."""

import dataclasses
import functools
import re
import shlex
from pathlib import Path

from tests.runs import ROOT, TINY, replace
from vitx.config.overrides import split

PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
SHELL, PYTHON = "bash", "python"


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of a page.

  Attributes:
    text: The command as the page has it, in one line, without its comment.
    words: The words of the shell command, without those after `>`.
    needs: The thing that the tests lack, as the comment `# needs` says; "" for nothing.
    into: The file after `>`, or "".
  """

  text: str
  words: tuple[str, ...]
  needs: str
  into: str = ""

  @property
  def vitx(self) -> list[str] | None:
    """The arguments of `vitx`, in whatever way it is called; `None` for another program."""
    for start, instead in (
      (("vitx",), ()),
      (("python", "-m", "vitx"), ()),
      (("python", "train.py"), ("train",)),
    ):
      if self.words[: len(start)] == start:
        return [*instead, *self.words[len(start) :]]
    return None


def read(page: str) -> str:
  return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
  """Returns (language, content) of every fenced block in order."""
  return re.findall(r"^```(\w*)\n(.*?)^```", read(page), re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[Command]:
  """Returns the commands of a shell block; `&&` and `&` separate two commands."""
  result = []
  for line in block.replace("\\\n", " ").splitlines():
    text, _, comment = line.partition(" # ")
    if not text.strip() or text.startswith("#"):
      continue
    needs = comment.strip().removeprefix("needs ") if comment.strip().startswith("needs ") else ""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&>|;")
    lexer.whitespace_split, lexer.commenters = True, ""
    words, plain = list(lexer), " ".join(text.split())
    while words:
      end = next((i for i, word in enumerate(words) if word in ("&", "&&", ";")), len(words))
      part, words = words[:end], words[end + 1 :]
      if ">" in part:
        part, into = part[: part.index(">")], part[-1]
      else:
        into = ""
      result.append(Command(plain, tuple(part), needs, into))
  return result


@functools.cache
def page_commands(page: str) -> list[Command]:
  return [
    command for language, text in blocks(page) if language == SHELL for command in commands(text)
  ]


def links(page: str) -> list[str]:
  return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", read(page), flags=re.S | re.M))


def anchors(path: Path) -> set[str]:
  """Returns the anchors of a page: its headings in small letters, with hyphens for spaces."""
  headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
  return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def named_files(page: str) -> set[str]:
  """Returns files and folders of the repository that a page names anywhere."""
  rooms = r"(?:configs|docs|tests|vitx|results|colab|\.ci|\.github)"
  matches = re.findall(rf"(?<![\w/.~$-])({rooms}/[\w/.-]*\w)([{{*]?)", read(page))
  # A brace or a star means several files, and NAME is a placeholder for the reader's own name.
  return {name for name, more in matches if not more and "NAME" not in name}


def shorten(words: list[str]) -> list[str]:
  """Returns a training command that ends after four steps of a small batch and a shallow model.

  Images are not augmented, and windows of texts are short.
  """
  from vitx.config import default_config
  from vitx.config.loader import load_config, split_text
  from vitx.sweeps.points import parse_grid

  at = words.index("--config") + 1
  path, arg = split_text(words[at])
  config = load_config(words[at])
  has_grid = "--over" in words and "--search" not in words
  grid = parse_grid(words[words.index("--over") + 1]) if has_grid else {}
  short = {"batch_size": 8, "duration": "4 steps", "log_every": "2 steps"}
  short |= {"evaluation.every": "4 steps", "checkpoint.every": "4 steps"}
  plain = default_config().augment.items()
  short |= {f"augment.{name}": value for name, value in plain if config.augment[name] != value}
  if config.task.get("window"):
    short["task.window"] = 32
  if "decoder_depth" in config.task:
    short["task.decoder_depth"] = 1
  if "teacher_model" in config.task:
    short["task.teacher_model.depth"] = 1
  if config.init_from == "runs/digits":  # the test has a tiny run there, with a network of its own
    items = dict(item.split("=", 1) for item in split(TINY) if "=" in item)
    short |= {name: items[name] for name in items if name.startswith(("stem", "model."))}
  phases = {f"phases.{name}.": phase for name, phase in (config.get("phases") or {}).items()}
  for prefix, changed in ({"": config} | phases).items():
    if prefix:
      short[f"{prefix}duration"] = "4 steps"
    if prefix or "warmup" in config.schedule:
      short[f"{prefix}schedule.warmup"] = "1 steps"
    if "model" in changed:
      short[f"{prefix}model.depth"] = config.model.get("layer_cycle") or 1
  fields = {name: value for name, value in short.items() if name not in grid}
  overrides = replace(arg, *(f"{name}={value}" for name, value in fields.items()))
  result = [*words[:at], f"{path}:{overrides.lstrip(',')}", *words[at + 1 :]]
  for name in {"--seeds", "--search"} & {*result}:
    result[result.index(name) + 1] = "1"
  if grid:  # one point
    text = ",".join(f"{field}=[{values[0]}]" for field, values in grid.items())
    result[result.index("--over") + 1] = text
  return result
