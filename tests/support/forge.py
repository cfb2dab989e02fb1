"""Stand-ins of `gh` and `glab` on the PATH, with a pull request and its comments, and with faults on request."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TOKEN = "forge-token-1234"  # noqa: S105 - of the stand-ins only


@dataclass
class Fault:
    """An answer in the place of the right one."""

    status: int
    message: str = ""
    method: str = ""
    """Only for requests of this method."""
    after: bool = False
    """True to carry out the request before the fault, as when an answer is lost."""


class Forge:
    """A pull request and its comments, in a file that the stand-ins read and write."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "programs"
        self.programs.mkdir()
        text = f"#!{sys.executable}\n{(Path(__file__).parent / 'gh_standin.py').read_text()}"
        for name in ("gh", "glab"):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)
        self._write({"comments": [], "account": "", "pulls": [], "faults": [], "calls": []})

    def _read(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.programs / "state.json").read_text())
        return state

    def _write(self, state: dict[str, Any]) -> None:
        (self.programs / "state.json").write_text(json.dumps(state))

    @property
    def comments(self) -> list[dict[str, Any]]:
        return list(self._read()["comments"])

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        return list(self._read()["calls"])

    def set(
        self, *, account: str | None = None, pulls: Sequence[dict[str, Any]] = (), faults: Sequence[Fault] = ()
    ) -> None:
        """Set the token's account (empty for the token of a GitHub job), open pull requests, and faults to come."""
        state = self._read()
        given = {"account": account, "pulls": pulls or None, "faults": [asdict(fault) for fault in faults] or None}
        self._write(state | {name: value for name, value in given.items() if value is not None})

    def add(self, body: str, author: str = "someone", kind: str = "User", count: int = 1) -> None:
        """Add comments of another account."""
        state = self._read()
        account = {"login": author, "username": author, "type": kind}
        for _ in range(count):
            number = len(state["comments"]) + 1
            known = {"user": account, "author": account, "html_url": f"https://forge/{number}"}
            state["comments"].append({"id": number, "body": body, **known})
        self._write(state)

    def environment(self, service: str) -> dict[str, str]:
        """Return the variables of a job on this server, for request 7."""
        path = {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}
        if service == "GitLab":
            return path | {
                "CI_API_V4_URL": "https://gitlab.example:8443/api/v4",
                "CI_MERGE_REQUEST_IID": "7",
                "CI_MERGE_REQUEST_PROJECT_ID": "12",
                "CI_PROJECT_PATH": "team/model",
                "CI_COMMIT_SHA": "c" * 40,
                "CI_JOB_URL": "https://gitlab.example:8443/job/1",
                "GITLAB_TOKEN": TOKEN,
            }
        return path | {
            "GITHUB_REPOSITORY": "team/model",
            "GITHUB_SERVER_URL": "https://github.example",
            "GITHUB_RUN_ID": "99",
            "GITHUB_EVENT_NAME": "pull_request",
            "GH_TOKEN": TOKEN,
        }
