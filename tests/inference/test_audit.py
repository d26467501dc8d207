"""The audit of a folder: its page, and its files, which a config takes back."""

import csv

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.cli.refusal import refuse
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.fields import read_settings
from vitx.config.loader import load_config
from vitx.data.sources import open_source
from vitx.inference import audit as audits
from vitx.inference import folds
from vitx.inference.audit import Audit
from vitx.runtime.environment import describe_data


def draw(path, seed, size=(72, 60), **options):
  """Writes a smooth picture, whose colors show its class."""
  path.parent.mkdir(parents=True, exist_ok=True)
  coarse = np.random.default_rng(seed).integers(0, 200, (15, 18, 3), np.uint8)
  coarse[..., ["rose", "ant"].index(path.parent.name)] //= 4
  picture = Image.fromarray(coarse).resize((72, 60), Image.Resampling.BICUBIC)
  picture.resize(size).save(path, **options)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Photos of two classes in two splits, with duplicates, a burst and a blank image."""
  root = tmp_path_factory.mktemp("photos")
  for number, name in enumerate(("ant", "rose")):
    for i in range(12):
      draw(root / "train" / name / f"{i}.png", 100 * number + i)
    draw(root / "test" / name / "first.png", 100 * number, size=(48, 40))
    draw(root / "test" / name / "other.png", 100 * number + 50)
  draw(root / "train" / "rose" / "copy.png", 103)
  mirrored = Image.open(root / "train" / "rose" / "4.png").transpose(0)
  mirrored.save(root / "train" / "ant" / "wrong.png")  # the file of another class
  Image.new("RGB", (72, 60), (9, 9, 9)).save(root / "train" / "ant" / "blank.png")
  for i in range(3):
    exif = Image.Exif()
    exif[ExifTags.Base.Model] = "box"
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = (
      f"2026:11:29 10:0{i // 2}:0{i}"
    )
    draw(root / "train" / "rose" / f"burst {i}.jpg", 200 + i, exif=exif)
  return root


@pytest.fixture
def text(photos):
  return f"configs/photos.py:from_scratch,dataset=folder:{photos}"


def list_names(groups):
  return [sorted(image.name for image, _ in group) for group in groups]


def test_duplicates_and_bursts_of_all_roles_are_found(text):
  findings = Audit(text).findings
  assert list_names(findings["duplicates"])[0] == ["train/ant/wrong.png", "train/rose/4.png"]
  assert sorted(list_names(findings["duplicates"])[1:]) == [
    ["test/ant/first.png", "train/ant/0.png"],
    ["test/rose/first.png", "train/rose/0.png"],
    ["train/rose/3.png", "train/rose/copy.png"],
  ]
  assert list_names(findings["bursts"]) == [["train/rose/burst 0.jpg", "train/rose/burst 1.jpg"]]
  assert list_names(findings["unusual"]) == [["train/ant/blank.png"]]
  assert list_names(findings["suspects"])[0] == ["train/ant/wrong.png"]


def test_the_file_of_duplicates_can_be_given_back(text, tmp_path, capsys):
  assert main(["audit", "--config", text, "--out", str(tmp_path), "--suspects", "2"]) == 0
  with open(tmp_path / "duplicates.csv", newline="") as file:
    names = {row["name"] for row in csv.DictReader(file)}
  kept = {"test/ant/first.png", "test/rose/first.png"}
  assert {"train/ant/0.png", "train/rose/0.png", "train/ant/wrong.png", "train/rose/4.png"} < names
  assert not names & kept and len(names) == 5
  page = (tmp_path / "index.html").read_text()
  assert page.count("<figure>") == 8 + 2 + 1 + 2 and "box, 2026:11:29 10:00" in page
  groups = Audit(text).groups
  changed = load_config(f"{text},data.exclude={tmp_path}/duplicates.csv,data.groups={groups}")
  source, whole = open_source(changed.data, 0), open_source(load_config(text).data, 0)
  assert len(whole.all_roles()) - len(source.all_roles()) == 5
  assert source.info.fingerprint != whole.info.fingerprint
  recorded = describe_data(source, read_settings(changed).data)
  assert set(recorded["excluded"]) == names and "excluded" not in describe_data(
    whole, read_settings(load_config(text)).data
  )
  assert len(source.test) == 4  # the directory of test stays as it is


def test_duplicates_of_test_that_are_drawn_for_calibration_are_those_to_leave_out(tmp_path):
  for i in range(6):
    for name in ("ant", "rose"):
      for split in ("train", "test"):
        draw(tmp_path / "in" / split / name / f"{i}.png", 100 * (name == "rose") + i)
  source = f"dataset=folder:{tmp_path}/in,data.calibration=0.5"
  audit = Audit(f"configs/photos.py:from_scratch,{source}", suspects=1)
  assert {image.role for image in audit.images} == {"train", "validation", "test", "calibration"}
  firsts = [group[0][0].role for group in audit.findings["duplicates"]]
  assert firsts == ["test"] * 12


def test_predictions_out_of_fold_must_have_the_classes_of_the_data(monkeypatch):
  write = lambda directory, file: file.write_text("name,p(no),p(yes)\nx,0.3,0.7\ny,0,1\n")  # noqa: E731
  monkeypatch.setattr(folds, "evaluate_split", write)
  answers = folds.predict_folds("runs/folds", ["yes", "no"])
  np.testing.assert_allclose([answers["x"], answers["y"]], [[0.7, 0.3], [1, 0]])
  with pytest.raises(ConfigError, match=r"runs/folds predicts other classes: 'p\(maybe\)'"):
    folds.predict_folds("runs/folds", ["yes", "maybe"])


def test_the_runs_of_a_sweep_judge_what_they_tested(text, monkeypatch):
  answers = {"train/ant/3.png": np.array([0.1, 0.9]), "train/rose/5.png": np.array([0.2, 0.8])}
  monkeypatch.setattr(audits, "predict_folds", lambda directory, names: answers)
  audit = Audit(text, predictions="runs/folds", suspects=1)
  assert list_names(audit.findings["suspects"]) == [["train/ant/3.png"]]
  assert audit.judge == "50.0% of the labels of 2 images are as predicted."


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--config", "configs/density_text.py"], "has no images, which an audit looks at"),
    (["--predictions", "nowhere"], "nowhere/config.json is missing"),
  ],
)
def test_an_unsuitable_audit_is_refused(options, message, text, tmp_path, monkeypatch, capsys):
  refuse(capsys, tmp_path, ["audit", "--config", text, *options, "--out", "audit"], message)
