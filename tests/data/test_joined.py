import numpy as np

from tests.data.examples import names, roles
from vitx.data.dataset import Joined
from vitx.data.sources import open_dataset, open_source


def test_joined_parts_have_every_example_once(folder, make_data):
  data = make_data(source=f"folder:{folder}")
  source = open_source(data, seed=0)
  parts = roles(source)
  joined = Joined(parts)
  assert len(joined) == 35
  expected = [(part, i) for part in parts for i in range(len(part))]
  for i, (part, j) in enumerate(expected):
    assert joined.name(i) == part.name(j)
    assert joined[i]["label"] == joined.labels[i] == part.labels[j]
    np.testing.assert_array_equal(joined[i]["image"], part[j]["image"])
  assert sorted(names(joined)) == sorted(names(open_dataset(data).open_split("train")))
