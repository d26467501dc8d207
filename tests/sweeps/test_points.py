"""The points of a sweep: their names, and the values that cannot be swept."""

import re

import pytest

from tests.cli.sweeps import TINY, points
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.sweeps.points import expand, find_rows, make_points, parse_grid


def test_every_combination_is_a_point_with_a_readable_name():
  found = points("token_mixer=[softmax,performer],learning_rate=[1e-3,0.002]")
  assert [point.name for point in found[:4]] == [
    "token_mixer-softmax_learning_rate-1e-3_seed-0",
    "token_mixer-softmax_learning_rate-0.002_seed-0",
    "token_mixer-performer_learning_rate-1e-3_seed-0",
    "token_mixer-performer_learning_rate-0.002_seed-0",
  ]
  assert len(found) == 8 and {point.seed for point in found[4:]} == {1}
  assert found[2].config.model.token_mixer.name == "performer"
  assert found[3].config.learning_rate == 0.002 and found[4].config.seed == 1


def test_values_may_be_dicts_and_fields_that_end_alike_stay_apart():
  over = "token_mixer=[{'name': 'performer', 'features': 8}],model.dropout=[0.1],task.x.dropout=[1]"
  (name,) = expand("digits.py:model.depth=1", parse_grid(over))
  assert name == "token_mixer-name-performer-features-8_model.dropout-0.1_task.x.dropout-1"


def test_without_values_the_config_itself_is_the_method():
  assert list(expand("digits.py:softmax,model.depth=1", {})) == ["softmax"]
  assert list(expand("configs/digits.py", {})) == ["digits"]


def test_the_seed_of_each_run_stands_in_the_config_and_in_values():
  config = f"digits.py:{TINY},init_from=runs/a_seed-{{seed}}"
  found = points("data.source=[folder:x{seed},digits]", config=config)
  assert [(p.config.init_from, p.config.data.source) for p in found] == [
    ("runs/a_seed-0", "folder:x0"),
    ("runs/a_seed-0", "digits"),
    ("runs/a_seed-1", "folder:x1"),
    ("runs/a_seed-1", "digits"),
  ]
  assert found[0].method == found[2].method == "source-folder-x-seed"
  folds = make_points({"a": f"digits.py:{TINY},data.folds=2"}, 2, ["{seed}"])
  assert [(point.fold, point.name) for point in folds] == [
    (0, "a_fold-0_seed-0"),
    (1, "a_fold-1_seed-1"),
  ]


@pytest.mark.parametrize("fold", ["-1", "2"])
def test_every_fold_exists_before_the_first_is_trained(fold):
  with pytest.raises(ConfigError, match=rf"^data\.fold={fold}: data\.folds=2 has the folds 0 to 1"):
    make_points({"a": f"digits.py:{TINY},data.folds=2"}, 1, ["0", fold])


def test_methods_with_folds_of_different_divisions_are_refused():
  texts = {f"{count}": f"digits.py:{TINY},data.folds={count}" for count in (2, 3)}
  with pytest.raises(ConfigError, match=r"data\.folds=2, 3: the methods would be compared on diff"):
    make_points(texts, 1, ["0", "1"])


@pytest.mark.parametrize(
  ("over", "message"),
  [
    ("learning_rate=0.1", r"'learning_rate=0.1' is not of the form field=\[value,value\]"),
    ("learning_rate=[]", "has no value: the sweep is empty"),
    ("", "over='' has no field: leave --over out"),
    ("seed=[1,2]", "give the number of seeds by --seeds"),
    ("batch_size=[32],batch_size=[64]", "batch_size occurs twice"),
    ("lerning_rate=[0.1]", "no field 'lerning_rate'. Did you mean 'learning_rate'"),
    ("learning_rate=[fast]", "learning_rate"),
    ("row=[softmax,fnett]", "unknown row 'fnett'. Did you mean 'fnet'"),
    ("learning_rate=[1e-3,0.001]", "'learning_rate-1e-3_seed-0' and 'learning_rate-0.001_seed-0'"),
    ("token_mixer=[softmax,{'name':'softmax'}]", "have equal configs"),
    ("learning_rate=[0.1,0.1]", "two points have the name 'learning_rate-0.1'"),
    ("model.dropout=[0.1]", "is set already; drop one"),
    (f"init_from=[{'x' * 300}]", "exceeds 200 characters"),
  ],
)
def test_what_cannot_be_swept_is_said_before_anything_is_made(over, message, tmp_path, capsys):
  workdir = tmp_path / "sweep"
  command = ["sweep", f"--config=digits.py:{TINY}", f"--over={over}", f"--workdir={workdir}"]
  assert main([*command, f"--out={tmp_path / 'out'}"]) == 1
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("ConfigError: ") and re.search(message, error), error
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("config", "seeds", "message"),
  [
    ("digits.py:softmax", 0, "seeds=0: the sweep is empty"),
    ("digits.py:softmax,seed=3", 1, "sets a seed; give the number"),
  ],
)
def test_seeds_have_one_place(config, seeds, message):
  with pytest.raises(ConfigError, match=message):
    points("model.depth=[1]", seeds, config)


def test_a_row_has_one_place():
  with pytest.raises(ConfigError, match="names the row 'softmax', and --over names others"):
    points(config="digits.py:softmax")


def test_rows_of_a_file():
  assert find_rows("digits.py", ["fnet", "softmax"]) == ["fnet", "softmax"]
  assert len(find_rows("vix_cifar10.py", [])) > 40
  with pytest.raises(
    ConfigError, match=r"rows='fnett' is no row of 'digits.py'\. Did you mean 'fnet'"
  ):
    find_rows("digits.py", ["fnett"])
  with pytest.raises(ConfigError, match=r"rows=.*has .fnet. twice"):
    find_rows("digits.py", ["fnet", "fnet"])
  with pytest.raises(ConfigError, match="has no ROWS"):
    find_rows("run/config.json", [])


@pytest.mark.parametrize(
  ("name", "text"), [("config.json", '{"seed": 0}'), ("phases.json", '{"phases": ["a", "b"]}')]
)
def test_the_workdir_of_a_run_takes_no_sweep(name, text, tmp_path, capsys):
  (tmp_path / name).write_text(text)
  command = ["sweep", f"--config=digits.py:{TINY}", "--seeds=2", f"--workdir={tmp_path}"]
  assert main([*command, f"--out={tmp_path / 'out'}", "--no-plot"]) == 1
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("ConfigError: ") and "is the workdir of one run" in error
  assert [path.name for path in tmp_path.iterdir()] == [name]


NUMPY = """
import numpy
from ml_collections import ConfigDict
from vitx.config import default_config
def get_config(arg=None):
  config = default_config()
  config.optimizer = ConfigDict(dict(name="adamw", weight_decay=numpy.float32(0.1)))
  return config
"""


def test_a_number_of_numpy_in_a_config_is_refused_by_name(tmp_path, capsys):
  file = tmp_path / "own.py"
  file.write_text(NUMPY)
  command = ["sweep", f"--config={file}", f"--workdir={tmp_path / 'w'}", "--no-plot"]
  assert main([*command, f"--out={tmp_path / 'out'}"]) == 1
  assert "optimizer.weight_decay=np.float32(0.1) cannot be stored" in capsys.readouterr().err
