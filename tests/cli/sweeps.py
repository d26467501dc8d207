"""Small sweeps of the digits."""

from tests import runs
from vitx.sweeps.points import expand, make_points, parse_grid

TINY = runs.replace(
  runs.TINY, "duration=8 steps", "checkpoint.every=4 steps", "evaluation.every=4 steps"
).removeprefix("softmax,")


def points(over="row=[softmax,fnet]", seeds=2, config=f"digits.py:{TINY}"):
  return make_points(expand(config, parse_grid(over) if over else {}), seeds)
