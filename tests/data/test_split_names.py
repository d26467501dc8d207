import pytest

from vitx.data.split_names import FOLD, find_role

NAMES = {
  "train": ("train", "TRAIN", "Training", "train_set", "trainset", "TrainSet", "train-images-2"),
  "validation": ("val", "Valid", "validation_set", "VAL2017", "dev", "Evaluation", "valdata"),
  "test": ("test", "Testing", "test1", "Test Set", "tst", "holdout"),
  FOLD: ("fold1", "Fold_02", "split-3", "part 4", "cv0", "kfold5"),
  None: ("cat", "fold", "train_station", "test tube", "devil", "valley", "contrast", "")
  + ("strain", "parts"),
}


@pytest.mark.parametrize(("role", "name"), [(r, n) for r, names in NAMES.items() for n in names])
def test_the_role_of_a_name(role, name):
  assert find_role(name) == role
