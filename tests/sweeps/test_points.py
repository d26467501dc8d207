"""The points of a sweep: their names, and the values that cannot be swept."""

import re

import pytest

from tests.cli.sweeps import TINY, points
from vitx.cli.main import main
from vitx.config.errors import ConfigError
from vitx.config.loader import find_rows
from vitx.sweeps.points import check_points, expand, make_points, parse_grid


def test_every_combination_is_a_point_with_a_readable_name():
  grid = points("token_mixer=[softmax,performer],learning_rate=[1e-3,0.002]")
  assert [point.name for point in grid[:4]] == [
    "token_mixer-softmax_learning_rate-1e-3_seed-0",
    "token_mixer-softmax_learning_rate-0.002_seed-0",
    "token_mixer-performer_learning_rate-1e-3_seed-0",
    "token_mixer-performer_learning_rate-0.002_seed-0",
  ]
  assert len(grid) == 8 and {point.seed for point in grid[4:]} == {1}
  assert grid[2].config.model.token_mixer.name == "performer"
  assert grid[3].config.learning_rate == 0.002 and grid[4].config.seed == 1


def test_values_may_be_dicts():
  over = "token_mixer=[{'name': 'performer', 'features': 8}],model.dropout=[0.1],task.x.dropout=[1]"
  (name,) = expand("digits.py:model.depth=1", parse_grid(over))
  assert name == "token_mixer-name-performer-features-8_model.dropout-0.1_task.x.dropout-1"


def test_rows_after_over_replace_the_row_of_the_config():
  texts = expand("digits.py:softmax,model.depth=1", parse_grid("row=[fnet,softmax]"))
  assert texts == {name: f"digits.py:{name},model.depth=1" for name in ("fnet", "softmax")}


def test_without_values_the_config_itself_is_the_method():
  assert list(expand("digits.py:softmax,model.depth=1", {})) == ["softmax"]
  assert list(expand("configs/digits.py", {})) == ["digits"]


def test_the_seed_of_each_run_is_in_the_config_and_in_values():
  config = f"digits.py:{TINY},init_from=runs/a_seed-{{seed}}"
  grid = points("data.source=[folder:x{seed},digits]", config=config)
  assert [(p.config.init_from, p.config.data.source) for p in grid] == [
    ("runs/a_seed-0", "folder:x0"),
    ("runs/a_seed-0", "digits"),
    ("runs/a_seed-1", "folder:x1"),
    ("runs/a_seed-1", "digits"),
  ]
  assert grid[0].method == grid[2].method == "source-folder-x-seed"
  folds = make_points({"a": f"digits.py:{TINY},data.folds=2"}, 2, ["{seed}"])
  assert [(point.fold, point.name) for point in folds] == [
    (0, "a_fold-0_seed-0"),
    (1, "a_fold-1_seed-1"),
  ]


def test_every_fold_exists_before_the_first_is_trained():
  with pytest.raises(ConfigError, match=r"^data\.fold=2: data\.folds=2 has the folds 0 to 1"):
    check_points(make_points({"a": f"digits.py:{TINY},data.folds=2"}, 1, ["0", "2"]))


def test_methods_with_different_divisions_are_refused():
  texts = {f"{count}": f"digits.py:{TINY},data.folds={count}" for count in (2, 3)}
  with pytest.raises(ConfigError, match=r"data\.folds=2, 3: methods need the same"):
    check_points(make_points(texts, 1, ["0", "1"]))


@pytest.mark.parametrize(
  ("over", "message"),
  [
    ("learning_rate=0.1", r"'learning_rate=0.1' must be field=\[value,value\]"),
    ("learning_rate=[]", r"'learning_rate=\[\]' must be field"),
    ("batch_size=[32],batch_size=[64]", "with all values of a field"),
    ("lerning_rate=[0.1]", "no field 'lerning_rate'. Did you mean 'learning_rate'"),
    ("row=[softmax,fnett]", "unknown row 'fnett'. Did you mean 'fnet'"),
    ("seed=[1,2]", "seed=1 is set already; drop one"),
    ("learning_rate=[1e-3,0.001]", "'learning_rate-1e-3_seed-0' and 'learning_rate-0.001_seed-0'"),
    ("token_mixer=[softmax,{'name':'softmax'}]", "have equal configs"),
    ("learning_rate=[0.1,0.1]", "two points have the name 'learning_rate-0.1'"),
  ],
)
def test_a_grid_is_checked_before_anything_is_made(over, message, tmp_path, capsys):
  workdir = tmp_path / "sweep"
  command = ["sweep", f"--config=digits.py:{TINY}", f"--over={over}", f"--workdir={workdir}"]
  assert main([*command, f"--out={tmp_path / 'out'}"]) == 1
  error = capsys.readouterr().err.splitlines()[-1]
  assert error.startswith("ConfigError: ") and re.search(message, error), error
  assert not list(tmp_path.iterdir())


def test_one_fold_is_not_run_twice():
  with pytest.raises(ConfigError, match="have equal configs"):
    check_points(make_points({"a": f"digits.py:{TINY},data.folds=2"}, 1, ["0", "0"]))


def test_the_rows_of_a_file_are_listed():
  assert find_rows("digits.py", ["fnet", "softmax"]) == ["fnet", "softmax"]
  assert len(find_rows("vix_cifar10.py", [])) > 40
  with pytest.raises(
    ConfigError, match=r"rows='fnett' is no row of 'digits.py'\. Did you mean 'fnet'"
  ):
    find_rows("digits.py", ["fnett"])
  with pytest.raises(ConfigError, match="has no ROWS"):
    find_rows("run/config.json", [])
