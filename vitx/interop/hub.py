"""Weights of the Hugging Face Hub: `init_from=hf:NAME[@REVISION]`.

The library huggingface_hub keeps downloads in its own cache and reads them there when offline.
"""

import re

from vitx.config.errors import ConfigError, MissingExtraError

PREFIX = "hf:"
# A repository's weights are in the first of these files that exists.
FILES = ("model.safetensors", "pytorch_model.bin")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_name(source: str) -> bool:
  """Returns whether `source` names a repository of the Hub."""
  return source.startswith(PREFIX)


def download(source: str) -> str:
  """Downloads the weights of `hf:NAME` or `hf:NAME@REVISION` and returns the path of their file.

  Args:
    source: The name; NAME is OWNER/REPOSITORY, REVISION is a branch, tag or commit.

  Raises:
    ConfigError: The repository, revision or file does not exist, or the Hub cannot be reached.
    MissingExtraError: `huggingface_hub` is not installed.
  """
  name, at, revision = source.removeprefix(PREFIX).partition("@")
  if not _NAME.fullmatch(name) or (at and not revision):
    raise ConfigError(
      f"init_from={source!r} is no name of the Hub; write hf:OWNER/NAME or hf:OWNER/NAME@REVISION."
    )
  try:
    import huggingface_hub
    from huggingface_hub import errors
  except ImportError as error:
    raise MissingExtraError(f"init_from={source!r}", "hub") from error
  for file in FILES:
    try:
      return huggingface_hub.hf_hub_download(name, file, revision=revision or None)
    except errors.LocalEntryNotFoundError as error:
      raise ConfigError(
        f"init_from={source!r}: {file} is not in the cache, and the Hub cannot be reached:"
        f" {_first_line(error)}"
      ) from error
    except errors.EntryNotFoundError:
      continue
    # A missing repository or revision and a failed connection all raise one of these.
    except (OSError, ValueError) as error:
      raise ConfigError(
        f"init_from={source!r} cannot be downloaded: {_first_line(error)}"
      ) from error
  raise ConfigError(
    f"init_from={source!r} has neither {' nor '.join(FILES)}; download the file that you need, and"
    " set init_from to its path."
  )


def _first_line(error: Exception) -> str:
  return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
