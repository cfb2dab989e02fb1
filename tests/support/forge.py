"""A server that behaves like the comment APIs of GitHub and GitLab, with faults on request."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit

PAGE = 100
TOKEN = "forge-token-1234"  # noqa: S105 - of this server only


@dataclass
class Fault:
    """An answer in the place of the right one."""

    code: int
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = ""
    """Only for requests of this method."""
    after: bool = False
    """True to carry out the request before the fault, as when an answer is lost."""


@dataclass
class Forge:
    """A pull request and its comments on a running server."""

    api: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    account: str = ""
    """The token's account; empty for the token of a GitHub job, which cannot ask for its own."""
    pulls: list[dict[str, Any]] = field(default_factory=list)
    most: int = 65_536
    """Characters of a comment."""

    def add(self, body: str, author: str = "someone", kind: str = "User") -> dict[str, Any]:
        number = len(self.comments) + 1
        account = {"login": author, "username": author, "type": kind}
        comment = {
            "id": number,
            "body": body,
            "user": account,
            "author": account,
            "html_url": f"https://forge/{number}",
        }
        self.comments.append(comment)
        return comment

    def environment(self, service: str, number: int = 7) -> dict[str, str]:
        """Return the variables of a job on this server."""
        if service == "GitLab":
            return {
                "CI_API_V4_URL": f"{self.api}/api/v4",
                "CI_MERGE_REQUEST_IID": str(number),
                "CI_MERGE_REQUEST_PROJECT_ID": "12",
                "CI_PROJECT_PATH": "team/model",
                "CI_COMMIT_SHA": "c" * 40,
                "CI_JOB_URL": f"{self.api}/job/1",
                "GITLAB_TOKEN": TOKEN,
            }
        return {
            "GITHUB_REPOSITORY": "team/model",
            "GITHUB_API_URL": self.api,
            "GITHUB_SERVER_URL": self.api,
            "GITHUB_RUN_ID": "99",
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_TOKEN": TOKEN,
        }


class _Handler(BaseHTTPRequestHandler):
    forge: Forge

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.forge.requests.append(f"{self.command} {self.path}")
        fault = next((each for each in self.forge.faults if each.method in ("", self.command)), None)
        if fault is None or fault.after:
            code, answer, headers = self._right(json.loads(body) if body else {})
        if fault is not None:
            self.forge.faults.remove(fault)
            code, answer, headers = fault.code, {"message": fault.message}, fault.headers
        text = json.dumps(answer).encode()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def _right(self, sent: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        is_gitlab = self.path.startswith("/api/v4/")
        if TOKEN not in (self.headers.get("PRIVATE-TOKEN"), (self.headers.get("Authorization") or "")[7:]):
            return 401, {"message": "Bad credentials"}, {}
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/api/v4")
        if path == "/user":
            known = {"login": self.forge.account, "username": self.forge.account}
            return (200, known, {}) if self.forge.account else (403, {"message": "Resource not accessible"}, {})
        if path == "/repos/team/model/pulls":
            return 200, self.forge.pulls, {}
        listing = "/projects/12/merge_requests/7/notes" if is_gitlab else "/repos/team/model/issues/7/comments"
        single = listing if is_gitlab else "/repos/team/model/issues/comments"
        if len(sent.get("body", "")) > self.forge.most:
            return 422, {"message": "Body is too long"}, {}
        if path == listing and self.command == "POST":
            author = self.forge.account or "github-actions[bot]"
            return 201, self._shown(self.forge.add(sent["body"], author, "User" if self.forge.account else "Bot")), {}
        if path == listing and self.command == "GET":
            return self._page(listing, int(parse_qs(parts.query).get("page", ["1"])[0]), is_gitlab)
        result = [each for each in self.forge.comments if path == f"{single}/{each['id']}"]
        if result and self.command == ("PUT" if is_gitlab else "PATCH"):
            result[0]["body"] = sent["body"]
            return 200, self._shown(result[0]), {}
        return 404, {"message": "Not Found"}, {}

    def _page(self, listing: str, page: int, is_gitlab: bool) -> tuple[int, Any, dict[str, str]]:
        start = (page - 1) * PAGE
        rest = self.forge.comments[start + PAGE :]
        prefix = "/api/v4" if is_gitlab else ""
        link = f'<{self.forge.api}{prefix}{listing}?per_page=100&page={page + 1}>; rel="next"'
        shown = [self._shown(each) for each in self.forge.comments[start : start + PAGE]]
        return 200, shown, {"Link": link} if rest else {}

    def _shown(self, comment: dict[str, Any]) -> dict[str, Any]:
        unknown = ("html_url", "user") if self.path.startswith("/api/v4/") else ("author",)
        return {name: value for name, value in comment.items() if name not in unknown}


@contextmanager
def running_forge() -> Iterator[Forge]:
    """Start a server on a free port of this machine, and stop it."""
    forge = Forge()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"forge": forge}))
    forge.api = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with mock.patch.dict(os.environ, {"no_proxy": "127.0.0.1"}):
            yield forge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
