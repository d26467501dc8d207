"""Draws samples from a trained density model."""

import math
import os
from functools import partial
from pathlib import Path

import numpy as np

from vitx.checkpoints.load import Loaded
from vitx.config.checks import PositiveInt, Seed, check_number, check_value
from vitx.config.errors import ConfigError
from vitx.config.fields import seed_of
from vitx.data.sources import open_source
from vitx.inference import density_model
from vitx.inference.decoding import Sampling, sample_tokens
from vitx.inference.opening import change_folder, open_model
from vitx.inference.sample_files import Samples
from vitx.runtime.progress import count_bar

BATCH = 64
COMPLETIONS = 4  # The number of completions per image.


def sample(
  model: Loaded | str | Path,
  *,
  count: int = 16,
  prompt: str | Path | bytes | None = None,
  complete: float | None = None,
  temperature: float = 1.0,
  top_k: int | None = None,
  top_p: float | None = None,
  seed: int = 0,
  checkpoint: str | int = "best",
  data_dir: str | None = None,
  trust_code: bool = False,
) -> Samples:
  """Draws samples from a density model, token by token.

  Args:
    model: A model that `vitx.load` returned, or the workdir or the repository of one.
    count: The number of samples. With `complete` and no `prompt`, the number of test examples to
      complete; an image is completed four times, a window of text or sound once.
    prompt: The beginning of all samples: bytes, a text, or the path of a file (a WAV file for
      sound). For an image model, the path of an image; the model is given the share `complete` of
      its pixels and draws the others.
    complete: The share of every original that the model is given, in (0, 1). The originals are the
      image that `prompt` names or, without a prompt, the first examples of the test split.
    temperature: The divisor of the logits.
    top_k: The number of most probable tokens to draw from.
    top_p: A probability p: only the most probable tokens may be drawn, as few as reach a total
      probability of p.
    seed: The random seed; a sample does not depend on `count`.
    checkpoint: "best", "latest" or a step.
    data_dir: The directory of TFDS sets; `None` means the run's.
    trust_code: Whether to import the objects that the run's config names as `module:Name`.

  Returns:
    The S samples: `tokens` int32 (S, N), and the same as `images` uint8 (S, height, width,
    channels) or as `texts`.

  Raises:
    ConfigError: The model is not a density model, its mixer has no cache, or the prompt does not
      fit the model.
  """
  sampling = Sampling(temperature, top_k, top_p)
  check_value(count, "count", PositiveInt)
  check_value(seed, "seed", Seed)
  with open_model(model, checkpoint, trust_code=trust_code) as loaded:
    task, kind = density_model.density_task(loaded), density_model.kind_of(loaded)
    originals = None
    if complete is not None:
      check_number(complete, "complete", "(0, 1)")
      originals = _originals(loaded, prompt, count, data_dir)
      prompt_length = min(max(round(complete * task.length), 1), task.length - 1)
      copies = count if prompt is not None else COMPLETIONS if kind == "image" else 1
      prompts = originals[:, :prompt_length].repeat(copies, axis=0)
    else:
      start = _read_prompt(loaded, prompt)
      prompt_length = start.size
      prompts = np.tile(start, (count, 1))
    tokens = _draw(loaded, prompts, sampling, seed)
  return Samples(tokens, prompt_length, originals, kind, task.levels, density_model.grid_of(loaded))


def _draw(loaded: Loaded, prompts: np.ndarray, sampling: Sampling, seed: int) -> np.ndarray:
  """Completes S prompts, in several batches of equal size; returns the tokens, int32 (S, N)."""
  length, size = density_model.density_task(loaded).length, min(BATCH, len(prompts))
  draw, parts = partial(sample_tokens, loaded.model, loaded.variables), []
  with count_bar("sampling", math.ceil(len(prompts) / size) * length, "token") as bar:
    for first in range(0, len(prompts), size):
      batch = np.resize(prompts[first : first + size], (size, prompts.shape[1]))
      tokens = draw(batch, length, sampling, seed=seed, first=first, progress=bar.update)
      parts.append(tokens[: len(prompts) - first])
  return np.concatenate(parts)


def _read_prompt(loaded: Loaded, prompt: str | Path | bytes | None) -> np.ndarray:
  """Returns the tokens of a prompt, int32 (P,)."""
  if prompt is None:
    return np.zeros(0, np.int32)
  kind, length = density_model.kind_of(loaded), density_model.density_task(loaded).length
  if isinstance(prompt, bytes):
    tokens = np.frombuffer(prompt, np.uint8)
  elif kind == "image":
    raise ConfigError(f"prompt={str(prompt)!r:.80} is an image to complete; also set complete.")
  elif kind == "audio":
    from vitx.data.sources.audio import read_sound
    from vitx.data.wav import read_head

    tokens = read_sound(read_head(Path(prompt)))
  elif os.path.isfile(prompt) or isinstance(prompt, Path):  # False for a text that is no path
    tokens = np.frombuffer(Path(prompt).read_bytes(), np.uint8)
  else:
    tokens = np.frombuffer(prompt.encode(), np.uint8)
  if tokens.size >= length:
    raise ConfigError(f"prompt has {tokens.size} tokens; shorten it to fewer than {length}.")
  return density_model.check_tokens(tokens, loaded, "prompt")


def _originals(
  loaded: Loaded, prompt: str | Path | bytes | None, count: int, data_dir: str | None
) -> np.ndarray:
  """Returns the tokens of the R examples to complete, int32 (R, N).

  The examples are the image that the prompt names or, without a prompt, the first test examples.
  """
  task = density_model.density_task(loaded)
  if prompt is not None:
    if density_model.kind_of(loaded) != "image" or isinstance(prompt, bytes):
      raise ConfigError(
        f"complete and prompt={prompt!r:.80} are both set; set one, or the path of an image as"
        " the prompt of a model of images."
      )
    return density_model.image_tokens(density_model.read_image(prompt, loaded)[None], loaded)
  data = change_folder(loaded, data_dir)
  test = task.examples(open_source(data, seed_of(loaded.settings, "data_seed")).test, train=False)
  prepare = task.transform(train=False)
  count = min(count, len(test))
  return np.stack([prepare(test[i], None)["tokens"] for i in range(count)]).astype(np.int32)
