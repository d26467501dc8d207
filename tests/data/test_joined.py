import numpy as np

from vitx.data.dataset import Joined
from vitx.data.sources import open_dataset, open_source


def test_every_example_of_each_part_once(folder, make_data):
  data = make_data(source=f"folder:{folder}")
  source = open_source(data, seed=0)
  parts = [source.role(role) for role in ("test", "train", "validation")]
  joined = Joined(parts)
  assert len(joined) == 35
  expected = [(part, i) for part in parts for i in range(len(part))]
  for i, (part, j) in enumerate(expected):
    assert joined.name(i) == part.name(j)
    assert joined[i]["label"] == joined.labels[i] == part.labels[j]
    np.testing.assert_array_equal(joined[i]["image"], part[j]["image"])
  whole = open_dataset(data).open_split("train")
  assert sorted(map(joined.name, range(35))) == sorted(map(whole.name, range(35)))
