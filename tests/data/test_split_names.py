from vitx.data.split_names import FOLD, find_role

NAMES = {
  "train": "train TRAIN Training train_set trainset TrainSet TrainData train-images-2 seg_train"
  " train2017",
  "validation": "val Valid validation_set VAL2017 dev Evaluation valdata",
  "test": "test Testing test1 tst holdout seg_test test_set TestData",
  FOLD: "fold1 Fold_02 split-3 kfold5 cv0",
  None: "cat fold train_station devil valley contrast strain parts",
}


def test_names_state_their_role():
  for role, names in NAMES.items():
    assert {name: find_role(name) for name in names.split()} == dict.fromkeys(names.split(), role)
  assert [find_role(name) for name in ("Test Set", "part 4", "test tube", "")] == [
    "test", FOLD, None, None,
  ]  # fmt: skip
