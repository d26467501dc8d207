"""Files of the Hugging Face Hub, read and written: `hf:OWNER/NAME[@REVISION]`, `timm:NAME`.

The library huggingface_hub keeps downloads in its own cache and reads them there when offline.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from types import ModuleType

from vitx.config.errors import ConfigError, MissingExtraError

PREFIX = "hf:"
TIMM = "timm:"  # timm publishes its weights NAME as the repository timm/NAME.
# A repository's weights are in the first of these files that exists.
FILES = ("model.safetensors", "pytorch_model.bin")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOG_IN = "log in with `hf auth login`, with an account that may read it"


def is_name(source: str) -> bool:
  """Returns whether `source` names a repository of the Hub."""
  return source.startswith((PREFIX, TIMM))


def split(source: str, field: str = "init_from") -> tuple[str, str | None]:
  """Returns the repository OWNER/NAME of a source, and its revision or `None`.

  Args:
    source: `hf:OWNER/NAME`, `timm:NAME`, or one of them with `@REVISION`, a branch, tag or commit.
    field: The name of the field or argument that has the source, for the error.

  Raises:
    ConfigError: The source has another form.
  """
  path, at, revision = source.partition("@")
  name = f"timm/{path.removeprefix(TIMM)}" if path.startswith(TIMM) else path.removeprefix(PREFIX)
  if not _NAME.fullmatch(name) or (at and not revision):
    raise ConfigError(
      f"{field}={source!r} is no name of the Hub; write hf:OWNER/NAME, hf:OWNER/NAME@REVISION,"
      " timm:NAME or timm:NAME@REVISION."
    )
  return name, revision or None


def download(source: str, files: Sequence[str] = FILES, field: str = "init_from") -> str:
  """Downloads the first of several files that a repository has, and returns its local path.

  `find` describes the arguments and the other errors.

  Raises:
    ConfigError: The repository has none of the files.
  """
  path = find(source, files, field)
  if path is None:
    raise ConfigError(
      f"{field}={source!r} has no {' and no '.join(files)}; download the file that you need, and"
      f" set {field} to its path."
    )
  return path


def is_cached(source: str, files: Sequence[str]) -> bool:
  """Returns whether the cache has one of the files of a repository, without a network request."""
  name, revision = split(source)
  hub = _load_library(f"init_from={source!r}")
  for file in files:
    # `find` explains a name that the library refuses by a ValueError.
    with contextlib.suppress(hub.errors.LocalEntryNotFoundError, ValueError):
      hub.hf_hub_download(name, file, revision=revision, local_files_only=True)
      return True
  return False


def find(source: str, files: Sequence[str], field: str = "init_from") -> str | None:
  """Downloads the first of several files that a repository has, and returns its local path.

  The Hub names a large file by its SHA-256; the local copy must have that SHA-256.

  Args:
    source: The repository, see `split`.
    files: The names of the files, by priority.
    field: The name of the field or argument that has the source, for the error.

  Returns:
    The path, or `None` if the repository has no such file.

  Raises:
    ConfigError: The repository or revision does not exist, the user may not read it, the Hub cannot
      be reached, or the local copy is damaged.
    MissingExtraError: `huggingface_hub` is not installed.
  """
  name, revision = split(source, field)
  hub = _load_library(f"{field}={source!r}")
  for file in files:
    try:
      problem = _ask(hub, hub.hf_hub_url(name, file, revision=revision))
      path = hub.hf_hub_download(name, file, revision=revision, local_files_only=bool(problem))
    except hub.errors.LocalEntryNotFoundError as error:
      raise ConfigError(
        f"{field}={source!r}: {file} is not in the cache, and the Hub cannot be reached"
        f" ({problem or _first_line(error)}). Connect to the network once, or set {field} to a"
        " local copy."
      ) from error
    except hub.errors.EntryNotFoundError:
      continue
    # A missing repository or revision and a failed connection all raise one of these.
    except (OSError, ValueError) as error:
      raise ConfigError(f"{field}={source!r} {_explain(error, name, revision)}") from error
    _check_whole(path, f"{field}={source!r}")
    return path
  return None


def _ask(hub: ModuleType, url: str) -> str:
  """Tries to connect to the Hub once; returns "", or the reason why that failed.

  A download without a connection would repeat the request for half a minute.

  Raises:
    EntryNotFoundError: The repository has no such file.
  """
  try:
    hub.get_hf_file_metadata(url)
  except hub.errors.EntryNotFoundError:
    raise
  except hub.errors.HfHubHTTPError:  # The Hub has answered; the download raises the error again.
    return ""
  except Exception as error:  # The library's HTTP client has errors of its own.
    return _first_line(error)
  return ""


def check_target(out: str) -> str:
  """Returns the repository OWNER/NAME of `hf:OWNER/NAME`, to which files may be uploaded.

  Raises:
    ConfigError: The text has another form.
  """
  name, revision = split(out, "out")
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

  Raises:
    ConfigError: The repository cannot be created or written.
    MissingExtraError: `huggingface_hub` is not installed.
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
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
      why = f"may not be written by you. Correct the owner, or {_LOG_IN} and write to it."
    else:
      why = f"cannot be written: {_first_line(error.__cause__ or error)}"
    raise ConfigError(f"out={out!r} {why}") from error
  return str(address)


def _load_library(where: str) -> ModuleType:
  """Imports huggingface_hub and its errors; raises MissingExtraError if it is not installed."""
  try:
    import huggingface_hub
    import huggingface_hub.errors
  except ImportError as error:
    raise MissingExtraError(where, "hub") from error
  return huggingface_hub


def _explain(error: Exception, name: str, revision: str | None) -> str:
  """Returns the end of a sentence about a failed download, with the fix."""
  kind = type(error).__name__
  if kind == "GatedRepoError":
    return (
      f"needs its owner's permission: ask for it at https://huggingface.co/{name}, then {_LOG_IN}."
    )
  if kind == "RepositoryNotFoundError":
    return f"does not exist or is private. Correct the name, or {_LOG_IN}."
  if kind == "RevisionNotFoundError":
    return f"has no revision {revision!r}. Name a branch, a tag or a commit, or leave it out."
  return f"cannot be downloaded: {_first_line(error)}"


def _check_whole(path: str, where: str) -> None:
  """Raises ConfigError if a file of the cache is named by a SHA-256 but has another one."""
  stored = os.path.realpath(path)
  wanted = os.path.basename(stored)
  if not _SHA256.fullmatch(wanted):  # The Hub names small files otherwise.
    return
  with open(stored, "rb") as file:
    found = hashlib.file_digest(file, "sha256").hexdigest()
  if found != wanted:
    raise ConfigError(
      f"{where}: the local copy {stored} is damaged: its SHA-256 begins with {found[:8]}, not with"
      f" {wanted[:8]}. Delete that file, so that it is downloaded again."
    )


def _first_line(error: BaseException) -> str:
  return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
