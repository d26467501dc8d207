"""Names stay plain text in Markdown, and paths of the author's machine are cut."""

import pytest

from vitx.analysis import markdown
from vitx.analysis.comparison import Comparison, Method, Outcome, format_table

TEXTS = {
  "great_white_shark": "great_white_shark",
  "a | b": r"a \| b",
  "<script>alert(1)</script>": r"\<script>alert(1)\</script>",
  "[here](http://evil.example)": r"[here\](http\://evil.example)",
  "![x][y]": r"![x\][y]",
  "[x]: /url": r"[x\]: /url",
  "https://evil.example": r"https\://evil.example",
  "www.evil.example": r"www\.evil.example",
  "me@evil.example": r"me\@evil.example",
  "&lt;b&gt; & c": r"\&lt;b\&gt; & c",
  "`x` *y* ~~z~~ $w$": r"\`x\` \*y\* \~\~z\~\~ \$w\$",
  "two\nlines\x1b[2J": r"two\\nlines\\x1b[2J",
  "-0.53 [-0.6, +0.1]": "-0.53 [-0.6, +0.1]",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_name_stays_plain_text(name):
  assert markdown.text(name) == TEXTS[name]
  (line,) = markdown.table([["head"], [name]]).splitlines()[2:]
  assert line == f"| {TEXTS[name]} |"


@pytest.mark.parametrize(
  ("value", "shown"),
  [
    ("a|b <i>", "`a|b <i>`"),
    ("a`b", "``a`b``"),
    ("`a``b", "``` `a``b ```"),
    ("a\nb\x07", r"`a\nb\x07`"),
    ("", "`  `"),
  ],
)
def test_inline_code_ends_at_its_fence(value, shown):
  assert markdown.code(value) == shown


@pytest.mark.parametrize(
  ("value", "shown"),
  [
    ("/home/jane/photos", "photos"),
    ("folder:/home/jane/photos", "folder:photos"),
    ("~/runs/a", "a"),
    ("--workdir=/home/jane/runs/a", "--workdir=a"),
    ("digits:vit,data.data_dir='/home/jane/x',seed=3", "digits:vit,data.data_dir='x',seed=3"),
    ("file:///home/jane/x", "file://x"),
    (r"C:\Users\jane\x", "x"),
    ("gs://bucket/a/b", "gs://bucket/a/b"),
    ("runs/digits", "runs/digits"),
    ({"a": ["/b/c", 3], "d": None}, {"a": ["c", 3], "d": None}),
  ],
)
def test_a_path_is_shortened_to_its_last_part(value, shown):
  assert markdown.shorten_paths(value) == shown


def test_a_sweep_of_strange_methods_is_one_table():
  name = "x|y\n# <b>"
  methods = [Method("a", 1, 1, 1), Method(name, 1, 1, 1)]
  failed = Outcome(name, 0, problem="the loss of /home/jane/runs/a is nan")
  table = format_table(
    Comparison("top1", "max", methods, [Outcome("a", 0, 1, {"top1": 0.5}, {"top1": 0.5}), failed])
  )
  assert "\n# " not in table and "<b>" not in table.replace(r"\<b>", "") and "jane" not in table
  lines = table.split("\n\n")[0].split("\n")
  assert len({line.replace(r"\|", "").count("|") for line in lines}) == 1
