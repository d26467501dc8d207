"""Searches for the values of fields with which a config validates best, by Optuna.

A trial is one combination of values, with a run for each seed and fold. Its result is the mean over
these runs of the primary figure on *validation*, at the best checkpoint; *test* chooses nothing.
The tree-structured Parzen estimator (Bergstra et al. 2011) proposes the values. From the third
evaluation on, the first run of a trial ends early if it validates worse than the median of the
earlier trials at the same step.

The trials are stored in the sweep's directory, which several processes may share. A process holds
the lock of its trial. A trial whose process has ended is continued by another process, and its runs
go on like any point of a sweep.
"""

import contextlib
import operator
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitx.analysis.comparison import figure_format, format_spread
from vitx.analysis.csv_files import write_records
from vitx.analysis.statistics import spread
from vitx.analysis.tables import lay_out
from vitx.checkpoints import lock
from vitx.checkpoints import workdir as wd
from vitx.config.errors import ConfigError, importing
from vitx.config.loader import load_config
from vitx.config.overrides import split
from vitx.data import sources
from vitx.runtime import sharing
from vitx.sweeps.points import FOLD, SEED, Point, expand, make_points
from vitx.sweeps.sweep import POLL, Show, read_outcome, train_points
from vitx.tasks import build_task
from vitx.tasks.settle import complete_config
from vitx.training.failures import OutOfMemoryError, PrunedError
from vitx.training.record.provenance import FREE
from vitx.training.validation import watching

with importing("--search", "search"):
  import optuna
  from optuna.storages.journal import JournalFileBackend

STORE = "search.log"  # Optuna's file of trials in the sweep's directory
ASK = "search.lock"  # held while a process asks for a new trial
TRIALS = "trials.csv"
SHOWN = 10  # the number of trials in the table
PATIENCE = 3  # the number of evaluations before a run may be pruned
RUNNING, DONE = optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.COMPLETE
Distribution = optuna.distributions.BaseDistribution
_RANGE = re.compile(r"(log|uniform|int)\(([^,]+),([^,]+)\)")


def parse_ranges(text: str) -> dict[str, Distribution]:
  """Returns the values that a search may take, by field.

  Args:
    text: For each field `field=[value,value]`, `field=uniform(low,high)`, `field=log(low,high)`,
      whose logarithm is uniform, or `field=int(low,high)`, with both ends.

  Raises:
    ConfigError: The text has another form, or a field decides nothing about the result.
  """
  ranges: dict[str, Distribution] = {}
  for item in split(text) or [""]:
    field, _, values = (part.strip() for part in item.partition("="))
    if field in ("seed", *FREE):
      raise ConfigError(f"over: {field} decides nothing that a search could improve.")
    try:
      if match := _RANGE.fullmatch(values.replace(" ", "")):
        kind, low, high = match.groups()
        ranges[field] = (
          optuna.distributions.IntDistribution(int(low), int(high))
          if kind == "int"
          else optuna.distributions.FloatDistribution(float(low), float(high), log=kind == "log")
        )
      elif field and re.fullmatch(r"\[.+\]", values, re.DOTALL):
        ranges[field] = optuna.distributions.CategoricalDistribution(split(values[1:-1]))
      else:
        raise ValueError("it has another form")
    except ValueError as error:
      raise ConfigError(
        f"over={item!r} must be field=[value,value], or field=log(low,high), uniform(low,high) or"
        f" int(low,high): {error}"
      ) from error
  return ranges


class Search:
  """A search of several trials in a directory."""

  def __init__(self, config: str, over: str, seeds: int, directory: str):
    """Opens the search that a directory holds, or begins it.

    Args:
      config: The config as a text `FILE` or `FILE:ROW,field=value`.
      over: The ranges, see `parse_ranges`; the values of `data.fold` are the folds of each trial.
      seeds: The number of seeds of a trial.
      directory: The directory of the runs, not of an object store.

    Raises:
      ConfigError: The directory holds another search.
    """
    self._config, self._ranges = config, parse_ranges(over)
    folds: Any = self._ranges.pop(FOLD, None)
    self._seeds, self._folds, self._directory = seeds, folds and folds.choices, directory
    Path(directory).mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    self.figure = build_task(complete_config(load_config(config.replace(SEED, "0")))).figures[0]
    backend = JournalFileBackend(str(Path(directory, STORE)))
    self.study = optuna.create_study(
      storage=optuna.storages.JournalStorage(backend),
      study_name="search",
      direction="maximize" if self.figure.direction == "max" else "minimize",
      pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
      load_if_exists=True,
    )
    content = {"config": config, "over": over, "seeds": seeds}
    stored = self.study.user_attrs.get("content", content)
    if stored != content:
      raise ConfigError(f"workdir={directory!r} holds another search: {stored}")
    self.study.set_user_attr("content", content)

  @sources.sharing()
  @sharing.sharing()
  def run(self, count: int, show: Show) -> bool:
    """Trains until a number of trials have ended, here or in other processes.

    Args:
      count: The number of trials.
      show: The object that shows the progress of the runs.

    Returns:
      Whether all have ended; False if a signal ended this process's trial.

    Raises:
      ConfigError, OutOfMemoryError: A combination of values cannot be trained. Its trial has
        failed, and a later call goes on with the next.
    """
    while True:
      with self._claim(count) as trial:
        if trial is not None:
          try:
            if not self._train(trial, show):
              return False
          except (ConfigError, OutOfMemoryError):
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)  # the next one goes on
            raise
        elif all(other.state is not RUNNING for other in self.study.trials):
          return True
        else:
          time.sleep(POLL)

  @contextlib.contextmanager
  def _claim(self, count: int) -> Iterator[optuna.Trial | None]:
    """Holds the lock of a trial whose process has ended, or of a new one; None if none is left."""
    with contextlib.ExitStack() as locks:
      for other in self.study.trials:
        if other.state is RUNNING and self._lock(other.number, locks):
          yield optuna.Trial(self.study, other._trial_id)
          return
      trial = self._ask(count)
      yield trial if trial and self._lock(trial.number, locks) else None

  def _ask(self, count: int) -> optuna.Trial | None:
    """Returns a new trial; None if there are enough, or while another process asks for one."""
    with contextlib.suppress(lock.WorkdirInUseError), lock.hold(self._directory, ASK):
      if (number := len(self.study.trials)) < count:
        # A seed for each trial, so that one process alone always proposes the same values.
        self.study.sampler = optuna.samplers.TPESampler(seed=number)
        return self.study.ask(self._ranges)
    return None

  def _lock(self, number: int, locks: contextlib.ExitStack) -> bool:
    with contextlib.suppress(lock.WorkdirInUseError):
      locks.enter_context(lock.hold(self._directory, f"trial-{number}.lock"))
      return self.study.trials[number].state is RUNNING
    return False

  def _train(self, trial: optuna.Trial, show: Show) -> bool:
    """Trains the runs of a trial and records its result; returns False after a signal."""
    values: list[float] = []

    def prune(step: int, value: float) -> None:
      reported = self.study.trials[trial.number].intermediate_values
      if step not in reported:  # otherwise a killed process has reported it
        trial.report(value, step)
      if len({*reported, step}) >= PATIENCE and trial.should_prune():
        raise PrunedError(f"pruned at step {step}: it is worse than the median of earlier trials")

    for point in self.points(trial.params):
      is_first = not values and not point.config.get("phases")
      with watching(prune if is_first else None):
        if not train_points([point], self._directory, show):
          return False
      self._check_data(point)
      outcome = read_outcome(point, self._directory)
      if outcome is None or outcome.problem:
        self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return True
      values.append(float(outcome.validation[self.figure.name]))
    trial.set_user_attr("values", values)
    self.study.tell(trial, sum(values) / len(values))
    return True

  def _check_data(self, point: Point) -> None:
    """Checks that a run had the data of the runs before it, with which it is compared."""
    data = wd.read_data(wd.find_run(wd.join(self._directory, point.name)))
    now, known = data["fingerprint"], self.study.user_attrs.get("data", {})
    # Fields such as `exclude` decide the fingerprint too.
    fields = str(sorted({**point.config.data.to_dict(), "fold": None}.items()))
    if known.get(fields, now) != now:
      raise ConfigError(
        f"data.source={data['source']!r} has changed since this search began. Restore the data, or"
        " choose another --workdir."
      )
    self.study.set_user_attr("data", {**known, fields: now})

  def points(self, params: Mapping[str, Any]) -> list[Point]:
    """Returns the runs of a trial; numbers have six digits, by which the runs are named."""
    values = {field: [text] for field, text in _to_texts(params).items()}
    return make_points(expand(self._config, values), self._seeds, self._folds)

  def summary(self) -> str:
    """Returns the best trials, the importance of the fields and the command of the best one."""
    ended = [trial for trial in self.study.trials if trial.state is DONE]
    if not ended:
      return "no trial has ended with a figure"
    ended.sort(key=operator.attrgetter("value"), reverse=self.figure.direction == "max")
    name, scale, digits = figure_format(self.figure.name)
    rows = [("trial", *self._ranges, f"validation {name}")]
    for trial in ended[:SHOWN]:
      figure = format_spread(spread(trial.user_attrs["values"]), scale, digits)
      rows.append((str(trial.number), *_to_texts(trial.params).values(), figure))
    others = len(self.study.trials) - len(ended)
    lines = [lay_out(rows), f"{len(ended)} trials ended, {others} were pruned or failed"]
    if len({trial.value for trial in ended}) > 1:
      weights = optuna.importance.get_param_importances(self.study)
      shares = ", ".join(f"{field} {weight:.0%}" for field, weight in weights.items())
      lines.append(f"share of the variance between trials: {shares}")
    best = self.points(ended[0].params)[0]
    command = ["vitx", "train", "--config", best.text, "--workdir", "runs/best"]
    return "\n".join([*lines, shlex.join(command)])

  def write(self, folder: Path) -> Path:
    """Writes a line for each trial to `trials.csv` in a folder, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [
      {"trial": trial.number, **trial.params, "state": trial.state.name.lower()}
      | {"mean": trial.value if trial.state is DONE else ""}
      | {f"value_{place}": x for place, x in enumerate(trial.user_attrs.get("values", ()))}
      for trial in self.study.trials
    ]
    write_records(folder / TRIALS, records)
    return folder / TRIALS


def _to_texts(params: Mapping[str, Any]) -> dict[str, str]:
  """Returns values as texts; floats have six digits."""
  return {k: f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in params.items()}
