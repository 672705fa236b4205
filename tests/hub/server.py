"""The server: the part of the Hub's HTTP protocol that `huggingface_hub` speaks to load things.

Covered, for data sets (`/api/datasets/ID`, `/datasets/ID/resolve`) and models (`/api/models/ID`,
`/ID/resolve`): repository information with and without a revision, the tree, paths-info, and the
files themselves (HEAD, GET, ranges).  Files are answered in place, never redirected to a content
network and never announced as Xet files.  Everything else is a 404 in the Hub's manner.
"""

import hashlib
import json
import os
import re
import threading
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

_LFS_SUFFIXES = {".parquet", ".safetensors"}
_DATE = "2024-01-04T17:14:53.000Z"
_API = re.compile(
    r"/api/(datasets|models)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+))?(.*)"
)
_RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def _git_id(kind: str, content: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(content)) + content).hexdigest()


class HubError(Exception):
    """A refusal, with the code by which the clients tell one from another."""

    def __init__(self, code: str, message: str, commit: str | None = None) -> None:
        super().__init__(message)
        self.headers = {"X-Error-Code": code, "X-Error-Message": message}
        if commit is not None:
            self.headers["X-Repo-Commit"] = commit


@dataclass(frozen=True)
class RepoFile:
    """One file, with the identifiers that git and git-lfs would give it."""

    path: str
    content: bytes

    @property
    def lfs(self) -> dict[str, Any] | None:
        if PurePosixPath(self.path).suffix not in _LFS_SUFFIXES:
            return None
        sha256 = hashlib.sha256(self.content).hexdigest()
        return {"oid": sha256, "size": len(self.content), "pointerSize": len(self._pointer(sha256))}

    @property
    def oid(self) -> str:
        lfs = self.lfs
        return _git_id("blob", self._pointer(lfs["oid"]) if lfs else self.content)

    @property
    def etag(self) -> str:
        lfs = self.lfs
        return lfs["oid"] if lfs else self.oid

    def _pointer(self, sha256: str) -> bytes:
        size = len(self.content)
        lines = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
        return lines.encode()

    def entry(self) -> dict[str, Any]:
        """The file as the tree and paths-info endpoints describe it."""
        entry = {"type": "file", "path": self.path, "size": len(self.content), "oid": self.oid}
        return entry | ({"lfs": self.lfs} if self.lfs else {})

    def sibling(self, blobs: bool) -> dict[str, Any]:
        """The file as the repository's information lists it."""
        sibling: dict[str, Any] = {"rfilename": self.path}
        if blobs:
            sibling |= {"size": len(self.content), "blobId": self.oid}
            if lfs := self.lfs:
                sibling["lfs"] = {**lfs, "sha256": lfs["oid"]}
        return sibling


class Repository:
    """A folder served as a repository with the single branch `main` and a single commit."""

    def __init__(self, kind: str, repo_id: str, directory: Path) -> None:
        self.kind = kind  # "datasets" or "models"
        self.id = repo_id
        self.files = {
            name: RepoFile(name, path.read_bytes())
            for path in sorted(directory.rglob("*"))
            if path.is_file() and (name := path.relative_to(directory).as_posix())
        }
        listing = "".join(f"{file.oid} {file.path}\n" for file in self.files.values())
        self.commit = _git_id("commit", f"{repo_id}\n{listing}".encode())
        self.folders = {
            str(parent): {
                "type": "directory",
                "path": str(parent),
                "size": 0,
                "oid": _git_id("tree", f"{parent}\n{listing}".encode()),
            }
            for name in self.files
            for parent in PurePosixPath(name).parents
            if parent.name
        }

    def check(self, revision: str) -> None:
        if revision not in ("main", "refs/heads/main", self.commit):
            raise HubError("RevisionNotFound", f"Invalid rev id: {revision}", self.commit)

    def file(self, path: str) -> RepoFile:
        if path not in self.files:
            raise HubError("EntryNotFound", "Entry not found", self.commit)
        return self.files[path]

    def info(self, blobs: bool) -> dict[str, Any]:
        return {
            "id": self.id,
            "author": self.id.split("/")[0],
            "sha": self.commit,
            "createdAt": _DATE,
            "lastModified": _DATE,
            "private": False,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [file.sibling(blobs) for file in self.files.values()],
        }

    def entries(self, expand: bool) -> list[dict[str, Any]]:
        entries = [*self.folders.values(), *(file.entry() for file in self.files.values())]
        last = {"lastCommit": {"id": self.commit, "title": "Upload", "date": _DATE}}
        return [entry | last if expand else entry for entry in entries]

    def tree(self, folder: str, recursive: bool, expand: bool) -> list[dict[str, Any]]:
        if folder and folder not in self.folders:
            raise HubError("EntryNotFound", f"{folder} does not exist", self.commit)
        prefix = f"{folder}/" if folder else ""
        return [
            entry
            for entry in self.entries(expand)
            if entry["path"].startswith(prefix)
            and (recursive or "/" not in entry["path"].removeprefix(prefix))
        ]


class Hub:
    """The running server; close it, or use it as a context manager."""

    def __init__(self, root: Path, port: int = 0) -> None:
        self.repositories: dict[str, Repository] = {}
        for directory in sorted(root.glob("*/*/*")):
            kind, owner, name = directory.relative_to(root).parts
            repo_id = f"{owner}/{name}"
            self.repositories[repo_id] = Repository(kind, repo_id, directory)
        if not self.repositories:
            raise ValueError(f"no repositories in {root}: has build_repositories made it?")
        self.requests: list[tuple[str, str]] = []
        self._downloads: dict[str, Counter[str]] = {name: Counter() for name in self.repositories}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def downloads(self, repo_id: str) -> Counter[str]:
        """How many times each file of a repository was sent, whole or in part."""
        with self._lock:
            return Counter(self._downloads[repo_id])

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of a client that keeps its caches in `home` and knows no other Hub.

        The server is also named as the proxy for every other host.  It forwards nothing, so that
        what would leave the machine shows in `requests` instead, as a CONNECT or with a full URL.
        """
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_"))
            and not name.lower().endswith("_proxy")
        }
        loopback = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")
        proxies = dict.fromkeys(
            ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), self.url
        )
        return (
            environment
            | loopback
            | proxies
            | {
                "HF_ENDPOINT": self.url,
                "HF_HOME": str(home),
                "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            }
        )

    def repository(self, kind: str, repo_id: str) -> Repository:
        repository = self.repositories.get(repo_id)
        if repository is None or repository.kind != kind:
            raise HubError("RepoNotFound", "Repository not found")
        return repository

    def record_request(self, method: str, target: str) -> None:
        with self._lock:
            self.requests.append((method, target))

    def record_download(self, repo_id: str, path: str) -> None:
        with self._lock:
            self._downloads[repo_id][path] += 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    # Headers and body leave in one packet: written apart, each answer waits 40 ms for an ACK.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_CONNECT(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: the requests are recorded."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.hub.record_request(self.command, self.path)
        try:
            if not self._api(body) and not self._resolve():
                raise HubError("NotFound", f"{self.command} {self.path} is not served here")
        except HubError as error:
            self._json({"error": str(error)}, HTTPStatus.NOT_FOUND, error.headers)

    def _api(self, body: bytes) -> bool:
        url = urlsplit(self.path)
        match = _API.fullmatch(url.path)
        if match is None or url.netloc:
            return False
        kind, repo_id, endpoint, revision, path = match.groups()
        path = unquote(path).strip("/")
        form = parse_qs(body.decode() if endpoint == "paths-info" else url.query)
        flags = {name for name, values in form.items() if values[-1].lower() in ("true", "1")}
        repository = self.server.hub.repository(kind, repo_id)
        repository.check(unquote(revision or "main"))
        if (self.command == "POST") != (endpoint == "paths-info"):
            return False
        if endpoint == "tree":
            self._json(repository.tree(path, "recursive" in flags, "expand" in flags))
        elif path:
            return False
        elif endpoint == "paths-info":
            wanted = {name.strip("/") for name in form.get("paths", [])}
            entries = repository.entries("expand" in flags)
            self._json([entry for entry in entries if entry["path"] in wanted])
        else:
            self._json(repository.info("blobs" in flags))
        return True

    def _resolve(self) -> bool:
        url = urlsplit(self.path)
        match = _RESOLVE.fullmatch(url.path)
        if match is None or url.netloc or self.command not in ("HEAD", "GET"):
            return False
        prefix, repo_id, revision, path = match.groups()
        repository = self.server.hub.repository("datasets" if prefix else "models", repo_id)
        repository.check(unquote(revision))
        file = repository.file(unquote(path))
        headers = {
            "X-Repo-Commit": repository.commit,
            "ETag": f'"{file.etag}"',
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.content))}
        size = len(file.content)
        wanted = self._range(size)
        if wanted is None:
            status, body = HTTPStatus.OK, file.content
        elif wanted:
            status, body = HTTPStatus.PARTIAL_CONTENT, file.content[wanted.start : wanted.stop]
            headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
        else:
            status, body = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b""
            headers["Content-Range"] = f"bytes */{size}"
        if self.command == "GET" and status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            self.server.hub.record_download(repo_id, file.path)
        self._send(status, headers, body)
        return True

    def _range(self, size: int) -> range | None:
        """The bytes asked for: None for all of them, empty for a range the file does not have."""
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        if match is None or not any(match.groups()):
            return None
        first, last = match.groups()
        if not first:
            return range(max(size - int(last), 0), size)
        return range(int(first), min(int(last) + 1, size) if last else size)

    def _json(
        self,
        answer: object,
        status: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> None:
        headers = {"Content-Type": "application/json; charset=utf-8", **(headers or {})}
        self._send(status, headers, json.dumps(answer).encode())

    def _send(self, status: HTTPStatus, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def serve(root: Path, port: int = 0) -> Hub:
    """Serve the repositories in `root`, as `build_repositories` lays them out."""
    return Hub(root, port)
