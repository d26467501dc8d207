"""Frozen features: the vectors that a classifier's last layer reads, computed once per example."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from vitx.analysis.probes import LabeledFeatures
from vitx.checkpoints import digest, tree
from vitx.checkpoints.load import Loaded
from vitx.checkpoints.workdir import to_plain
from vitx.config.errors import ConfigError
from vitx.data.dataset import Examples, Source
from vitx.files import read_arrays, replace_bytes
from vitx.inference.predict import FEATURES, with_features
from vitx.models import names
from vitx.runtime import evaluation
from vitx.runtime.evaluation import evaluation_shapes

FORMAT = 1  # increased when a change of the code changes features
# The head is the first of these modules that runs; its input is the pooled tokens.
HEADS = (names.HEAD_HIDDEN, names.HEAD)
# Fields of `config.data` that change no feature. They say how the data are read, and where the data
# are; their fingerprint identifies them in any place.
NEUTRAL = ("source", "data_dir", "threads", "memory", "device", "repeats", "sampling", "exclude")


def read_features(
  model: Loaded, source: Source, cache: Path
) -> tuple[dict[str, LabeledFeatures], bool]:
  """Computes the features of the examples of all roles, or reads them from a file.

  A feature is the vector that the network's last layer (the head) reads. All examples are prepared
  as for an evaluation.

  Args:
    model: The model, whose settings say how examples are prepared.
    source: The examples of each role, with labels.
    cache: The folder for files of features. If it has a file of features for these weights, data
      and preparation, the file is read; otherwise it is written.

  Returns:
    The features of each role, such as "train", and whether they were read from a file.

  Raises:
    ConfigError: The network has no head that reads one vector for each example, an example cannot
      be read, or a feature is not a finite number.
  """
  path = cache / f"{fingerprint(model, source)}.npz"
  plain = to_plain([model.settings.model, model.settings.task])
  names_code = ":" in json.dumps(plain, separators=(",", "="))  # such as `module:Name`
  if path.exists() and not names_code:
    stored = read_arrays(path)
    parts = {role: (stored[f"{role}_values"], stored[f"{role}_labels"]) for role in source.parts()}
    return {role: LabeledFeatures(*part) for role, part in parts.items()}, True
  compute = _make_compute(model)
  computed = {role: _compute(model, compute, part, role) for role, part in source.parts().items()}
  if not names_code:  # The code of a user's module may change while its name stays.
    _write(path, computed)
  return computed, False


def fingerprint(model: Loaded, source: Source) -> str:
  """Returns a digest of everything on which the features depend: weights, data and preparation."""
  settings = model.settings
  data = {key: value for key, value in to_plain(settings.data).items() if key not in NEUTRAL}
  leaves = tree.name_leaves(jax.device_get(model.variables))
  parts = source.parts()
  return digest.digest_json(
    {
      "format": FORMAT,
      "backend": jax.default_backend(),
      "weights": {name: digest.digest_array(np.asarray(x)) for name, x in leaves.items()},
      "examples": [source.info.fingerprint, list(source.info.class_names or ())],
      "data_seed": settings.data_seed,
      # A function of the user's that chooses examples may change while its name stays.
      "names": {role: [*map(part.name, range(len(part)))] for role, part in parts.items()},
      "config": [*map(to_plain, (settings.model, settings.task, settings.evaluation)), data],
    }
  )


def _make_compute(model: Loaded) -> Callable[[Mapping[str, np.ndarray]], jax.Array]:
  """Returns a function that computes the features (B, C) of a batch, compiled when first called."""
  task = model.task
  evaluate = with_features(task.evaluate, HEADS)

  def features(*arguments: Any) -> jax.Array:
    return evaluate(*arguments)["rows"][FEATURES]

  state = dict(model.variables)
  arguments = (state.pop("params"), state, task.constants())
  shape = jax.eval_shape(features, *arguments, evaluation_shapes(task, 1)).shape
  if len(shape) != 2:
    raise ConfigError(f"the head of this network reads {list(shape[1:])} numbers, not one vector.")
  compiled = model.program(FEATURES, lambda: jax.jit(features))
  placed = jax.device_put(arguments)
  return lambda batch: compiled(*placed, batch)


def _compute(
  model: Loaded, compute: Callable[..., jax.Array], examples: Examples, role: str
) -> LabeledFeatures:
  task, settings = model.task, model.settings
  examples = task.examples(examples, train=False)
  rows: list[np.ndarray] = []
  arrays = evaluation_shapes(task, 1)
  for batch in evaluation.show_batches(settings, task, examples, f"features of {role}"):
    features = np.asarray(compute({name: batch[name] for name in arrays}), np.float32)
    rows.append(features[batch["mask"]])
  values = np.concatenate(rows)
  wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
  if wrong.size:
    first = examples.name(int(wrong[0]))
    raise ConfigError(f"the features of {first!r} in {role} are not finite; did the run diverge?")
  return LabeledFeatures(values, np.asarray(examples.labels, np.int32))


def _write(path: Path, features: Mapping[str, LabeledFeatures]) -> None:
  """Writes the features to a file; warns if that is impossible."""
  arrays = {f"{role}_values": part.values for role, part in features.items()}
  arrays |= {f"{role}_labels": part.labels for role, part in features.items()}
  content = io.BytesIO()
  np.savez(content, allow_pickle=False, **arrays)  # type: ignore[arg-type]
  try:
    replace_bytes(path, content.getvalue())
  except OSError as error:
    logging.warning("%s cannot be written, so the features are not kept: %s", path, error)
