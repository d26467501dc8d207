"""The source `audio:FOLDER`: each WAV file is a document of 8-bit mu-law codes at 12 kHz.

The Sparse Transformer article models classical piano music in this form (section 7.4).
"""

import collections
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
from absl import logging

from vitx.config.errors import ConfigError
from vitx.config.fields import DataSettings
from vitx.data.dataset import Dataset, DatasetInfo
from vitx.data.documents import SPEC, VOCABULARY, Documents, carve_end
from vitx.data.fingerprint import choose_sample, digest
from vitx.data.mu_law import mu_law_encode
from vitx.data.sources import files
from vitx.data.split_names import find_roles, states_role
from vitx.data.wav import Wav, read_head

RATE = 12_000  # samples per second
SUFFIXES = (".wav", ".wave")


def open_audio(data: DataSettings) -> Dataset:
  """Opens `audio:FOLDER`: WAV files of 8, 16, 24 or 32-bit PCM or float, of any rate.

  Channels are averaged, and other rates are resampled to 12 kHz. If a directory in FOLDER whose
  name states a role (such as train, val, valid, validation, dev, test or Training) has WAV files,
  each directory with WAV files is a split. Otherwise all files in FOLDER and below it are one
  split, `train`. Hidden files are ignored; files with other suffixes are skipped with a warning.

  Args:
    data: The config's `data`, of which these fields are read: source; splits. If `splits` names any
      split, each directory in FOLDER with WAV files is a split, whatever its name.
  """
  name = data.source
  root, field = files.find_root(name), f"data.source={name!r}"
  everything = files.find_files(field, root, SUFFIXES)
  inside = files.find_directories(root, SUFFIXES)
  files_by_split = {path.name: files.find_files(field, path, SUFFIXES) for path in inside}
  files_by_split = {split: lists for split, lists in files_by_split.items() if lists[0]}
  if not any(map(states_role, files_by_split)) and not any(data.splits.values()):
    files_by_split = {"train": everything}
  splits = {split: tuple(map(read_head, paths)) for split, (paths, _) in files_by_split.items()}
  strays = {*everything[0]}.difference(*(paths for paths, _ in files_by_split.values()))
  unread = {
    "WAV files outside of the splits": files.list_names(root, strays),
    **files.describe_others(root, everything[1], SUFFIXES),
  }
  rates = collections.Counter(wav.rate for wavs in splits.values() for wav in wavs)
  others = [f"{count} of {rate} Hz" for rate, count in sorted(rates.items()) if rate != RATE]
  if others:
    logging.info("%s: these files are resampled to %d Hz: %s", name, RATE, ", ".join(others))
  documents = {split: _documents(root, wavs) for split, wavs in splits.items()}
  return Dataset(
    info=DatasetInfo(name, SPEC, vocabulary=VOCABULARY, fingerprint=_fingerprint(root, splits)),
    splits=tuple(documents),
    roles=find_roles(documents),
    unread=unread,
    open_split=documents.__getitem__,
    carve=carve_end,
  )


def read_sound(wav: Wav) -> np.ndarray:
  """Reads a WAV file as mu-law codes, uint8 (n,), of one channel at 12 kHz."""
  sound = wav.read().mean(axis=1)
  if not np.isfinite(sound).all():
    raise ConfigError(f"{wav.path} has a sample that is not finite.")
  if wav.rate != RATE:
    import scipy.signal  # the import takes a second; few runs need it

    up, down = Fraction(RATE, wav.rate).as_integer_ratio()
    sound = scipy.signal.resample_poly(sound, up, down)
  return mu_law_encode(sound)


def _documents(root: Path, wavs: tuple[Wav, ...]) -> Documents:
  return Documents(
    read=lambda i: read_sound(wavs[i]),
    # `resample_poly` rounds the length up.
    lengths=lambda: np.array([math.ceil(w.samples * Fraction(RATE, w.rate)) for w in wavs]),
    name=lambda i: wavs[i].path.relative_to(root).as_posix(),
  )


def _fingerprint(root: Path, splits: Mapping[str, tuple[Wav, ...]]) -> str:
  """Returns a hash of all names and sizes, and of the content of all or of a sample of files."""
  parts: list[str | bytes] = ["audio", str(RATE)]
  for split in sorted(splits):
    paths = [wav.path for wav in splits[split]]
    sizes = [path.stat().st_size for path in paths]
    entries = zip(paths, sizes, strict=True)
    parts += [split, "\n".join(f"{p.relative_to(root).as_posix()}\t{size}" for p, size in entries)]
    chosen = choose_sample(len(paths), sum(sizes)).tolist()
    parts.append(digest(paths[i].read_bytes() for i in chosen))
  return digest(parts)
