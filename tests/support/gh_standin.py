"""`gh api` and `glab api`, as far as `comment` calls them: the program that `forge.py` installs under both names.

https://cli.github.com/manual/gh_api and https://docs.gitlab.com/cli/api/ document the options and the output. Comments
are kept in `state.json` next to the program.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

STATE = Path(sys.argv[0]).parent / "state.json"
IS_GITHUB = Path(sys.argv[0]).name == "gh"


class Refused(Exception):
    """The server answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("verb", choices=["api"])
    parser.add_argument("endpoint")
    parser.add_argument("--hostname", default="github.com" if IS_GITHUB else "gitlab.com")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--input")
    parser.add_argument("--paginate", action="store_true")
    return parser.parse_args()


def shown(comment: dict[str, Any]) -> dict[str, Any]:
    """Return a comment with the fields of the service."""
    unknown = ("author",) if IS_GITHUB else ("html_url", "user")
    return {name: value for name, value in comment.items() if name not in unknown}


def add(state: dict[str, Any], body: str) -> dict[str, Any]:
    number = len(state["comments"]) + 1
    name, kind = (state["account"], "User") if state["account"] else ("github-actions[bot]", "Bot")
    account = {"login": name, "username": name, "type": kind}
    url = f"https://forge/{number}"
    state["comments"].append({"id": number, "body": body, "user": account, "author": account, "html_url": url})
    added: dict[str, Any] = state["comments"][-1]
    return added


def answer(state: dict[str, Any], request: argparse.Namespace, body: str) -> list[Any]:
    """Return what the API answers: one document for each page."""
    parts = urlsplit(request.endpoint)
    if parts.path == "user":
        if not state["account"]:
            raise Refused(403, "Resource not accessible by integration")
        return [{"login": state["account"], "username": state["account"]}]
    if parts.path == "repos/team/model/pulls":
        return [state["pulls"]]
    listing = "repos/team/model/issues/7/comments" if IS_GITHUB else "projects/12/merge_requests/7/notes"
    single = "repos/team/model/issues/comments" if IS_GITHUB else listing
    if request.method == "GET" and parts.path == listing:
        size = int(parse_qs(parts.query).get("per_page", ["30"])[0])
        pages = [state["comments"][start : start + size] for start in range(0, len(state["comments"]), size)] or [[]]
        return [[shown(comment) for comment in page] for page in (pages if request.paginate else pages[:1])]
    return [shown(change(state, request, body, parts.path == listing, single))]


def change(state: dict[str, Any], request: argparse.Namespace, body: str, is_new: bool, single: str) -> dict[str, Any]:
    """Add or change a comment."""
    if "Content-Type: application/json" not in request.header:
        raise Refused(400, "body is missing")
    if len(body) > 65_536:
        raise Refused(422, "Body is too long")
    if request.method == "POST" and is_new:
        return add(state, body)
    own = [comment for comment in state["comments"] if request.endpoint == f"{single}/{comment['id']}"]
    if not own or request.method != ("PATCH" if IS_GITHUB else "PUT"):
        raise Refused(404, "Not Found")
    changed: dict[str, Any] = own[0]
    changed["body"] = body
    return changed


def main() -> int:
    request = parse()
    body = json.load(sys.stdin)["body"] if request.input == "-" else ""
    if not os.environ.get("GH_TOKEN" if IS_GITHUB else "GITLAB_TOKEN"):
        if IS_GITHUB:
            print("gh: To use GitHub CLI in a GitHub Actions workflow, set GH_TOKEN.", file=sys.stderr)
            return 4
        print("glab: 401 Unauthorized (HTTP 401)", file=sys.stderr)
        return 1
    state = json.loads(STATE.read_text())
    state["calls"].append(sys.argv)
    fault = next((fault for fault in state["faults"] if fault["method"] in ("", request.method)), None)
    try:
        if fault is not None:
            state["faults"].remove(fault)
            if fault["after"]:
                answer(state, request, body)
            raise Refused(fault["status"], fault["message"])
        pages = answer(state, request, body)
    except Refused as refused:
        print(json.dumps({"message": str(refused)}))
        print(f"{Path(sys.argv[0]).name}: {refused} (HTTP {refused.status})", file=sys.stderr)
        return 1
    finally:
        STATE.write_text(json.dumps(state))
    if IS_GITHUB and request.paginate and isinstance(pages[0], list):  # `gh` joins the pages, and `glab` does not
        pages = [[item for page in pages for item in page]]
    print("".join(map(json.dumps, pages)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
