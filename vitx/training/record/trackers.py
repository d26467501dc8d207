"""Trackers, which send the metrics of a run to TensorBoard, Weights & Biases or Trackio."""

import dataclasses
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class TrackedRun:
  """The description of a run for a tracker.

  Attributes:
    workdir: The workdir of the run, a directory or a URL.
    id: The id of the run, drawn when it began and kept whenever it continues.
    config: The config of the run, as JSON.
  """

  workdir: str
  id: str
  config: Mapping[str, Any]

  @property
  def name(self) -> str:
    """Returns the name of the run: the last part of the workdir's path."""
    return PurePosixPath(self.workdir).name


class Tracker:
  """The base class of trackers, which itself stores nothing.

  For a tracker of your own, set `tracking=my_file:MyTracker`. Its methods are called in a thread
  beside the training, so they may be slow. The arguments of its constructor besides `run` are the
  fields `tracking.FIELD` of a config.

  Attributes:
    extra: The optional dependency of vitx (`pip install vitx[EXTRA]`) that installs the packages;
      "" for none.
    packages: The names of the packages that the tracker imports.
  """

  extra: ClassVar[str] = ""
  packages: ClassVar[tuple[str, ...]] = ()

  @classmethod
  def find_problem(cls) -> str:
    """Returns the reason why the tracker cannot work on this machine; "" if there is none."""
    return ""

  def __init__(self, run: TrackedRun):
    """Begins a run at the tracker, or continues the run that has the id `run.id` there."""

  def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
    """Adds a row of metrics.

    Args:
      kind: The kind of the row: train, validation, test or test_seen.
      step: The step of the row.
      figures: The row's numbers by name, times included; lists are left out.
    """

  def close(self) -> None:
    """Waits until the tracker has stored all rows; called when the run ends or is stopped."""


class TensorBoard(Tracker):
  """Writes the rows to TensorBoard's event files in the workdir.

  The writer, `clu.metric_writers`, imports TensorFlow, which takes ten seconds.
  """

  extra = "tensorboard"
  packages = ("tensorflow", "tensorboard")  # clu imports both and declares neither

  def __init__(self, run: TrackedRun):
    import tensorflow as tf
    from clu import metric_writers

    # TensorFlow would otherwise claim the accelerator's memory.
    tf.config.set_visible_devices([], "GPU")
    self._writer = metric_writers.SummaryWriter(run.workdir)

  def write(self, kind, step, figures):
    """Writes each number of a row under the name `KIND/NAME`, such as "train/loss"."""
    self._writer.write_scalars(step, prefix(kind, figures))

  def close(self):
    """Waits until all rows are in the files."""
    self._writer.close()


class Wandb(Tracker):
  """Sends the rows to Weights & Biases, whose environment variables apply (`WANDB_MODE=offline`).

  Attributes:
    project: The project that the run belongs to.
  """

  extra = "wandb"
  packages = ("wandb",)

  @classmethod
  def find_problem(cls):
    """Returns a message if a login is needed and there is none, or the key is wrong; else ""."""
    import wandb

    if wandb.setup().settings.mode in ("offline", "disabled"):
      return ""
    help_ = "run wandb login, or set WANDB_MODE=offline."
    try:
      known = wandb.login(prompt=False)
    except wandb.Error as error:
      return f"Weights & Biases: {str(error).rstrip('. ')}; {help_}"
    return "" if known else f"nobody is logged in to Weights & Biases; {help_}"

  def __init__(self, run: TrackedRun, *, project: str = "vitx"):
    import wandb

    self._run = wandb.init(
      project=project,
      id=run.id,
      name=run.name,
      config=dict(run.config),
      resume="allow",
      reinit="create_new",  # or another run of this process, as in a sweep, would get the rows
      dir=None if "://" in run.workdir else run.workdir,
      settings=wandb.Settings(console="off"),  # its console would replace the writer of `log.txt`
    )
    # W&B's own counter must not go back, but the step does when the best checkpoint is tested.
    self._run.define_metric("step", hidden=True)
    self._run.define_metric("*", step_metric="step")

  def write(self, kind, step, figures):
    """Sends each number of a row under the name `KIND/NAME`, such as "train/loss".

    The x-axis of every plot is `step`.
    """
    self._run.log({"step": step, **prefix(kind, figures)})

  def close(self):
    """Waits until all rows are sent."""
    self._run.finish()


class Trackio(Tracker):
  """Writes the rows to Trackio's local database, in the folder `TRACKIO_DIR` if that is set.

  Trackio's other environment variables apply too.

  Attributes:
    project: The project that the run belongs to.
  """

  extra = "trackio"
  packages = ("trackio",)

  def __init__(self, run: TrackedRun, *, project: str = "vitx"):
    import trackio

    # Trackio knows runs by their names, which must differ.
    name = f"{run.name}-{run.id}"
    self._run = trackio.init(project, name=name, config=dict(run.config), resume="allow")

  def write(self, kind, step, figures):
    """Stores each number of a row under the name `KIND/NAME`, such as "train/loss"."""
    self._run.log(prefix(kind, figures), step=step)

  def close(self):
    """Waits until all rows are in the database."""
    self._run.finish()


def prefix(kind: str, figures: Mapping[str, float]) -> dict[str, float]:
  """Returns the numbers of a row under the names `KIND/NAME`, such as "train/loss"."""
  return {f"{kind}/{name}": value for name, value in figures.items()}


TRACKERS: dict[str, type[Tracker]] = {
  "none": Tracker,
  "tensorboard": TensorBoard,
  "wandb": Wandb,
  "trackio": Trackio,
}
