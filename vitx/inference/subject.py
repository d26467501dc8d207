"""Opens the network that a figure or a report shows, with its inputs, outputs and predictions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from vitx.analysis.classification import Predictions
from vitx.analysis.figures.attention import compute_maps
from vitx.analysis.figures.mistakes import Picture, PredictedSplit
from vitx.analysis.figures.subject import Subject
from vitx.analysis.markdown import shorten_paths
from vitx.analysis.matrices import expose_matrices
from vitx.checkpoints.load import Loaded
from vitx.config import registry
from vitx.config.checks import PositiveInt, check_fields
from vitx.config.errors import ConfigError
from vitx.config.fields import RunSettings, seed_of
from vitx.config.loader import load_config, split_text
from vitx.config.registry import fields_of
from vitx.config.settings import change
from vitx.data.dataset import Example, Examples
from vitx.data.images.settings import sides
from vitx.inference.ensemble import Ensemble
from vitx.inference.inputs import list_inputs, make_reader
from vitx.interop.repository import load
from vitx.models import find_mixer
from vitx.runtime import cache
from vitx.tasks import build_task
from vitx.tasks.base import Task, find_layout, init_variables
from vitx.tasks.classification import Classification
from vitx.tasks.density import Density
from vitx.tasks.settle import Settled, complete_config, open_data, settle

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


def open_subject(
  *,
  workdir: str | Path | None = None,
  config: str | None = None,
  checkpoint: str = "best",
  options: Options | None = None,
  trust_code: bool = False,
) -> Subject:
  """Opens the network that a figure shows, for the functions of `vitx.analysis.figures`.

  The arguments are those of `visualize.visualize`. The network of a config has its initial weights.

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
    return _subject(label, weights, loaded, options, lambda: loaded.variables)


def _open_config(text: str, options: Options) -> Subject:
  if options.inputs:  # A config's pixel statistics are placeholders until its data are opened.
    raise ConfigError("inputs need a workdir, since a config has no statistics of its data.")
  settings = complete_config(load_config(text))
  path, arg = split_text(text)
  row = arg.split(",")[0]
  label = row if row and "=" not in row else Path(path).stem
  settled = Settled(settings, build_task(settings))

  def variables() -> dict[str, Any]:
    init = jax.jit(lambda key: init_variables(settled.task, key))
    return init(jax.random.key(seed_of(settings, "init_seed")))

  return _subject(label, "starting weights", settled, options, variables)


def _describe(settings: RunSettings) -> str:
  """Returns a short description of the network and its data."""
  model = settings.model
  mixer = find_mixer(model)
  block = fields_of(model.get("block", "pre_norm"))["name"]
  parts = [
    f"{model.name} with {mixer.get('edges', mixer['name'])}" if mixer else model.name,
    *([f"{block} blocks"] if block != "pre_norm" else []),
  ]
  parts += [f"{name} {model[name]}" for name in ("depth", "width") if name in model]
  return f"{', '.join(parts)}, {shorten_paths(settings.data.source)}"


def _subject(
  label: str, weights: str, settled: Settled, options: Options, variables: Callable
) -> Subject:
  settings, task = settled.settings, settled.task
  with_matrices = change(settings, {"model": expose_matrices(settings.model)})
  entries = list_inputs(options.inputs, task) if options.inputs else []
  is_trusted = registry.is_trusted()

  def inputs(count: int) -> Any:
    with registry.trusting(is_trusted):  # A figure may call this after the caller's `with` block.
      data_task, batch = read_batch(count)
      return data_task.model_inputs(batch)

  def respond(count: int) -> dict[str, Any]:
    with registry.trusting(is_trusted):
      data_task, batch = read_batch(count)
      state = dict(variables())
      return jax.device_get(jax.jit(data_task.respond)(state.pop("params"), state, batch))

  def read_batch(count: int) -> tuple[Task, dict[str, Any]]:
    if entries:
      read = make_reader(task)
      return task, _stack(task, [read(entry, i) for i, entry in enumerate(entries)][:count])
    source = open_data(settings)
    # A config's pixel statistics are placeholders until `settle` reads those of the opened data.
    data_task = settle(settings, source).task
    examples = data_task.examples(source.role("validation"), train=False)
    prepare = data_task.transform(train=False)
    some = [prepare(examples[i], None) for i in range(min(count, len(examples)))]
    return data_task, _stack(data_task, some)

  return Subject(
    label=label,
    model=build_task(with_matrices).model,
    input_spec=task.input_spec,
    grid=tuple(task.model.grid) if isinstance(task, Density) else None,  # type: ignore[attr-defined]
    layout=find_layout(task) if isinstance(task, Classification) else None,
    variables=variables,
    inputs=inputs,
    respond=respond,
    network=_describe(settings),
    weights=weights,
    local=options.local,
    examples=len(entries) or options.examples,
    queries=options.queries,
  )


def _stack(task: Task, examples: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
  return {name: np.stack([example[name] for example in examples]) for name in task.element_spec}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A model's evaluation on a split, with everything that reports need.

  Attributes:
    examples: The examples of the split; `predictions.numbers` are indices into it.
    result: The dictionary that `evaluate` returns.
    predictions: The predictions of a classifier with the labels; `None` for another task.
  """

  loaded: Loaded
  examples: Examples
  result: dict[str, Any]
  predictions: Predictions | None


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
    raise ConfigError(f"workdir={loaded.workdir!r} is not the run of a classifier; choose one.")
  names = loaded.class_names
  note = f"{_describe(loaded.settings)}, checkpoint of step {result['step']}, {result['split']}:"
  note += f" {result['examples']:,} examples, top-1 {result['top1']:.1%}"

  def show(positions: Sequence[int]) -> list[Picture]:
    examples = [evaluated.examples[int(predictions.numbers[at])] for at in positions]
    maps = _attend(loaded, examples)
    return [
      Picture(
        name=evaluated.examples.name(int(predictions.numbers[at])),
        label=names[predictions.labels[at]],
        prediction=names[predictions.classes[at]],
        confidence=float(predictions.confidence[at]),
        image=np.asarray(example["image"]),
        attention=None if maps is None else _lay_over(maps[i], example["image"].shape[:2], loaded),
      )
      for i, (at, example) in enumerate(zip(positions, examples, strict=True))
    ]

  return PredictedSplit(Path(loaded.workdir).resolve().name, note, names, predictions, show)


def _attend(loaded: Loaded, examples: Sequence[Example]) -> np.ndarray | None:
  """Returns the last layer's attention over the patches in 0..1, or `None` if there is none."""
  task = loaded.task
  if not examples or isinstance(loaded, Ensemble):  # its members attend each in their own way
    return None
  options = Options(examples=len(examples))
  try:
    subject = _subject("", "", loaded, options, lambda: loaded.variables)
    prepare = task.transform(train=False)
    some = _stack(task, [prepare(example, None) for example in examples])
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
  data, ratio = loaded.settings.data, loaded.settings.evaluation.crop_ratio
  assert data.decode_size is not None
  (height, width), (rows, columns) = size, sides(data.decode_size)
  across, down = float(width), float(height)
  if data.resize_mode != "squash":
    across, down = min(width, height * columns / rows), min(height, width * rows / columns)
  across, down = max(round(across * ratio), 1), max(round(down * ratio), 1)
  seen = Image.fromarray(plane.astype(np.float32)).resize((across, down), Image.Resampling.BICUBIC)
  over = np.zeros(size, np.float32)
  top, left = (height - down) // 2, (width - across) // 2
  over[top : top + down, left : left + across] = np.asarray(seen).clip(0, 1)
  return over
