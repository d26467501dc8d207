"""Small sweeps of the digits."""

from tests import runs
from vitx.sweeps.points import check_points, expand, make_points, parse_grid

# Without randomness in a step, which takes most of the time to compile.
PLAIN = ("model.dropout=0.0", "model.stochastic_depth=0.0", "ema_decay=0.0", *runs.STILL_IMAGES)
TINY = runs.replace(
  runs.TINY, "duration=8 steps", "checkpoint.every=4 steps", "evaluation.every=4 steps", *PLAIN
).removeprefix("softmax,")


def points(over="row=[softmax,fnet]", seeds=2, config=f"digits.py:{TINY}"):
  listed = make_points(expand(config, parse_grid(over) if over else {}), seeds)
  check_points(listed)
  return listed
