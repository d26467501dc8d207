"""The source `csv:FILE`: a table of image files, which are in the table's folder, and labels."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.fields import DataSettings, read_fields
from vitx.data import class_names
from vitx.data.dataset import ROLES, ArraySpec, Dataset, DatasetInfo
from vitx.data.fingerprint import digest
from vitx.data.images.settings import check_file_settings, image_spec
from vitx.data.in_memory import raise_all
from vitx.data.sources.files import find_path
from vitx.data.sources.folder import SUFFIXES, ImageFiles, check_filled, digest_files, make_dataset
from vitx.files import reading

SPLIT = "split"  # the column that names the split of each file
LARGEST = float(np.finfo(np.float32).max)
SEPARATORS = re.compile(r"[;|]")  # separate the classes in one cell
OTHER_SEPARATORS = re.compile(","), re.compile(r"[,\s]")  # where they separate listed classes
WORDS = re.compile(r"[\s,/+&]")  # separates the words of a cell
# The name of the array of labels in an example (label, labels or target), the labels of all rows,
# (n, ...), and the names of the classes, or None for numbers.
Target = tuple[str, np.ndarray, tuple[str, ...] | None]


@dataclass(frozen=True)
class TableRow:
  """The cells of a row by column, without spaces around them, and its last line, from 1."""

  line: int
  cells: Mapping[str, str]


CsvRows = Sequence[TableRow]


def open_csv(data: Mapping[str, Any]) -> Dataset:
  """Opens `csv:FILE`, a table with a header row, whose first column names image files.

  File names are relative to the folder of the table, and must not lead outside it. A column `split`
  names the split of each file; without it, all files are in the split train. The other columns, or
  those in `data.label_columns`, are the labels:

  - `data.label_kind` "class" (or None): one column with the name of the class. `classes.txt` in the
    folder gives the order of the classes; without it, they are sorted by their names. Examples have
    `label` int32 ().
  - "classes": one column with the names of classes, separated by ";" or "|", or a column of 0 and 1
    for each class. If `classes.txt` lists the names, commas or spaces may separate them. Examples
    have `labels` float32 (K,), 1 for each class of the image.
  - "number": one column of numbers. Examples have `target` float32 ().

  Args:
    data: The config's `data`, of which these fields are read: source, channels, value_range,
      label_columns, label_kind.
  """
  settings = read_fields(DataSettings, data)
  check_file_settings(settings)
  name = settings.source
  path = find_path(name)
  columns, rows = _read_table(name, path)
  chosen, kind = _choose_columns(name, columns, settings), settings.label_kind or "class"
  _check_rows(path, columns, chosen, rows)
  key, values, names = KINDS[kind](name, path, chosen, rows)
  splits = [row.cells.get(SPLIT, "train") for row in rows]
  files: dict[str, ImageFiles] = {}
  for split in dict.fromkeys(splits):
    places = [i for i, name_of_split in enumerate(splits) if name_of_split == split]
    paths = tuple(Path(rows[i].cells[columns[0]]).as_posix() for i in places)
    files[split] = ImageFiles(path.parent, paths, settings, values[places], key)
    if kind == "class":
      check_filled(name, split, files[split], names or (), names or ())
  info = DatasetInfo(
    name=name,
    spec=image_spec(settings.channels, labeled=False)
    | {key: ArraySpec(values.shape[1:], values.dtype.name)},
    class_names=names,
    fingerprint=_fingerprint(files, key, names or ()),
    numbered=names is not None and class_names.are_numbered(names),
  )
  return make_dataset(info, files)


def _read_table(name: str, path: Path) -> tuple[list[str], list[TableRow]]:
  """Returns the names of the columns, and the rows; empty lines are left out."""
  field = f"data.source={name!r}"
  with reading(f"{field} cannot be read as a table"):
    text = Path(path).read_bytes().decode("utf-8-sig")
    # Without `skipinitialspace` the quotes of this row would be text: file, "a name, with a comma"
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    (_, columns), *rest = lines
  if len({*columns} - {""}) < max(len(columns), 2):
    raise ConfigError(
      f"{field}: the first line must name two or more different columns, not {columns!r:.200}."
    )
  raise_all(
    [
      ConfigError(f"{path}, line {line} must have {len(columns)} cells, not {len(cells)}")
      for line, cells in rest
      if len(cells) != len(columns)
    ]
  )
  return columns, [TableRow(line, dict(zip(columns, cells, strict=True))) for line, cells in rest]


def _choose_columns(name: str, columns: Sequence[str], settings: DataSettings) -> list[str]:
  """Returns the names of the columns that contain the labels."""
  others = [column for column in columns[1:] if column != SPLIT]
  chosen = list(settings.label_columns or others)
  for column in chosen:
    if column not in others:
      raise ConfigError(
        f"data.label_columns: {column!r} is no column of {name!r} with labels."
        f"{nearest(column, others)} Valid: {listing(others) or 'none'}."
      )
  if not chosen or (settings.label_kind != "classes" and len(chosen) > 1):
    raise ConfigError(
      f"data.source={name!r} has the columns {listing(chosen) or 'none'}; name the one with the"
      " labels in data.label_columns, or set data.label_kind=classes if each is a class."
    )
  return chosen


def _check_rows(path: Path, columns: list[str], chosen: list[str], rows: CsvRows) -> None:
  """Checks that each row's file is in the folder, and once, and that its cells are not empty."""
  problems: list[ConfigError] = []
  seen: dict[str, int] = {}
  for row in rows:
    file = Path(row.cells[columns[0]])  # "./a.png" is the file "a.png"
    empty = [name for name in (columns[0], *chosen, SPLIT) if row.cells.get(name, "-") == ""]
    is_inside = not file.is_absolute() and ".." not in file.parts
    problem = ""
    if empty:
      problem = f"the cell of {empty[0]!r} is empty; fill it"
    elif not is_inside or file.suffix.lower() not in SUFFIXES or not (path.parent / file).is_file():
      problem = f"{file.as_posix()!r} is no image file in {path.parent}"
    elif file.as_posix() in seen:
      problem = f"{file.as_posix()!r} is in line {seen[file.as_posix()]} too"
    if problem:
      problems.append(ConfigError(f"{path}, line {row.line}: {problem}"))
    seen.setdefault(file.as_posix(), row.line)
  raise_all(problems)


def _read_class(name: str, path: Path, chosen: Sequence[str], rows: CsvRows) -> Target:
  texts = [class_names.normalize(row.cells[chosen[0]]) for row in rows]
  several = [i for i, text in enumerate(texts) if SEPARATORS.search(text)]
  if several:
    raise ConfigError(
      f"{path}, line {rows[several[0]].line}: {texts[several[0]]!r} names several classes, as do"
      f" {len(several)} of {len(rows)} rows; set task=multilabel and data.label_kind=classes."
    )
  names = _order_names(name, path, set(texts))
  place = {class_name: i for i, class_name in enumerate(names)}
  return "label", np.array([place[text] for text in texts], np.int32), names


def _read_classes(name: str, path: Path, chosen: Sequence[str], rows: CsvRows) -> Target:
  if len(chosen) > 1:
    wrong = [
      ConfigError(f"{path}, line {row.line}: {column}={row.cells[column]!r} must be 0 or 1")
      for row in rows
      for column in chosen
      if row.cells[column] not in ("0", "1")
    ]
    raise_all(wrong)
    table = [[float(row.cells[column]) for column in chosen] for row in rows]
    return "labels", np.array(table, np.float32), tuple(chosen)
  classes = _split_cells(path, [class_names.normalize(row.cells[chosen[0]]) for row in rows])
  names = _order_names(name, path, set().union(*classes))
  table = [[float(class_name in row) for class_name in names] for row in classes]
  return "labels", np.array(table, np.float32), names


def _split_cells(path: Path, cells: Sequence[str]) -> list[set[str]]:
  """Returns the classes in each cell; only `classes.txt` makes commas and spaces separators."""
  splits = [
    [{part.strip() for part in separators.split(cell)} - {""} for cell in cells]
    for separators in (SEPARATORS, *OTHER_SEPARATORS)
  ]
  if any(map(SEPARATORS.search, cells)):
    return splits[0]
  if stated := class_names.read_names(path.parent / class_names.FILE):
    return next((split for split in splits if set().union(*split) <= {*stated}), splits[0])
  words = {cell: {*WORDS.split(cell)} - {""} for cell in sorted({*cells})}
  counts = Counter(word for some in words.values() for word in some)
  for cell, some in words.items():
    if "," in cell or (len(some) > 1 and max(map(counts.__getitem__, some)) > 1):
      raise ConfigError(
        f"{path}: no cell has ';' or '|' between classes, but {cell!r} may name several; separate"
        f" classes by ';', or list the name of each class in {class_names.FILE}."
      )
  return splits[0]


def _read_number(name: str, path: Path, chosen: Sequence[str], rows: CsvRows) -> Target:
  problems, values = [], []
  for row in rows:
    try:
      values.append(float(row.cells[chosen[0]]))
    except ValueError:
      values.append(math.nan)
    if not abs(values[-1]) <= LARGEST:
      where = f"{path}, line {row.line}: {chosen[0]}={row.cells[chosen[0]]!r}"
      problems.append(ConfigError(f"{where} is no finite number"))
  raise_all(problems)
  return "target", np.array(values, np.float32), None


KINDS: dict[str, Callable[[str, Path, Sequence[str], CsvRows], Target]] = {
  "class": _read_class,
  "classes": _read_classes,
  "number": _read_number,
}


def _order_names(name: str, path: Path, present: set[str]) -> tuple[str, ...]:
  """Returns the class names in the order of `classes.txt` or, without it, of `sort_names`."""
  stated = class_names.read_names(path.parent / class_names.FILE)
  if stated is not None and present - set(stated):
    raise ConfigError(
      f"data.source={name!r}: {class_names.FILE} does not list the classes"
      f" {listing(sorted(present - set(stated))[:5])}."
    )
  if len(present) < 2:
    raise ConfigError(
      f"data.source={name!r}: the labels name fewer than two classes: {listing(present) or 'none'}."
    )
  return stated or class_names.sort_names(sorted(present))


def _fingerprint(files: Mapping[str, ImageFiles], key: str, names: Sequence[str]) -> str:
  """Returns a hash of all names, sizes and labels, and of the content of all or some files."""
  # Runs that began before roles were stratified divided these images in another way.
  is_divided = key == "labels" and len(files) < len(ROLES)
  parts: list[str | bytes] = ["stratified labels" if is_divided else key, *names]
  for split in sorted(files):
    images = files[split]
    sizes, content = digest_files(images)
    lines = (f"{file}\t{size}" for file, size in zip(images.paths, sizes, strict=True))
    parts += [split, "\n".join(lines), np.asarray(images.targets).tobytes(), content]
  return digest(parts)
