"""Draws the figures of `vitx visualize`: of a model, a config, runs, a sweep or patterns."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from vitx.analysis import figures
from vitx.analysis.figures.attention import compute_maps
from vitx.analysis.figures.curves import RunCurves
from vitx.analysis.figures.gallery import NamedPatterns
from vitx.analysis.figures.mistakes import Picture, PredictedSplit
from vitx.analysis.figures.papers.memory import SweepResults, check_cost, read_results
from vitx.analysis.figures.style import make_canvas
from vitx.analysis.figures.subject import Subject
from vitx.analysis.markdown import shorten_paths
from vitx.analysis.matrices import expose_matrices
from vitx.checkpoints import tree
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.outputs import check_folder
from vitx.config import registry
from vitx.config.checks import PositiveInt, check_choice, check_fields
from vitx.config.errors import ConfigError, listing
from vitx.config.loader import join_text, load_config, split_text
from vitx.config.registry import fields_of
from vitx.data.dataset import Example
from vitx.data.images.settings import sides
from vitx.data.sources import open_source
from vitx.inference.evaluate import Evaluation, evaluate_split
from vitx.inference.inputs import list_inputs, make_reader
from vitx.interop.repository import load
from vitx.models import find_mixer
from vitx.sweeps.curves import find_published_curves, find_runs, read_curves
from vitx.sweeps.points import find_published, find_rows
from vitx.tasks import build_task
from vitx.tasks.base import Task
from vitx.tasks.classification import Classification
from vitx.tasks.density import Density
from vitx.training import cache
from vitx.training.experiment import evaluation_shapes, resolve
from vitx.training.trial import complete_config, count_training_flops, measure_training_bytes

# The arguments of each kind of figure that must be given, and those that may be given.
ARGUMENTS = {
  "model": ((), ("workdir", "config", "inputs")),
  "models": ((), ("workdir", "config", "inputs")),
  "runs": (("workdir",), ("config",)),
  "results": (("results", "config"), ()),
  "patterns": ((), ("patterns",)),
  "split": (("workdir",), ("split",)),
}
BRIGHT = 0.9  # A photo is not dimmed where attention is above this quantile.


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of a figure; each figure reads the options that it needs.

  Attributes:
    local: The number of preceding tokens that count as near, in a figure of attention to the past;
      `None` means the length of a row of the grid.
    examples: The number of examples to look at.
    queries: The positions of the queries whose attention is drawn; () means a default choice.
    inputs: The inputs to look at instead of the first examples of *validation*, see `vitx.predict`.
  """

  local: PositiveInt | None = None
  examples: PositiveInt = 4
  queries: tuple[int, ...] = ()
  inputs: tuple[Any, ...] = ()

  def __post_init__(self):
    check_fields(type(self), vars(self), "")


def visualize(
  figure: str,
  out: str | Path,
  *,
  workdir: str | Sequence[str] | None = None,
  config: str | None = None,
  results: str | None = None,
  checkpoint: str = "best",
  split: str | None = None,
  options: Options | None = None,
  patterns: Sequence[str] = (),
  grid: Sequence[int] = (),
  trust_code: bool = False,
) -> list[Path]:
  """Draws a figure, writes it to files and returns their paths.

  Args:
    figure: The name of the figure, a key of `vitx.analysis.figures.FIGURES`.
    out: The folder of the files.
    workdir: The workdir of a training run, or several for a figure that shows several.
    config: `FILE:ROW,field=value` or a config.json, instead of a workdir. For the figure "curves",
      a config file with the training curves that its paper printed, in addition to the workdirs.
    results: The CSV file of a sweep over the config's rows, for the figure "memory".
    checkpoint: The checkpoint of the workdir: "best", "latest" or a step.
    split: The split of a figure of a classifier's answers, as `vitx.evaluate` takes it; `None`
      means "validation".
    options: The options of a model's figure.
    patterns: The patterns of the figure "gallery": names of `vitx.ops.patterns.PATTERNS`, or
      `module:NAME`; () draws eight of the named ones.
    grid: The numbers of rows and columns of the token grid of the figure "gallery".
    trust_code: Whether to import the objects that the config names as `module:Name`.

  Raises:
    ConfigError: The figure is unknown (the message names the nearest), its arguments are not those
      of `ARGUMENTS`, or it cannot show the model.
    MissingExtraError: Matplotlib is not installed.
  """
  kind, _ = figures.FIGURES[check_choice(figure, "figure", tuple(figures.FIGURES))]
  options, workdirs = options or Options(), [workdir] if isinstance(workdir, str) else workdir or ()
  values = {"workdir": workdirs, "config": config, "inputs": options.inputs, "results": results}
  values |= {"split": split, "patterns": patterns}
  names, (required, optional) = {name for name in values if values[name]}, ARGUMENTS[kind]
  is_one = len(workdirs) < 2 or kind in ("models", "runs")
  if not (is_one and set(required) <= names <= {*required, *optional}):
    takes = listing({*required, *optional}) + " of one run" * (not is_one)
    raise ConfigError(f"figure={figure!r} takes {takes}; given: {listing(names) or 'none'}.")
  check_folder(out, "out")
  make_canvas(1, 1)  # A missing matplotlib is reported before the long computation.
  # Code that the caller names is his own; that of a workdir may be a stranger's.
  with registry.trusting(trust_code or (False if workdirs else None)):
    inputs: Any
    if kind == "runs":
      inputs = _read_runs(workdirs, config)
    elif kind == "results":
      inputs = _measure_sweep(str(results), str(config))
    elif kind == "patterns":
      inputs = NamedPatterns(patterns, grid)
    elif kind == "split":
      evaluated = evaluate_split(load(workdirs[0], checkpoint), split=split or "validation")
      inputs = dataclasses.replace(show_predictions(evaluated), examples=options.examples)
    else:
      chosen: dict[str, Any] = {"config": config, "checkpoint": checkpoint, "options": options}
      inputs = [open_subject(workdir=run, **chosen) for run in workdirs or (None,)]
      labels = [subject.label for subject in inputs]
      if len(set(labels)) < len(labels):
        raise ConfigError(f"workdir: two runs have one name ({', '.join(labels)}); rename one.")
      inputs = inputs if kind == "models" else inputs[0]
    return figures.find_figure(figure)(inputs, Path(out))


def open_subject(
  *,
  workdir: str | Path | None = None,
  config: str | None = None,
  checkpoint: str = "best",
  options: Options | None = None,
  trust_code: bool = False,
) -> Subject:
  """Opens the network that a figure shows, for the functions of `vitx.analysis.figures`.

  The arguments are those of `visualize`. A network of a config has its initial weights.

  Raises:
    ConfigError: Both or neither of workdir and config are given, or one cannot be opened.
  """
  if (workdir is None) == (config is None):
    raise ConfigError("workdir and config: give one of them.")
  options = options or Options()
  cache.enable()
  with registry.trusting(trust_code or (None if workdir is None else False)):
    if workdir is None:
      return _open_config(str(config), options)
    loaded = load(workdir, checkpoint)
    label, weights = Path(loaded.workdir).resolve().name, f"checkpoint of step {loaded.step}"
    return _subject(label, weights, loaded.config, loaded.task, options, lambda: loaded.variables)


def show_predictions(evaluated: Evaluation) -> PredictedSplit:
  """Prepares the predictions of an evaluated classifier for a figure.

  Returns:
    The labels, predictions and confidences, the title of the figure, and a function that turns
    chosen examples into pictures, with the attention over them where the model allows it.

  Raises:
    ConfigError: The model is no classifier.
  """
  loaded, predictions, result = evaluated.loaded, evaluated.predictions, evaluated.result
  if predictions is None:
    raise ConfigError(f"workdir={loaded.workdir!r} is no classifier's run; choose one of those.")
  names = loaded.class_names
  note = f"{_describe(loaded.config)}, checkpoint of step {loaded.step}, {result['split']}:"
  note += f" {result['examples']:,} examples, top-1 {result['top1']:.1%}"

  def show(positions: Sequence[int]) -> list[Picture]:
    found = [evaluated.examples[int(predictions.numbers[at])] for at in positions]
    maps = _attend(loaded, found)
    return [
      Picture(
        name=evaluated.examples.name(int(predictions.numbers[at])),
        label=names[predictions.labels[at]],
        prediction=names[predictions.classes[at]],
        confidence=float(predictions.confidence[at]),
        image=np.asarray(each["image"]),
        attention=None if maps is None else _lay_over(maps[i], each["image"].shape[:2], loaded),
      )
      for i, (at, each) in enumerate(zip(positions, found, strict=True))
    ]

  return PredictedSplit(Path(loaded.workdir).resolve().name, note, names, predictions, show)


def _attend(loaded: Loaded, examples: Sequence[Example]) -> np.ndarray | None:
  """Returns the last layer's attention over the patches in 0..1, or `None` if there is none."""
  task = loaded.task
  if not examples:
    return None
  options = Options(examples=len(examples))
  try:
    subject = _subject("", "", loaded.config, task, options, lambda: loaded.variables)
    prepare = task.transform(train=False)
    some = _stack(task, [prepare(each, None) for each in examples])
    subject = dataclasses.replace(subject, inputs=lambda count: task.model_inputs(some))
    maps = compute_maps(subject)
  except ConfigError:  # A mixer without a matrix over the image has no attention to show.
    return None
  planes = maps.read_row(maps.layers[-1].mean(axis=1), -1)
  planes = planes - planes.min(axis=(1, 2), keepdims=True)
  # Scaling by the highest value would leave the rest dark where attention has one peak.
  bright = np.quantile(planes, BRIGHT, axis=(1, 2), keepdims=True)
  return np.minimum(planes / np.maximum(bright, 1e-12), 1)


def _lay_over(plane: np.ndarray, size: tuple[int, int], loaded: Loaded) -> np.ndarray:
  """Resizes attention (rows, columns) to a photo's (height, width); unseen pixels get 0."""
  data, ratio = loaded.config.data, loaded.config.evaluation.crop_ratio
  (height, width), (rows, columns) = size, sides(data.decode_size)
  across, down = float(width), float(height)
  if data.get("resize_mode") != "squash":
    across, down = min(width, height * columns / rows), min(height, width * rows / columns)
  across, down = max(round(across * ratio), 1), max(round(down * ratio), 1)
  seen = Image.fromarray(plane.astype(np.float32)).resize((across, down), Image.Resampling.BICUBIC)
  over = np.zeros(size, np.float32)
  top, left = (height - down) // 2, (width - across) // 2
  over[top : top + down, left : left + across] = np.asarray(seen).clip(0, 1)
  return over


def _measure_sweep(results: str, config: str) -> SweepResults:
  """Compiles a training step of each row of a sweep for its memory; the steps are never run."""
  cache.enable()
  path, overrides = split_text(config)
  figure = build_task(complete_config(load_config(config))).primary
  values, flops = read_results(results, figure)
  memory = {}
  for row in find_rows(path, list(values)):
    completed = complete_config(load_config(join_text(f"{path}:{row}", [overrides])))
    if row in flops:
      check_cost(row, count_training_flops(completed), flops[row])
    memory[row] = measure_training_bytes(completed) / 1e9  # type: ignore[operator]
  kind, backend = jax.devices()[0].device_kind, jax.default_backend()
  source = Path(results)
  name = source.resolve().parent.name if source.name == "runs.csv" else source.stem
  title = f"{name}, rows of {config}: test figure of finished runs"
  title += ", mean ± standard deviation over seeds" * (max(map(len, values.values())) > 1)
  title += ", against the memory of a training step of the row's whole batch, compiled for"
  title += f" {kind}{f' ({backend})' if backend != kind else ''}, never run."
  return SweepResults(values, memory, figure, title, f"memory_{name}")


def _read_runs(workdirs: Sequence[str], config: str | None) -> RunCurves:
  curves, value = read_curves(find_runs(workdirs))
  printed = find_published_curves(find_published(split_text(config)[0]), value) if config else {}
  methods = {curve.method: curve.method.rpartition("/")[2] for curve in curves}  # without folders
  published = {name: printed[method] for name, method in methods.items() if method in printed}
  if config and not published:
    raise ConfigError(f"config={config!r} has no printed training {value} of {listing(methods)}.")
  return RunCurves(curves, value, f"curves_{Path(workdirs[0]).resolve().name}", published)


def _open_config(text: str, options: Options) -> Subject:
  if options.inputs:  # The pixel statistics of a config's data are placeholders until it is opened.
    raise ConfigError("inputs need a workdir, since a config has no statistics of its data.")
  config = complete_config(load_config(text))
  path, arg = split_text(text)
  row = arg.split(",")[0]
  label = row if row and "=" not in row else Path(path).stem
  task = build_task(config)

  def variables() -> dict[str, Any]:
    batch = tree.zeros(evaluation_shapes(task, 1))
    return jax.jit(task.init)(jax.random.key(config.init_seed), batch)

  return _subject(label, "starting weights", config, task, options, variables)


def _describe(config: ConfigDict) -> str:
  """Returns a short description of the network and its data."""
  model = config.model
  mixer = find_mixer(model)
  block = fields_of(model.get("block", "pre_norm"))["name"]
  parts = [
    f"{model.name} with {mixer.get('edges', mixer['name'])}" if mixer else model.name,
    *([f"{block} blocks"] if block != "pre_norm" else []),
  ]
  parts += [f"{name} {model[name]}" for name in ("depth", "width") if name in model]
  return f"{', '.join(parts)}, {shorten_paths(config.data.source)}"


def _subject(
  label: str, weights: str, config: ConfigDict, task: Task, options: Options, variables
) -> Subject:
  with_matrices = config.copy_and_resolve_references()
  with_matrices.model = expose_matrices(config.model)
  given = list_inputs(options.inputs, task) if options.inputs else []
  is_trusted = registry.is_trusted()

  def inputs(count: int) -> Any:
    with registry.trusting(is_trusted):  # The call may come after the caller's own `with` block.
      own, batch = read_batch(count)
      return own.model_inputs(batch)

  def respond(count: int) -> dict[str, Any]:
    with registry.trusting(is_trusted):
      own, batch = read_batch(count)
      state = dict(variables())
      return jax.device_get(jax.jit(own.respond)(state.pop("params"), state, batch))

  def read_batch(count: int) -> tuple[Task, dict[str, Any]]:
    if given:
      read = make_reader(task)
      return task, _stack(task, [read(one, i) for i, one in enumerate(given)][:count])
    source = open_source(config.data, config.data_seed)
    # Until here a config's pixel statistics are placeholders; the opened data have the real ones.
    own = build_task(resolve(config, source))
    examples = own.examples(source.role("validation"), train=False)
    prepare = own.transform(train=False)
    some = [prepare(examples[i], None) for i in range(min(count, len(examples)))]
    return own, _stack(own, some)

  return Subject(
    label=label,
    model=build_task(with_matrices).model,
    input_spec=task.input_spec,
    grid=tuple(task.model.grid) if isinstance(task, Density) else None,  # type: ignore[attr-defined]
    layout=task.token_layout() if isinstance(task, Classification) else None,
    variables=variables,
    inputs=inputs,
    respond=respond,
    network=_describe(config),
    weights=weights,
    local=options.local,
    examples=len(given) or options.examples,
    queries=options.queries,
  )


def _stack(task: Task, examples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
  return {name: np.stack([each[name] for each in examples]) for name in task.element_spec}
