"""The figures that a task declares, and their texts: on the console and in a table.

A figure is a metric, such as an accuracy. Arguments called `values` are dicts of metrics by name:
metrics of a split, from `Task.summarize` or `vitx.evaluate`, or of a training batch, from
`Task.loss`. A figure without a value is left out of every text.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vitx.config.errors import ConfigError, escape

Figures = dict[str, Any]  # The metrics of a split, by name.
CONFUSIONS = 5  # The number of confusions that a table lists, the most frequent first.
MOST, WORST = 20, 10  # A table lists all of up to 20 classes, but only the 10 worst of more.


@dataclasses.dataclass(frozen=True)
class Figure:
  """A metric that a task declares.

  Attributes:
    name: The name of the metric among the values.
    direction: "max" if high values are good, or "min" if low ones are; None if no schedule and no
      choice of a checkpoint may follow the metric.
    format: The format of a value, such as "{:.2%}".
    label: The metric's text in a table; "" is the name.
    short: The metric's text on the console; "" is the label.
    place: "console" for a metric on the console and in the table, "table" for one in the table
      alone, "class" for a list with a value for each class, which ends the table, and "reference"
      for a metric of `Task.references`, of which the console shows the best.
  """

  name: str
  direction: Literal["max", "min"] | None
  format: str = "{:.4f}"
  label: str = ""
  short: str = ""
  place: Literal["console", "table", "class", "reference"] = "console"

  def show(self, value: float | None) -> str:
    """Returns a value as text; None is "undefined"."""
    return "undefined" if value is None else self.format.format(value)

  def title(self) -> str:
    """Returns the metric's text in a table."""
    return self.label or self.name.replace("_", " ")


def select(figures: Sequence[Figure], values: Mapping[str, Any], *places: str) -> list[Figure]:
  """Returns the figures that have a value and are shown at one of `places`."""
  return [figure for figure in figures if figure.place in places and figure.name in values]


def table_rows(figures: Sequence[Figure], values: Mapping[str, Any]) -> list[tuple[str, str, str]]:
  """Returns the title, value and 95 % interval of each figure of a split; "" is no interval."""
  intervals, shown = values.get("intervals", {}), []
  for figure in select(figures, values, "console", "table", "reference"):
    interval = " to ".join(map(figure.show, intervals.get(figure.name) or ()))
    shown.append((figure.title(), figure.show(values[figure.name]), interval))
  return shown


def followed(figures: Sequence[Figure], mode: str) -> Figure:
  """Returns the figure that a plateau schedule of the mode "min" or "max" follows.

  This is the first figure whose good values are low for "min", or high for "max".
  """
  for figure in figures:
    if figure.direction == mode:
      return figure
  first = figures[0]
  raise ConfigError(
    f"schedule.mode={mode!r}: the {first.name} of this task is good if"
    f" {'low' if first.direction == 'min' else 'high'}; use schedule.mode={first.direction!r}."
  )


def describe(figures: Sequence[Figure], values: Mapping[str, Any]) -> str:
  """Returns a line of text for the console about an evaluation or a training batch."""
  words = [
    f"{figure.short or figure.title()} {figure.show(values[figure.name])}"
    for figure in select(figures, values, "console")
  ]
  if references := select(figures, values, "reference"):
    choose = max if references[0].direction == "max" else min
    best = choose(references, key=lambda figure: values[figure.name])
    words.append(f"({best.title()}: {best.show(values[best.name])})")
  return "  ".join(words)


def table(figures: Sequence[Figure], values: Mapping[str, Any], class_names: Sequence[str]) -> str:
  """Returns the table that `vitx evaluate` prints about a split, as lines of text.

  The table has the figures with their intervals, the calibration and the prediction sets if they
  were measured, the most frequent confusions, and the figures of each class.
  """
  shown = table_rows(figures, values)
  lines = [f"  {title:<20}{value:>9}   {interval}".rstrip() for title, value, interval in shown]
  if "intervals" in values:
    lines.append(f"  95 % intervals over examples, {values['resamples']:,} bootstrap resamples")
  lines += _calibration_lines(values.get("calibration"))
  lines += [f"  {describe_sets(values['sets'])}"] if "sets" in values else []
  for count, true, predicted in list_confusions(values.get("confusion", ()))[:CONFUSIONS]:
    names = (escape(class_names[number], line=True) for number in (true, predicted))
    lines.append(f"  {count:>4} x {' as '.join(names)}")
  return "\n".join(lines + _class_lines(select(figures, values, "class"), values, class_names))


def _class_lines(
  columns: Sequence[Figure], values: Mapping[str, Any], class_names: Sequence[str]
) -> list[str]:
  """Returns lines with the figures of each class; of many classes, only those of the worst."""
  if not columns:
    return []
  first, lines = values[columns[0].name], []
  numbers: Sequence[int] = range(len(first))
  if len(first) > MOST:
    occurring = [number for number in numbers if first[number] is not None]
    numbers = sorted(occurring, key=lambda number: first[number])[:WORST]
    lines = [f"  the {len(numbers)} worst of {len(first):,} classes; --json writes all"]
  lines.append("  by class".ljust(22) + "".join(f"{figure.title():>11}" for figure in columns))
  for number in numbers:
    name = escape(class_names[number], line=True)
    cells = (figure.show(values[figure.name][number]) for figure in columns)
    lines.append(f"    {name:<18}{''.join(f'{cell:>11}' for cell in cells)}")
  return lines


def list_confusions(confusion: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
  """Returns (count, true class, predicted class) of each kind of mistake, most frequent first."""
  counts = np.array(confusion)
  if not counts.size:
    return []
  np.fill_diagonal(counts, 0)
  order = np.argsort(-counts, axis=None, kind="stable")[: np.count_nonzero(counts)]
  rows, columns = np.unravel_index(order, counts.shape)
  return [(int(counts[i, j]), int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


def describe_fit(calibration: Mapping[str, Any]) -> str:
  """Describes the temperature in `calibration` of `vitx.evaluate`, or says why it has none."""
  on = f"{calibration['fitted_examples']:,} examples of validation"
  if calibration["temperature"] is None:
    return f"none: {on} with {calibration['fitted_mistakes']:,} mistakes do not determine it"
  return f"{calibration['temperature']:.4f}, fitted on {on}"


def describe_sets(sets: Mapping[str, Any]) -> str:
  """Describes `sets` of `vitx.evaluate`: what the prediction sets promise, and how surely."""
  low, high = sets["range"]
  return (
    f"sets for a coverage of {100 * sets['coverage']:g}%, calibrated on {sets['examples']:,}"
    f" examples; for 95 % of such samples, the true coverage is between {low:.1%} and {high:.1%}"
  )


def _calibration_lines(calibration: Mapping[str, Any] | None) -> list[str]:
  if not calibration:
    return []
  lines = [f"  temperature         {describe_fit(calibration)}"]
  for key, name in (("nll", "NLL"), ("ece", "calibration error")):
    after = f"   with it {calibration['after'][key]:.4f}" if "after" in calibration else ""
    lines.append(f"    {name:<18}{calibration['before'][key]:>9.4f}{after}")
  return lines
