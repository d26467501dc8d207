"""Small sweeps of the digits."""

from tests import runs
from vitx.sweeps.points import check_points, expand, make_points, parse_grid

SHORT = ("duration=8 steps", "checkpoint.every=4 steps", "evaluation.every=4 steps")
TINY = runs.replace(runs.TINY, *SHORT, "ema_decay=0.0", *runs.PLAIN).removeprefix("softmax,")


def points(over="row=[softmax,fnet]", seeds=2, config=f"digits.py:{TINY}"):
  listed = make_points(expand(config, parse_grid(over) if over else {}), seeds)
  check_points(listed)
  return listed
