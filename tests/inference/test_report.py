"""The report of `vitx evaluate --report`, and the figures of a classifier's predictions."""

import csv
import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitx.analysis.figures import mistakes
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.fields import read_settings
from vitx.inference import report, subject
from vitx.inference.evaluate import evaluate, evaluate_split
from vitx.inference.report import PAGE, TEXT, write_report
from vitx.inference.visualize import Options, visualize
from vitx.tasks.figures import table

STRANGE = "<script>alert(1)</script> | [a](http://x) & 'b' \x1b[31m"


class Named:
  """The examples of an evaluation, with strange names."""

  def __init__(self, evaluated):
    self._examples = evaluated.examples

  def __getitem__(self, i):
    return self._examples[i]

  def name(self, i):
    return f"{STRANGE}/{i}.png"


@pytest.fixture(scope="module")
def evaluated(finished_run):
  return evaluate_split(finished_run[0], calibrate=True, limit=60)


@pytest.mark.slow  # evaluates twice, and draws all figures
def test_the_command_writes_both_pages(finished_run, tmp_path, capsys):
  out = tmp_path / "report"
  options = ["--workdir", str(finished_run[0]), "--limit", "60", "--report", str(out)]
  assert main(["evaluate", *options]) == 0
  assert f"{out}/index.html" in capsys.readouterr().out
  page, text = (out / "index.html").read_text(), (out / "report.md").read_text()
  result = evaluate(finished_run[0], limit=60)
  for shown in (f"{result['top1']:.2%}", f"{result['f1']:.2%}", "Provenance", "step 40", "digits"):
    assert shown in page and shown in text, shown
  low, high = result["intervals"]["nll"]
  assert f"{low:.4f} to {high:.4f}" in page and f"{low:.4f} to {high:.4f}" in text
  sources = re.findall(r"<img[^>]* src='([^']*)'", page)
  assert len(sources) > 10 and all(source.startswith("data:image/") for source in sources)
  assert "<script" not in page and "http" not in page.replace("http-equiv", "")
  for file in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text):
    with Image.open(out / file) as picture:
      assert min(picture.size) > 100
  assert str(finished_run[0]) not in page + text


def test_foreign_names_are_plain_text(evaluated, tmp_path):
  names = [f"{STRANGE} {k}" for k in range(10)]
  data = {**evaluated.loaded.data, "class_names": names}
  loaded = dataclasses.replace(evaluated.loaded, data=data)
  result = evaluated.result | {"source": f"folder:/home/me/{STRANGE}"}
  other = dataclasses.replace(evaluated, loaded=loaded, result=result, examples=Named(evaluated))
  write_report(other, tmp_path)
  page, text = ((tmp_path / name).read_text() for name in (PAGE, TEXT))
  assert "<script" not in page and "&lt;script&gt;alert(1)" in page and "\x1b" not in page + text
  assert "/home/me" not in page + text
  prose = re.sub(r"(`+) ?.*? ?\1", "", text)  # Code may contain anything.
  assert not re.search(r"(?<!\\)<script|(?<!\\)\]\(http", prose)
  for line in text.splitlines():
    if line.startswith("|") and "script" in line and "jpg" in line:
      assert len(re.findall(r"(?<!\\)\|", line)) == 5


def test_a_report_without_a_temperature_says_why(evaluated):
  fitted = {"temperature": None, "fitted_examples": 12, "fitted_mistakes": 0}
  fitted |= {"before": evaluated.result["calibration"]["before"]}
  result = evaluated.result | {"calibration": fitted | {"validation": fitted}}
  content = report._Content(dataclasses.replace(evaluated, result=result), "")
  why = "none: 12 examples of validation with 0 mistakes do not determine it"
  assert why in content.notes() and content.calibration()[0] == ["", "as trained"]
  printed = table(evaluated.loaded.task.figures, result, evaluated.loaded.class_names)
  assert why in printed and "with it" not in printed


def test_the_folder_of_a_report_is_checked_first(finished_run, tmp_path, monkeypatch):
  monkeypatch.setattr("vitx.runtime.evaluation.evaluate", lambda *a: pytest.fail("evaluated"))
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match=r"report: .*file' is no folder"):
    evaluate(finished_run[0], report=tmp_path / "file")


@pytest.mark.slow
def test_visualize_agrees_with_evaluate(finished_run, tmp_path):
  workdir = str(finished_run[0])
  counts, bins, listed = [], [], []
  for figure, rows in (("confusion", counts), ("reliability", bins), ("mistakes", listed)):
    settings = {"workdir": workdir, "split": "test", "options": Options(examples=2)}
    *pictures, table = visualize(figure, tmp_path, **settings)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    with open(table, newline="", encoding="utf-8") as file:
      rows += csv.DictReader(file)
  result = evaluate(workdir)
  matrix = [[int(row[str(k)]) for k in range(10)] for row in counts]
  assert matrix == result["confusion"]
  assert [int(row["examples"]) for row in bins] == result["reliability"]["examples"]
  assert [row["kind"] for row in listed] == ["mistakes"] * 2 + ["doubts"] * 2
  assert all(row["label"] != row["prediction"] for row in listed[:2])


def test_another_task_has_no_predictions_to_show(evaluated):
  with pytest.raises(ConfigError, match="not the run of a classifier"):
    subject.show_predictions(dataclasses.replace(evaluated, predictions=None))


@pytest.mark.parametrize(
  ("mode", "ratio", "seen"),
  [
    ("squash", 1.0, (0, 60, 0, 90)),
    ("center", 1.0, (0, 60, 15, 75)),
    ("random", 0.5, (15, 45, 30, 60)),
  ],
)
def test_attention_is_drawn_over_the_seen_part(mode, ratio, seen):
  data = {"decode_size": 32, "resize_mode": mode}
  settings = read_settings({"data": data, "evaluation": {"crop_ratio": ratio}})
  over = subject._lay_over(np.ones((4, 4)), (60, 90), SimpleNamespace(settings=settings))
  top, bottom, left, right = seen
  expected = np.zeros((60, 90))
  expected[top:bottom, left:right] = 1
  np.testing.assert_allclose(over, expected, atol=1e-6)


def test_a_photo_is_dim_where_attention_is_low():
  image = np.full((300, 400, 3), 200, np.uint8)
  attention = np.zeros((300, 400), np.float32)
  attention[:, 200:] = 1
  picture = np.asarray(mistakes.Picture("a", "b", "c", 0.5, image, attention).render())
  assert picture.shape == (300, 400, 3) and (picture[:, 200:] == 200).all()
  assert (picture[:, :200] == 90).all()
  gray = np.asarray(mistakes.Picture("a", "b", "c", 0.5, image[..., :1], attention).render())
  assert gray[0, 300, 0] > gray[0, 300, 2] and (gray[:, :200] == 90).all()
  small = mistakes.Picture("a", "b", "c", 0.5, image[:8, :8, :1]).render()
  assert small.size == (256, 256) and small.mode == "RGB"
