"""How many examples a second arrive, beside one thread of Pillow on the same images."""

import io
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from PIL import Image

STREAM, PILLOW = "streamed batches", "one thread of Pillow"


def make_pillow(
  contents: Sequence[bytes], mode: str, size: tuple[int, int], formats: tuple[str, ...]
) -> Callable[[], None]:
  """Returns what decodes and resizes images in one thread, by Pillow and nothing else.

  Args:
    contents: of the files, in memory.
    mode: of the decoded images, L or RGB.
    size: (height, width) of the resized images, in pixels; bilinear.
    formats: of Pillow, one of which each file has.
  """

  def run() -> None:
    for content in contents:
      with Image.open(io.BytesIO(content), formats=formats) as file:
        file.load()
        image = file if file.mode == mode else file.convert(mode)
      image.resize((size[1], size[0]), Image.Resampling.BILINEAR)

  return run


def measure_rates(
  readers: Mapping[str, Callable[[], None]],
  examples: int,
  *,
  runs: int,
  say: Callable[[str], None],
  clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
  """Returns the examples that each reader reads a second, one figure for each run.

  Args:
    readers: each reads the same examples once; untimed first, then in turns.
    examples: how many.
    runs: of each.
    say: is told of progress.
    clock: gives seconds.
  """
  for read in readers.values():
    read()
  found: dict[str, list[float]] = {name: [] for name in readers}
  for run in range(runs):
    say(f"run {run + 1} of {runs}")
    for name, read in readers.items():
      start = clock()
      read()
      found[name].append(examples / (clock() - start))
  return found


def format_rates(found: Mapping[str, list[float]]) -> str:
  """Returns lines for reading: the examples a second of every run, and the ratio to Pillow."""
  lines = []
  for name, rates in found.items():
    values = "  ".join(f"{rate:,.0f}" for rate in rates)
    lines.append(f"{name:<24}{values}  median {statistics.median(rates):,.0f}")
  if PILLOW in found:
    ratios = [a / b for a, b in zip(found[STREAM], found[PILLOW], strict=True)]
    values = "  ".join(f"{ratio:.2f}" for ratio in ratios)
    lines.append(f"{'ratio':<24}{values}  median {statistics.median(ratios):.2f}")
  return "\n".join(lines)
