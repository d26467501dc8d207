"""Files of the Hugging Face Hub, read and written: `hf:OWNER/NAME[@REVISION]`, `timm:NAME`.

The library huggingface_hub keeps downloads in its own cache and reads them there when offline.
"""

import contextlib
from collections.abc import Sequence
from types import ModuleType

from vitx.config.errors import ConfigError, importing

PREFIX = "hf:"
TIMM = "timm:"  # timm publishes its weights NAME as the repository timm/NAME.
# A repository's weights are in the first of these files that exists.
FILES = ("model.safetensors", "pytorch_model.bin")


def is_name(source: str) -> bool:
  """Returns whether `source` names a repository of the Hub."""
  return source.startswith((PREFIX, TIMM))


def split(source: str) -> tuple[str, str | None]:
  """Returns the repository OWNER/NAME of a source, and its revision or `None`.

  Args:
    source: `hf:OWNER/NAME`, `timm:NAME`, or one of them with `@REVISION`, a branch, tag or commit.
  """
  path, _, revision = source.partition("@")
  name = f"timm/{path.removeprefix(TIMM)}" if path.startswith(TIMM) else path.removeprefix(PREFIX)
  return name, revision or None


def download(source: str, files: Sequence[str] = FILES, field: str = "init_from") -> str:
  """Returns the path of the first of `files` that a repository has, as `find`; it must have one."""
  path = find(source, files, field)
  if path is None:
    raise ConfigError(f"{field}={source!r} has none of the files {', '.join(files)}.")
  return path


def is_cached(source: str, files: Sequence[str]) -> bool:
  """Returns whether the cache has one of the files of a repository, without a network request."""
  name, revision = split(source)
  hub = _load_library(f"init_from={source!r}")
  for file in files:
    # `find` raises the ValueError of a name that the library refuses.
    with contextlib.suppress(hub.errors.LocalEntryNotFoundError, ValueError):
      hub.hf_hub_download(name, file, revision=revision, local_files_only=True)
      return True
  return False


def find(source: str, files: Sequence[str], field: str = "init_from") -> str | None:
  """Downloads the first of several files that a repository has, and returns its local path.

  Args:
    source: The repository, see `split`.
    files: The names of the files, by priority.
    field: The name of the field or argument that has the source, for the error.

  Returns:
    The path, or `None` if the repository has no such file.
  """
  name, revision = split(source)
  where = f"{field}={source!r}"
  hub, problem, missing = _load_library(where), "", None
  for file in files:
    try:
      problem = problem or _try_connection(hub, hub.hf_hub_url(name, file, revision=revision))
      return hub.hf_hub_download(name, file, revision=revision, local_files_only=bool(problem))
    except hub.errors.LocalEntryNotFoundError as error:  # the cache may have the next one
      missing = missing or (f"{file} is not in the cache", problem or _to_line(error))
    except hub.errors.EntryNotFoundError:
      continue
    # A missing repository or revision and a failed connection all raise one of these.
    except (OSError, ValueError) as error:
      raise ConfigError(f"{where} cannot be downloaded: {_to_line(error)}") from error
  if missing is not None:
    raise ConfigError(f"{where}: {missing[0]}, and the Hub cannot be reached: {missing[1]}")
  return None


def _try_connection(hub: ModuleType, url: str) -> str:
  """Tries to connect to the Hub once; returns "", or the reason why that failed.

  A download without a connection would repeat the request for half a minute.
  """
  try:
    hub.get_hf_file_metadata(url)
  except hub.errors.EntryNotFoundError:
    raise
  except hub.errors.HfHubHTTPError:  # The Hub has answered; the download raises the error again.
    return ""
  except Exception as error:  # The library's HTTP client has errors of its own.
    return _to_line(error)
  return ""


def check_target(out: str) -> str:
  """Returns the repository OWNER/NAME of `hf:OWNER/NAME`, to which files may be uploaded."""
  name, revision = split(out)
  if revision is not None or not out.startswith(PREFIX):
    raise ConfigError(f"out={out!r} cannot be written; write hf:OWNER/NAME.")
  return name


def upload(folder: str, out: str, keep: str) -> str:
  """Uploads the files of a folder as one commit and returns the address of the repository.

  A repository that does not exist is created as a private one. The history of a repository keeps
  the earlier versions of its files.

  Args:
    folder: The folder.
    out: The repository, `hf:OWNER/NAME`.
    keep: The name of a file that is not uploaded if the repository has one.
  """
  name = check_target(out)
  api = _load_library(f"out={out!r}").HfApi()
  try:
    address = api.create_repo(name, private=True, exist_ok=True)
    ignored = [keep] if api.file_exists(name, keep) else []
    message = "Write a model trained with vitx"
    api.upload_folder(
      repo_id=name, folder_path=folder, ignore_patterns=ignored, commit_message=message
    )
  except Exception as error:  # The library's HTTP client has errors of its own.
    raise ConfigError(f"out={out!r} cannot be written: {_to_line(error)}") from error
  return str(address)


def _load_library(where: str) -> ModuleType:
  """Imports huggingface_hub and its errors."""
  with importing(where, "hub"):
    import huggingface_hub
    import huggingface_hub.errors
  return huggingface_hub


def _to_line(error: BaseException) -> str:
  return " ".join(str(error).split()) or type(error).__name__
