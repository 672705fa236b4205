"""The server: the part of the Hub's HTTP protocol that `huggingface_hub` uses for files.

Downloads, for data sets (`/api/datasets/ID`, `/datasets/ID/resolve`) and models (`/api/models/ID`,
`/ID/resolve`): repository information with and without a revision, the tree, paths-info, and whole
files (HEAD, GET). All files are plain git blobs. Uploads: whoami, create, validate-yaml, preupload,
LFS (basic, without Xet) and commit, by the tokens in `TOKENS`. Other requests get a 404.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections import Counter, defaultdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_DATE = "2024-01-04T17:14:53.000Z"
#: The user and the role of each token.
TOKENS = {"hf_write": ("me", "write"), "hf_read": ("me", "read"), "hf_other": ("other", "write")}
_ENDPOINTS = "revision|tree|paths-info|preupload|commit"
_API = re.compile(rf"/api/(datasets|models)/([^/]+/[^/]+)(?:/({_ENDPOINTS})/([^/]+))?(.*)")
_LFS = re.compile(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch")
_RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


def _git_id(kind: str, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content).hexdigest()


class HubError(Exception):
    """An HTTP error with the error code that clients check."""

    def __init__(self, code: str, message: str, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Code": code, "X-Error-Message": message}


class Repository:
    """Files that are served as a repository with one branch, `main`, and its last commit."""

    def __init__(self, kind: str, repo_id: str, files: dict[str, bytes], private: bool) -> None:
        self.kind = kind  # "datasets" or "models"
        self.id = repo_id
        self.private = private
        self.lfs: set[str] = set()  # the names of files that were uploaded by LFS
        self.commit_files(files)

    @classmethod
    def of_folder(cls, kind: str, repo_id: str, directory: Path) -> Self:
        paths = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        files = {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}
        return cls(kind, repo_id, files, private=False)

    def commit_files(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.ids = {name: _git_id("blob", content) for name, content in self.files.items()}
        self.commit = _git_id("commit", f"{self.id} {self.ids}".encode())
        folders = {str(parent) for name in self.files for parent in PurePosixPath(name).parents}
        self.entries = [
            {"type": "directory", "path": folder, "size": 0, "oid": self.commit}
            for folder in sorted(folders - {"."})
        ] + [
            {"type": "file", "path": name, "size": len(content), "oid": self.ids[name]}
            for name, content in self.files.items()
        ]

    def check(self, revision: str) -> None:
        if revision not in ("main", "refs/heads/main", self.commit):
            raise HubError("RevisionNotFound", f"Invalid rev id: {revision}")

    def info(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "sha": self.commit,
            "createdAt": _DATE,
            "lastModified": _DATE,
            "private": self.private,
            "gated": False,
            "tags": [],
            "siblings": [{"rfilename": name} for name in self.files],
        }

    def upload_mode(self, name: str) -> dict[str, Any]:
        is_lfs = name.endswith((".safetensors", ".onnx"))
        oid = self.ids.get(name)
        if oid and name in self.lfs:
            oid = hashlib.sha256(self.files[name]).hexdigest()
        mode = "lfs" if is_lfs else "regular"
        return {"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        if folder and folder not in [entry["path"] for entry in self.entries]:
            raise HubError("EntryNotFound", f"{folder} does not exist")
        prefix = f"{folder}/" if folder else ""
        return [
            entry
            for entry in self.entries
            if entry["path"].startswith(prefix)
            and (recursive or "/" not in entry["path"].removeprefix(prefix))
        ]


class Hub:
    """The running server; close it, or use it as a context manager.

    Attributes:
        requests: Method and path of each request.
    """

    def __init__(self, root: Path) -> None:
        self.repositories: dict[str, Repository] = {}
        for directory in sorted(root.glob("*/*/*")):
            kind, owner, name = directory.relative_to(root).parts
            repo_id = f"{owner}/{name}"
            self.repositories[repo_id] = Repository.of_folder(kind, repo_id, directory)
        self.uploads: dict[str, bytes] = {}  # by LFS, by sha256
        self.breaks_at = ""  # the connection is closed at requests whose path has this
        self.requests: list[tuple[str, str]] = []
        self._downloads: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def downloads(self, repo_id: str) -> Counter[str]:
        """Return how many times each file of a repository was sent."""
        return Counter(self._downloads[repo_id])

    def record_download(self, repo_id: str, path: str) -> None:
        self._downloads[repo_id][path] += 1

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of a client that uses only this Hub and has its caches in `home`.

        The server is also the proxy for all other hosts. It forwards nothing, so requests that
        would leave the machine are in `requests`, as a CONNECT or with a full URL.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_"))
            and not name.lower().endswith("_proxy")
        }
        proxies = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        return (
            environment
            | dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")
            | dict.fromkeys(proxies, self.url)
            | {
                "HF_ENDPOINT": self.url,
                "HF_HOME": str(home),
                "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            }
        )

    def repository(self, kind: str, repo_id: str, user: str | None = None) -> Repository:
        repository = self.repositories.get(repo_id)
        is_hidden = repository is not None and repository.private and user != repo_id.split("/")[0]
        if repository is None or repository.kind != kind or is_hidden:
            raise HubError("RepoNotFound", "Repository not found")
        return repository


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    # Headers and body are sent in one packet: sent separately, each answer waits 40 ms for an ACK.
    wbufsize = -1
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub = self.server.hub
        hub.requests.append((self.command, self.path))
        if hub.breaks_at and hub.breaks_at in self.path:
            self.close_connection = True
            return
        try:
            if not self._api(body) and not self._resolve() and not self._upload(body):
                raise HubError("NotFound", f"{self.command} {self.path} is not served here")
        except HubError as error:
            content = json.dumps({"error": str(error)}).encode()
            self._send(content, error.status, error.headers)

    do_HEAD = do_GET = do_POST = do_PUT = do_CONNECT = _answer

    @property
    def _token(self) -> tuple[str | None, str]:
        """The user and the role of the token in the request."""
        header = self.headers.get("Authorization", "")
        if header and header.removeprefix("Bearer ") not in TOKENS:
            message = "Invalid credentials in Authorization header"
            raise HubError("", message, HTTPStatus.UNAUTHORIZED)
        return TOKENS.get(header.removeprefix("Bearer "), (None, ""))

    def _require_write(self, owner: str) -> None:
        if self._token != (owner, "write"):
            raise HubError("", f"You cannot write to {owner}", HTTPStatus.FORBIDDEN)

    def _upload(self, body: bytes) -> bool:
        """Answer requests that are not about the files of a repository: whoami, create, LFS."""
        hub = self.server.hub
        user, role = self._token
        answer: object = {}
        if self.path == "/api/whoami-v2":
            if user is None:
                raise HubError("", "Invalid username or password.", HTTPStatus.UNAUTHORIZED)
            answer = {"name": user, "type": "user", "auth": {"accessToken": {"role": role}}}
        elif self.path == "/api/repos/create":
            request = json.loads(body)
            owner = request["organization"] or user
            self._require_write(owner)
            repo_id, private = f"{owner}/{request['name']}", request["visibility"] == "private"
            hub.repositories[repo_id] = Repository("models", repo_id, {}, private)
            answer = {"url": f"{hub.url}/{repo_id}"}
        elif self.path == "/api/validate-yaml":
            answer = {"errors": [], "warnings": []}
        elif match := _LFS.fullmatch(self.path):
            self._require_write(match[1].split("/")[0])
            answer = {"objects": [self._lfs_object(entry) for entry in json.loads(body)["objects"]]}
        elif self.command == "PUT" and self.path.startswith("/lfs/"):
            digest = self.path.removeprefix("/lfs/")
            if hashlib.sha256(body).hexdigest() != digest:
                raise HubError("", "not the content that was announced", HTTPStatus.BAD_REQUEST)
            hub.uploads[digest] = body
        else:
            return False
        self._send(json.dumps(answer).encode())
        return True

    def _lfs_object(self, entry: dict[str, Any]) -> dict[str, Any]:
        if entry["oid"] in self.server.hub.uploads:
            return entry
        upload = {"href": f"{self.server.hub.url}/lfs/{entry['oid']}", "header": {}}
        return {**entry, "actions": {"upload": upload}}

    def _commit(self, repository: Repository, body: bytes) -> dict[str, str]:
        """Apply the lines of a commit, all or none."""
        files, lfs = dict(repository.files), set(repository.lfs)
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.hub.uploads[value["oid"]]
                lfs.add(value["path"])
        repository.commit_files(files)
        repository.lfs = lfs
        url = f"{self.server.hub.url}/{repository.id}/commit/{repository.commit}"
        return {"commitUrl": url, "commitOid": repository.commit}

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the requests are recorded."""

    def _api(self, body: bytes) -> bool:
        url = urlsplit(self.path)
        match = _API.fullmatch(url.path)
        if match is None or url.netloc:
            return False
        kind, repo_id, endpoint, revision, path = match.groups()
        repository = self.server.hub.repository(kind, repo_id, self._token[0])
        repository.check(unquote(revision or "main"))
        answer: object = repository.info()
        if endpoint in ("preupload", "commit"):
            self._require_write(repo_id.split("/")[0])
        if endpoint == "tree":
            is_recursive = "recursive=true" in url.query.lower()
            answer = repository.tree(unquote(path).strip("/"), is_recursive)
        elif endpoint == "paths-info":
            paths = {name.strip("/") for name in parse_qs(body.decode()).get("paths", [])}
            answer = [entry for entry in repository.entries if entry["path"] in paths]
        elif endpoint == "preupload":
            names = [entry["path"] for entry in json.loads(body)["files"]]
            answer = {"files": [repository.upload_mode(name) for name in names]}
        elif endpoint == "commit":
            answer = self._commit(repository, body)
        elif path:
            return False
        self._send(json.dumps(answer).encode())
        return True

    def _resolve(self) -> bool:
        url = urlsplit(self.path)
        match = _RESOLVE.fullmatch(url.path)
        if match is None or url.netloc:
            return False
        prefix, repo_id, revision, path = match.groups()
        kind = "datasets" if prefix else "models"
        repository = self.server.hub.repository(kind, repo_id, self._token[0])
        repository.check(unquote(revision))
        name = unquote(path)
        if name not in repository.files:
            raise HubError("EntryNotFound", "Entry not found")
        if self.command == "GET":
            self.server.hub.record_download(repo_id, name)
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{repository.ids[name]}"'}
        self._send(repository.files[name], headers=headers)
        return True

    def _send(
        self,
        body: bytes,
        status: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def serve(root: Path) -> Hub:
    """Serve the repositories in `root`, as written by `build_repositories`."""
    return Hub(root)
