"""A local server in place of the Hugging Face Hub, with the HTTP calls that huggingface_hub makes.

Repositories are in memory. Files of weights are kept as the Hub keeps large files: a commit names
their SHA-256, and a download is redirected to another host.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = (".safetensors", ".bin")
TOKEN = "hf_of_the_tests"  # of the user "me"
RESOLVE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/([\w.-]+)/(.+)")


class Hub:
  """The repositories of the Hub, and the requests to it.

  Attributes:
    repositories: The commits of each repository, dicts of files; the last one is current.
    private: The names of repositories that need the token.
    gated: The names of repositories that need their owner's permission, which nobody has.
    asked: The method and path of each request.
    problems: The requests that this server could not answer.
  """

  def __init__(self):
    self.repositories: dict[str, list[dict[str, bytes]]] = {}
    self.private: set[str] = set()
    self.gated: set[str] = set()
    self.objects: dict[str, bytes] = {}
    self.asked: list[tuple[str, str]] = []
    self.problems: list[str] = []
    self.address = ""

  def add(self, name, files):
    """Adds a commit with some files to a repository."""
    before = self.repositories.setdefault(name, [{}])[-1]
    self.repositories[name].append(before | files)

  def find(self, name, revision):
    """Returns the files of a revision: "main", or the number of a commit in 40 digits."""
    commits = self.repositories[name]
    if revision == "main":
      return len(commits) - 1, commits[-1]
    number = int(revision) if re.fullmatch(r"\d{40}", revision) else len(commits)
    return (number, commits[number]) if number < len(commits) else None


class Handler(BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"

  def log_message(self, *_):
    pass

  def handle_one_request(self):
    try:
      super().handle_one_request()
    except ConnectionError:
      self.close_connection = True

  @property
  def hub(self):
    return self.server.hub

  def send(self, status, body=b"", **headers):
    """Sends an answer; `_` in the names of headers stands for "-"."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    self.send_response(status)
    headers.setdefault("Content_Length", str(len(content)))
    for key, value in headers.items():
      self.send_header(key.replace("_", "-"), value)
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(content)

  def refuse(self, status, code):
    self.send(status, b"", X_Error_Code=code, X_Error_Message=f"{code} of the stand-in")

  def read(self):
    if self.headers.get("Transfer-Encoding") != "chunked":
      return self.rfile.read(int(self.headers.get("Content-Length", 0)))
    parts = []
    while size := int(self.rfile.readline(), 16):
      parts.append(self.rfile.read(size))
      self.rfile.readline()
    self.rfile.readline()
    return b"".join(parts)

  @property
  def is_me(self):
    return self.headers.get("Authorization") == f"Bearer {TOKEN}"

  def answer(self):
    content = self.read()
    path = self.path.partition("?")[0]
    self.hub.asked.append((self.command, path))
    if match := RESOLVE.fullmatch(path):
      return self.resolve(*match.groups())
    if path.startswith("/objects/"):
      return self.send_object(path.removeprefix("/objects/"), content)
    if path == "/api/validate-yaml":
      return self.send(200, {"errors": [], "warnings": []})
    if not self.is_me:
      return self.send(401, {"error": "Invalid username or password."})
    if path == "/api/repos/create":
      return self.create(json.loads(content))
    if match := re.fullmatch(r"/api/models/(me/[\w.-]+)/(preupload|commit)/main", path):
      return getattr(self, match[2])(match[1], content)
    if match := re.fullmatch(r"/(me/[\w.-]+)\.git/info/lfs/objects/batch", path):
      return self.name_places(json.loads(content))
    if re.fullmatch(r"/api/models/[\w./-]+", path):
      return self.refuse(404, "RepoNotFound")
    self.hub.problems.append(f"{self.command} {path}")
    return self.send(500)

  do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

  def resolve(self, name, revision, file):
    hidden = name in self.hub.private and not self.is_me
    if hidden or name not in self.hub.repositories:
      return self.refuse(401, "RepoNotFound")
    if name in self.hub.gated:
      return self.refuse(403, "GatedRepo")
    version = self.hub.find(name, revision)
    if version is None:
      return self.refuse(404, "RevisionNotFound")
    number, files = version
    commit = f"{number:040}"
    if file not in files:
      return self.send(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
    content = files[file]
    if not file.endswith(LARGE):
      etag = f'"{hashlib.sha1(content).hexdigest()}"'
      return self.send(200, content, X_Repo_Commit=commit, ETag=etag)
    digest = hashlib.sha256(content).hexdigest()
    self.hub.objects[digest] = content
    linked = dict(X_Linked_Etag=f'"{digest}"', X_Linked_Size=str(len(content)))
    place = f"{self.hub.address.replace('127.0.0.1', 'localhost')}/objects/{digest}"
    return self.send(302, X_Repo_Commit=commit, Location=place, **linked)

  def send_object(self, digest, content):
    if self.command == "PUT":
      self.hub.objects[digest] = content
    return self.send(200, b"" if self.command == "PUT" else self.hub.objects[digest])

  def create(self, request):
    if request["organization"] != "me":
      return self.send(403, {"error": "You don't have the rights to create a model there."})
    name = f"me/{request['name']}"
    address = {"url": f"{self.hub.address}/{name}"}
    if name in self.hub.repositories:
      return self.send(409, address)
    self.hub.repositories[name] = [{}]
    if request.get("visibility") == "private":
      self.hub.private.add(name)
    return self.send(200, address)

  def preupload(self, name, content):
    files = json.loads(content)["files"]
    modes = {True: "lfs", False: "regular"}
    answers = [
      {"path": x["path"], "uploadMode": modes[x["path"].endswith(LARGE)], "shouldIgnore": False}
      for x in files
    ]
    return self.send(200, {"files": answers})

  def name_places(self, request):
    objects = [
      {**x, "actions": {"upload": {"href": f"{self.hub.address}/objects/{x['oid']}"}}}
      for x in request["objects"]
    ]
    return self.send(200, {"objects": objects, "transfer": "basic"})

  def commit(self, name, content):
    files = {}
    for line in content.splitlines():
      entry = json.loads(line)
      value = entry["value"]
      if entry["key"] == "file":
        files[value["path"]] = base64.b64decode(value["content"])
      elif entry["key"] == "lfsFile":
        files[value["path"]] = self.hub.objects[value["oid"]]
    self.hub.repositories[name].append(self.hub.repositories[name][-1] | files)
    number = len(self.hub.repositories[name]) - 1
    url = f"{self.hub.address}/{name}/commit/{number:040}"
    return self.send(200, {"success": True, "commitUrl": url, "commitOid": f"{number:040}"})


@contextmanager
def serving():
  """Yields a Hub that answers at its address until the context ends."""
  server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  server.daemon_threads = True
  server.hub = hub = Hub()
  hub.address = f"http://127.0.0.1:{server.server_port}"
  thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
  thread.start()
  try:
    yield hub
  finally:
    server.shutdown()
    thread.join()
    server.server_close()
  assert not hub.problems, hub.problems
