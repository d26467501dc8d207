import dataclasses

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from vitx.config.errors import ConfigError
from vitx.data import splits, strata
from vitx.data.dataset import ROLES, Dataset, DatasetInfo


class Labeled:
  """Examples that have only labels."""

  def __init__(self, counts=(20, 10, 3, 1)):
    self.labels = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    np.random.default_rng(0).shuffle(self.labels)

  def __len__(self):
    return len(self.labels)

  def __getitem__(self, i):
    raise AssertionError("roles must not read examples")

  def name(self, i):
    return str(i)


def fake(*names, unlabeled=()):
  opened = {name: Labeled() for name in names}
  return Dataset(
    info=DatasetInfo("fake", {}, class_names=("a", "b", "c", "d")),
    splits=names,
    unlabeled=tuple(unlabeled),
    open_split=lambda name: opened.setdefault(name, Labeled()),
  )


def counts(examples):
  return np.bincount(examples.labels, minlength=4).tolist()


@pytest.mark.parametrize(
  ("names", "unlabeled", "validation", "test"),
  [
    (("train", "test"), (), "", "test"),
    (("train", "validation"), (), "", "validation"),
    (("train", "validation"), ("test",), "", "validation"),
    (("train", "validation", "test"), (), "validation", "test"),
    (("train", "val", "test"), (), "val", "test"),
    (("train",), (), "", ""),
  ],
)
def test_each_role_finds_its_split(names, unlabeled, validation, test):
  roles = splits.find_splits(fake(*names, unlabeled=unlabeled), {})
  assert roles == {"train": "train", "validation": validation, "test": test}


def test_splits_without_a_role_are_counted_unread(make_data, caplog):
  dataset = dataclasses.replace(fake("train", "tset", "val"), open_split=lambda split: Unscanned())
  splits.assign(dataclasses.replace(dataset, count=lambda split: 7), make_data(), 0)
  assert (
    "skipped 1 splits that no role reads: tset (7 examples) Did you mean 'test'?" in caplog.text
  )


def test_a_validation_split_that_the_config_names_is_not_test(make_data):
  opened = {"train": Labeled((20, 11, 5, 7)), "val": Labeled()}
  dataset = dataclasses.replace(fake(*opened), open_split=opened.__getitem__)
  for folds, tested in (({}, 8), ({"folds": 4, "fold": 0}, 11)):
    roles = splits.assign(dataset, make_data(splits={"validation": "val"}, **folds), seed=0)
    assert roles["validation"] is opened["val"]
    assert (len(roles["train"]), len(roles["test"])) == (43 - tested, tested)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"train": "trian"}, r"data\.splits\.train='trian'.*does not exist.*'train'.*test"),
    ({"test": "blind"}, r"data\.splits\.test='blind'.*no labels"),
    (
      {"validation": "test"},
      r"data\.splits\.test='test' shares examples with data\.splits\.validation",
    ),
    ({"tset": "test"}, r"data\.splits\.tset='test'.*Valid: test, train, validation"),
    ({"test": 3}, r"data\.splits\.test=3"),
  ],
)
def test_unsuitable_splits_are_refused(fields, message, make_data):
  with pytest.raises(ConfigError, match=message):
    splits.assign(fake("train", "test", unlabeled=("blind",)), make_data(splits=fields), 0)


def test_validation_is_carved_balanced_disjoint_and_fixed_by_the_seed(make_data):
  dataset = fake("train", "test")
  first = splits.assign(dataset, make_data(validation=0.2), seed=1)
  again = splits.assign(dataset, make_data(validation=0.2), seed=1)
  other = splits.assign(dataset, make_data(validation=0.2), seed=2)
  # The only example of the last class stays in train.
  assert counts(first["validation"]) == [4, 2, 1, 0]
  assert counts(first["train"]) == [16, 8, 2, 1]
  together = np.concatenate([first["train"].indices, first["validation"].indices])
  assert sorted(together.tolist()) == list(range(34))
  np.testing.assert_array_equal(first["validation"].indices, again["validation"].indices)
  assert first["validation"].indices.tolist() != other["validation"].indices.tolist()


@pytest.mark.parametrize("fields", [{}, {"folds": 3, "fold": 0}, {"folds": 3, "fold": 2}])
def test_all_seeds_and_folds_have_one_part_for_calibration(fields, make_data):
  dataset = dataclasses.replace(fake("train"), open_split=lambda name: Labeled((20, 11, 5, 7)))
  roles = splits.assign(dataset, make_data(calibration=0.2, **fields), seed=1)
  names = {role: {part.name(i) for i in range(len(part))} for role, part in roles.items()}
  assert len(set.union(*names.values())) == sum(map(len, names.values())) == 43
  other = splits.assign(dataset, make_data(calibration=0.2, **fields), seed=2)["calibration"]
  assert {other.name(i) for i in range(len(other))} == names["calibration"]
  # Test is carved first, unless it is a fold.
  assert counts(other) == ([4, 2, 1, 1] if fields else [3, 2, 1, 1])


@pytest.mark.parametrize("names", [("train",), ("train", "validation", "test")])
def test_folds_divide_train_independently_of_the_seed(names, make_data):
  dataset = dataclasses.replace(fake(*names), open_split=lambda name: Labeled((20, 11, 5, 7)))
  tested = []
  for fold in range(5):
    data = make_data(folds=5, fold=fold, validation=0.2)
    first, other = (splits.assign(dataset, data, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(first["test"].indices, other["test"].indices)
    own_names = [{first[role].name(i) for i in range(len(first[role]))} for role in ROLES]
    assert len(set.union(*own_names)) == sum(map(len, own_names)) == 43
    assert min(counts(first["validation"])) >= 1 and min(counts(first["train"])) >= 1
    assert all(
      abs(n - m / 5) < 1 for n, m in zip(counts(first["test"]), (20, 11, 5, 7), strict=True)
    )
    assert 8 <= len(first["test"]) <= 9
    tested += first["test"].indices.tolist()
  assert sorted(tested) == list(range(43))


@pytest.mark.parametrize("seed", range(5))
def test_each_role_has_a_share_of_each_class_among_several(seed, make_data):
  examples, random = Labeled(), np.random.default_rng(seed)
  examples.labels = random.uniform(size=(200, 12)) < [*np.geomspace(0.5, 0.03, 11), 0]
  examples.labels[random.permutation(200)[:3], -1] = True  # fewer than folds
  dataset = dataclasses.replace(fake("train"), open_split=lambda name: examples)
  roles = splits.assign(dataset, make_data(), seed=seed)
  shares = np.array([roles[name].labels.sum(0) for name in ROLES])
  np.testing.assert_array_equal(shares.sum(0), examples.labels.sum(0))
  assert shares.min() >= 1 and shares[:, -1].tolist() == [1, 1, 1]
  assert splits.assign(dataset, make_data(folds=4, fold=1), seed)["train"].labels[:, -1].any()


def test_folds_of_several_classes_need_as_many_examples(make_data):
  examples = Labeled()
  examples.labels = np.eye(3, 4)
  dataset = dataclasses.replace(fake("train"), open_split=lambda name: examples)
  with pytest.raises(ConfigError, match=r"data\.folds=4: train of 'fake' has only 3 examples"):
    splits.assign(dataset, make_data(folds=4, fold=0), seed=0)


def test_train_keeps_a_class_that_is_the_rarest_of_no_example():
  sets = np.zeros((6, 4))
  sets[[0, 1, 2], 0] = 1  # these examples have one more class each, which is in two examples
  sets[range(6), [1, 2, 3, 1, 2, 3]] = 1
  for seed in range(20):
    chosen = strata.choose_balanced(strata.find_strata(sets), None, 0.2, seed, stream=0, spare=1)
    assert chosen.any() and sets[~chosen].any(axis=0).all()


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"folds": 2, "fold": 0}, r"the class 'd' of 'fake' has only 1 examples"),
    ({"folds": 5, "fold": 5}, r"data\.folds=5 has the folds 0 to 4"),
    ({"fold": 1}, r"data\.fold=1 needs data\.folds, which is not set"),
    (
      {"folds": 2, "fold": 0, "splits": {"test": "test"}},
      r"cannot be combined with data\.splits\.test",
    ),
    (
      {"groups": "take"},
      "no column of the source, and as a regular expression finds nothing in '0'",
    ),
    ({"groups": "(take"}, "no column of the source, and no regular expression: missing"),
    ({"groups": ""}, "no group is left for validation; train and test share 1 groups, such as ''"),
  ],
)
def test_unsuitable_folds_and_groups_are_refused(fields, message, make_data):
  with pytest.raises(ConfigError, match=message):
    splits.assign(fake("train", "test"), make_data(**fields), seed=0)


@pytest.mark.parametrize("fields", [{}, {"folds": 3, "fold": 1}, {"groups": r"\d$"}])
def test_excluded_examples_are_in_no_role_that_is_carved(fields, make_data, tmp_path, caplog):
  dataset = dataclasses.replace(fake("train"), open_split=lambda name: Labeled((20, 11, 5, 7)))
  (tmp_path / "out.csv").write_text("role,name\ntrain,7\ntest,99\ntrain,3\n")
  data = make_data(exclude=str(tmp_path / "out.csv"), **fields)
  roles = splits.assign(dataset, data, seed=0)
  names = [roles[role].name(i) for role in ROLES for i in range(len(roles[role]))]
  assert sorted(names, key=int) == [str(i) for i in range(43) if i not in (3, 7)]
  whole = splits.assign(dataset, make_data(**fields), seed=0)
  for role in ROLES:  # all others keep their roles
    before = [whole[role].name(i) for i in range(len(whole[role]))]
    after = [roles[role].name(i) for i in range(len(roles[role]))]
    assert after == [name for name in before if name not in ("3", "7")]
  assert "2 examples of train: 3, 7; 1 other names: 99" in caplog.text


def test_a_test_split_keeps_excluded_examples(make_data, tmp_path):
  (tmp_path / "out.csv").write_text("name\n7\n")
  roles = splits.assign(fake("train", "test"), make_data(exclude=str(tmp_path / "out.csv")), 0)
  assert len(roles["test"]) == 34 and len(roles["train"]) + len(roles["validation"]) == 33


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("name\ncat.png\n", r"has no name of train, such as '0'"),
    ("file\n7\n", r"cannot be read as a CSV file with a column 'name': 'name'"),
    (None, r"cannot be read .*No such file"),
    ("name\n" + "\n".join(map(str, range(34))), "leaves no example for test, train, valid"),
  ],
)
def test_an_unsuitable_file_of_excluded_examples_is_refused(text, message, make_data, tmp_path):
  if text:
    (tmp_path / "out.csv").write_text(text)
  with pytest.raises(ConfigError, match=message):
    splits.assign(fake("train"), make_data(exclude=str(tmp_path / "out.csv")), seed=0)


def test_fractions_are_balanced_and_nested(make_data):
  dataset, previous = fake("train", "test"), set()
  for share, expected in ((0.01, [1, 1, 1, 1]), (0.3, [5, 3, 1, 1]), (0.7, [13, 6, 1, 1])):
    train = splits.assign(dataset, make_data(fraction=share), seed=0)["train"]
    names = {train.name(i) for i in range(len(train))}
    assert counts(train) == expected and previous <= names
    previous = names
  whole = splits.assign(dataset, make_data(), seed=0)["train"]
  assert previous <= {whole.name(i) for i in range(len(whole))}


@pytest.mark.parametrize("groups", [r"\d$", r"^\d*(\d)$", "column"])
@pytest.mark.parametrize("fields", [{}, {"folds": 3, "fold": 1}, {"fraction": 0.5}])
def test_roles_share_no_group(make_data, groups, fields):
  dataset = dataclasses.replace(fake("train"), open_split=lambda name: Labeled((20, 11, 5, 7)))
  if groups == "column":
    dataset = dataclasses.replace(dataset, groups=lambda name: names.append(name) or name[-1])
  digits, names = [], []
  for seed in (1, 1, 3):
    roles = splits.assign(dataset, make_data(groups=groups, validation=0.3, **fields), seed)
    digits.append([{roles[role].name(i)[-1] for i in range(len(roles[role]))} for role in ROLES])
    assert len(set.union(*digits[-1])) == sum(map(len, digits[-1]))
  assert digits[0] == digits[1] != digits[2] and digits[0][2] == digits[2][2]
  assert (len(set.union(*digits[0])) < 10) == ("fraction" in fields)
  assert len(names) == (3 * 43 if groups == "column" else 0)  # each name is read once


def test_groups_stay_whole_and_classes_balanced():
  groups = np.repeat(np.arange(19), (40, *range(1, 10), *range(2, 11)))
  labels = groups % 2  # 90 and 49 examples
  for seed in range(5):
    few, many = (strata.choose_balanced(labels, groups, x, seed, 2, 1) for x in (0.1, 0.2))
    assert set(groups[many]).isdisjoint(groups[~many]) and (few <= many).all()
    assert (np.abs(np.bincount(labels[many]) - (18, 9.8)) <= 5).all()
  folds = strata.find_folds(labels, 4, groups)
  assert all(len({*folds[groups == group]}) == 1 for group in range(19))
  assert all(11 <= count <= 14 for count in np.bincount(folds[labels == 1]))


def test_splits_without_groups_have_recorded_bits():
  labels = Labeled((20, 11, 5, 7)).labels
  for groups in (None, np.arange(43)):
    chosen = np.flatnonzero(strata.choose_balanced(labels, groups, 0.1, 3, 2, 1))
    assert chosen.tolist() == [14, 17, 18, 31, 32]
  folds = "".join(map(str, strata.find_folds(labels, 4)))
  assert folds == "1313213032021122030301021000311023220312312"


class Unscanned(Labeled):
  """Examples whose labels must not be read."""

  def __init__(self):
    pass

  @property
  def labels(self):
    raise AssertionError("labels were scanned")

  def __len__(self):
    return 34


def every_third(examples):
  return np.arange(len(examples)) % 3 == 0


def test_an_own_function_chooses_the_validation_examples(make_data):
  roles = splits.assign(
    fake("train", "test"), make_data(validation_choice=f"{__name__}:every_third"), seed=0
  )
  assert roles["validation"].indices.tolist() == list(range(0, 34, 3))
  assert roles["train"].indices.tolist() == [i for i in range(34) if i % 3]


class Named:
  """Examples that have only names."""

  labels = None

  def __init__(self, names):
    self.names = names

  def __len__(self):
    return len(self.names)

  def name(self, i):
    return self.names[i]


def test_the_sparse_transformers_choice_agrees_with_scikit_learn():
  order = np.random.default_rng(0).permutation(50_000)
  chosen = splits.CHOICES["sparse_transformer_cifar10"](
    Named([f"train_{number:05d}" for number in order])
  )
  _, expected = train_test_split(np.arange(50_000), test_size=2000, random_state=11172018)
  assert set(order[chosen]) == set(expected)


@pytest.mark.parametrize("names", [["train_00000"], ["train_0"] * 50_000, ["a"] * 50_000])
def test_the_sparse_transformers_choice_needs_cifar10(names):
  with pytest.raises(ConfigError, match=r"data\.validation_choice=.*50,000"):
    splits.CHOICES["sparse_transformer_cifar10"](Named(names))


def test_labels_are_found_only_when_needed(make_data):
  dataset = fake("train", "test", "validation")
  dataset = dataclasses.replace(dataset, open_split=lambda split: Unscanned())
  assert len(splits.assign(dataset, make_data(), seed=0)["train"]) == 34
  # Carving a split needs the labels of train, but only once train is used.
  dataset = dataclasses.replace(dataset, splits=("train", "test"))
  assigned = splits.assign(dataset, make_data(), seed=0)
  assert len(assigned["test"]) == 34
  with pytest.raises(AssertionError, match=r"scanned"):
    len(assigned["train"])
