"""The source `csv:FILE`: a table of image files, which are in the table's folder, and labels."""

import csv
import functools
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitx.config.errors import ConfigError, listing, nearest
from vitx.config.fields import DataSettings
from vitx.data import class_names
from vitx.data.dataset import ROLES, ArraySpec, Dataset, DatasetInfo
from vitx.data.fingerprint import digest
from vitx.data.images.settings import check_file_settings, image_spec
from vitx.data.in_memory import raise_all
from vitx.data.sources.files import find_path
from vitx.data.sources.folder import ImageFiles, check_filled, digest_files, make_dataset
from vitx.data.sources.folder_layout import SUFFIXES, find_images
from vitx.files import reading

SPLIT = "split"  # the column that names the split of each file
LARGEST = float(np.finfo(np.float32).max)
SEPARATORS = re.compile(r"[;|]")  # separate the classes in one cell
OTHER_SEPARATORS = re.compile(","), re.compile(r"[,\s]")  # where they separate listed classes
WORDS = re.compile(r"[\s,/+&]")  # separates the words of a cell
# The cells, in lower case, of a column of 0 and 1, which pandas also writes in these other forms.
BINARY = {"0": 0.0, "0.0": 0.0, "false": 0.0, "": 0.0, "1": 1.0, "1.0": 1.0, "true": 1.0}
# The name of the array of labels in an example (label, labels or target), the labels of all rows,
# (n, ...), and the names of the classes, or None for numbers.
Target = tuple[str, np.ndarray, tuple[str, ...] | None]


@dataclass(frozen=True)
class TableRow:
  """The cells of a row by column, without spaces around them, and its last line, from 1."""

  line: int
  cells: Mapping[str, str]


CsvRows = Sequence[TableRow]


def open_csv(data: DataSettings) -> Dataset:
  """Opens `csv:FILE`, a table with a header row, whose first column names image files.

  The cells of a row are separated by commas, semicolons or tabs. Columns without a name, such as
  the index that pandas writes, are left out. The files must be in the folder of the table;
  `_find_files` describes how they may be named. A column `split` names the split of each file;
  without it, all files are in the split train. The other columns except `data.groups`, or those in
  `data.label_columns`, are the labels. Without any, the images have no labels.

  - `data.label_kind` "class" (or None): one column with the name of the class. `classes.txt` in the
    folder gives the order of the classes; without it, they are sorted by their names. Examples have
    `label` int32 ().
  - "classes": one column with the names of classes, separated by ";" or "|", or a column of 0 and 1
    for each class. If `classes.txt` lists the names, commas or spaces may separate them. An empty
    cell has no class. Examples have `labels` float32 (K,), 1 for each class of the image.
  - "number": one column of numbers. Examples have `target` float32 ().

  Args:
    data: The config's `data`, of which these fields are read: source, channels, value_range,
      label_columns, label_kind, groups.
  """
  check_file_settings(data)
  name = data.source
  path = find_path(name)
  columns, rows = _read_table(name, path)
  chosen, kind = _choose_columns(name, columns, data), data.label_kind or "class"
  required = [SPLIT, data.groups, *(chosen if kind != "classes" else ())]
  paths = _locate(path, columns[0], required, rows)
  key, values, names = KINDS[kind](name, path, chosen, rows) if chosen else ("label", None, None)
  splits = [row.cells.get(SPLIT, "train") for row in rows]
  files: dict[str, ImageFiles] = {}
  for split in dict.fromkeys(splits):
    places = [i for i, name_of_split in enumerate(splits) if name_of_split == split]
    targets = None if values is None else values[places]
    files[split] = ImageFiles(path.parent, tuple(paths[i] for i in places), data, targets, key)
  if chosen and kind == "class":
    check_filled(data, files, names or (), dict.fromkeys(files, names or ()))
  spec = {} if values is None else {key: ArraySpec(values.shape[1:], values.dtype.name)}
  cells = [row.cells.get(data.groups or "", "") for row in rows]
  groups = dict(zip(paths, cells, strict=True)) if data.groups in columns else {}
  info = DatasetInfo(
    name=name,
    spec=image_spec(data.channels, labeled=False) | spec,
    class_names=names,
    fingerprint=_fingerprint(files, key, [*(names or ()), *groups.values()]),
    numbered=names is not None and class_names.are_numbered(names),
  )
  return make_dataset(info, files, groups=groups.__getitem__ if groups else None)


def _read_table(name: str, path: Path) -> tuple[list[str], list[TableRow]]:
  """Returns the names of the columns that have one, and the rows; empty lines are left out."""
  field = f"data.source={name!r}"
  with reading(f"{field} cannot be read as a table in UTF-8"):
    text = Path(path).read_bytes().decode("utf-8-sig")
    head = next(filter(str.strip, text.splitlines()), "")
    mark = next((mark for mark in ",;\t" if mark in head), ",")
    # Without `skipinitialspace` the quotes of this row would be text: file, "a name, with a comma"
    file = io.StringIO(text, newline="")
    reader = csv.reader(file, strict=True, skipinitialspace=True, delimiter=mark)
    lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    (_, columns), *rest = lines
  names = [column for column in columns if column]
  if not names or len({*names}) < len(names) or Path(names[0]).suffix.lower() in SUFFIXES:
    raise ConfigError(f"{field}: the first line must name different columns, not {columns!r:.200}.")
  raise_all(
    [
      ConfigError(f"{path}, line {line} must have {len(columns)} cells, not {len(cells)}")
      for line, cells in rest
      if len(cells) != len(columns)
    ]
  )
  return names, [TableRow(line, dict(zip(columns, cells, strict=True))) for line, cells in rest]


def _choose_columns(name: str, columns: Sequence[str], settings: DataSettings) -> list[str]:
  """Returns the names of the columns that contain the labels."""
  others = [column for column in columns[1:] if column not in (SPLIT, settings.groups)]
  chosen = list(others if settings.label_columns is None else settings.label_columns)
  for column in chosen:
    if column not in others:
      raise ConfigError(
        f"data.label_columns: {column!r} is no column of {name!r} with labels."
        f"{nearest(column, others)} Valid: {listing(others) or 'none'}."
      )
  if settings.label_kind != "classes" and len(chosen) > 1:
    raise ConfigError(
      f"data.source={name!r} has the columns {listing(chosen)}; name the one with the labels in"
      " data.label_columns, which is () for images without labels, or set data.label_kind=classes"
      f" if each is a class. Only a column called {SPLIT!r} states the split of each file."
    )
  return chosen


def _locate(path: Path, column: str, required: Sequence[str | None], rows: CsvRows) -> list[str]:
  """Returns the path of each row's file in the folder of the table.

  Each row must name one file, which no other row names, and its required cells must not be empty.
  """
  problems: list[ConfigError] = []
  lines: dict[str, int] = {}
  matches = _find_files(path.parent, (row.cells[column] for row in rows))
  for row, files in zip(rows, matches, strict=True):
    file, cell = files[0] if files else "", row.cells[column]
    empty = [name for name in (column, *required) if name and row.cells.get(name) == ""]
    problem = ""
    if empty:
      problem = f"the cell of {empty[0]!r} is empty; fill it"
    elif not files:
      problem = f"{cell!r} is no image file in {path.parent}; the first column must name the files"
    elif len(files) > 1:
      problem = f"{cell!r} may be {' or '.join(files)}; add the suffix"
    elif file in lines:
      problem = f"{file!r} is in line {lines[file]} too"
    if problem:
      problems.append(ConfigError(f"{path}, line {row.line}: {problem}"))
    lines.setdefault(file, row.line)
  raise_all(problems)
  return list(lines)


def _find_files(folder: Path, cells: Iterable[str]) -> Iterator[list[str]]:
  """Yields, for each cell, the paths in a folder of the images that the cell may name.

  A cell is a path relative to the folder, or an absolute path. It may have backslashes in place of
  slashes, and it may lack the suffix of the file.
  """
  bases = (folder.absolute(), folder.resolve())

  @functools.cache
  def list_names(directory: Path) -> dict[str, list[str]]:
    paths = sorted(find_images(directory)) if directory.is_dir() else []
    names: dict[str, list[str]] = {}
    for path in paths:
      names.setdefault(path.stem, []).append(path.name)
    return names | {path.name: [path.name] for path in paths}

  for cell in cells:
    file = Path(cell if (folder / cell).exists() else cell.replace("\\", "/"))
    file = next((file.relative_to(base) for base in bases if file.is_relative_to(base)), file)
    names = {} if file.is_absolute() or ".." in file.parts else list_names(folder / file.parent)
    yield [(file.parent / name).as_posix() for name in names.get(file.name, ())]


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
    table = [[BINARY.get(row.cells[column].lower(), np.nan) for column in chosen] for row in rows]
    wrong = [(rows[i], chosen[k]) for i, k in np.argwhere(np.isnan(table))]
    where = [f"{path}, line {row.line}: {column}={row.cells[column]!r}" for row, column in wrong]
    raise_all([ConfigError(f"{text} must be 0 or 1") for text in where])
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
  names = class_names.order_names(f"data.source={name!r}", stated, present)
  if len(present) < 2:
    raise ConfigError(
      f"data.source={name!r}: the labels name fewer than two classes: {listing(present) or 'none'}."
    )
  return names


def _fingerprint(files: Mapping[str, ImageFiles], key: str, names: Sequence[str]) -> str:
  """Returns a hash of all names, sizes and labels, and of the content of all or some files."""
  # Runs that began before roles were stratified divided these images in another way.
  is_divided = key == "labels" and len(files) < len(ROLES)
  parts: list[str | bytes] = ["stratified labels" if is_divided else key, *names]
  for split in sorted(files):
    images = files[split]
    sizes, content = digest_files(images)
    lines = (f"{file}\t{size}" for file, size in zip(images.paths, sizes, strict=True))
    labels = b"" if images.targets is None else images.targets.tobytes()
    parts += [split, "\n".join(lines), labels, content]
  return digest(parts)
