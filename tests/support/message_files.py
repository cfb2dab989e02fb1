"""Whole messages, in one file of each room: `pytest --update-messages tests/graph` writes that of `tests/graph`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ndld_flow.base.text import shortened

_TEMPORARY = r"/(tmp\w+|ndld_flow-\w+-\w+|pytest-of-\w+/pytest-\d+(/popen-gw\d+)?/[\w.-]+)"
CheckMessage = Callable[[object], None]
FOUND = pytest.StashKey[list[str]]()
"""The messages that a test has checked."""
_VARIABLE = re.compile(
    "|".join(
        (
            r"((?<=127\.0\.0\.1:)|(?<=127\.0\.0\.1\]:)|(?<= port ))\d{4,}",
            r"(?<=\.model\.onnx\.)[0-9a-f]{8}",
            r"(?<=this machine has \()[^)]*",
            r"\b[0-9a-f]{64}\b",
            r"\b\d{8}T\d{6}Z-\w{6}\b",
            r"\S+(?=/site-packages/)",
            r"(?<=Python )3\.1\d\b|(?<=-)cp31\d|(?<= is )\d+\.\d+\.\d+(?= instead)",
            r"(?<=the bytes differ )\(.*?\)",
            r"((?<=ONNX Runtime )|(?<=OpenVINO )|(?<=but ))\d[\d.]+\d(; known: .*)?",
            r"(\[(ONNXRuntime|ShapeInference|TypeInference|Parse)Error\b|Non-zero status|This is an invalid|Fatal error"
            r"|(?<=failed:)(?=[A-Z])).*?(?= Its inputs|\)\. |$)",
        )
    ),
    re.MULTILINE,
)
"""Ports, digests, runs, where packages are installed, sizes of engines, versions, and what libraries write."""
UNUSED_MESSAGES = pytest.StashKey[list[str]]()
"""The cases in the files of collected rooms that no test has."""


class MessageFiles:
    """The plugin. A file has the messages of each test by its name and parameters, in the order of the checks."""

    def __init__(self, config: pytest.Config) -> None:
        self.rooms: dict[Path, dict[str, list[str]]] = {}
        self.update = config.option.update_messages
        if self.update:  # in one process, with the thorough and the slow tests
            config.option.dist, config.option.tx, config.option.markexpr = "no", [], ""

    def read(self, room: Path) -> dict[str, list[str]]:
        if room not in self.rooms:
            path = room / "messages.txt"
            entries = re.split(r"\n(?=\S)", path.read_text("utf-8").strip()) if path.exists() else []
            listed = (entry.split("\n  - ") for entry in entries)
            self.rooms[room] = {case: [*map(_without_numbers, messages)] for case, *messages in listed}
        return self.rooms[room]

    @pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[Any]) -> None:
        checking = [item for item in items if "check_message" in item.fixturenames]
        cases = {(item.path.parent, case_of(item)) for item in checking}
        modules = {item.path for item in items if "::" not in "".join(config.args)}
        config.stash[UNUSED_MESSAGES] = unused = []
        for room in sorted({module.parent for module in modules}):
            for case in [case for case in self.read(room) if (room, case) not in cases]:
                module = room / case.partition("::")[0]
                if module in modules or not module.exists():
                    unused.append(f"{room.name}/{case}")
                    del self.rooms[room][case]
        if self.update:
            items[:] = checking

    @pytest.fixture
    def check_message(self, request: pytest.FixtureRequest) -> CheckMessage:
        """`check_message(error)` compares with the next message in the file; temporary folders have no name there."""
        found = request.node.stash[FOUND] = list[str]()
        wanted = self.read(request.path.parent).get(case_of(request.node), [])
        folders = [re.escape(str(request.getfixturevalue("tmp_path")))] if "tmp_path" in request.fixturenames else []
        variable = re.compile(
            "|".join(
                [*folders, tempfile.gettempdir() + _TEMPORARY, re.escape(sys.prefix), str(request.config.rootpath)]
            )
        )

        def check(message: object) -> None:
            text = _VARIABLE.sub("<...>", variable.sub("<folder>", _text(message)))
            found.append(_without_numbers(text.strip().replace("\n", "\n    ")))
            difference = f"{found}\nis not the beginning of\n{wanted}; `pytest --update-messages` stores it"
            assert self.update or found == wanted[: len(found)], difference

        return check

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        yield  # raises where the test fails
        if FOUND in item.stash:
            stored, case, found = self.read(item.path.parent), case_of(item), item.stash[FOUND]
            if self.update:
                stored[case] = found
            assert found == stored.get(case, []), f"the test checks fewer messages than {stored[case]}"

    def pytest_sessionfinish(self) -> None:
        for room, stored in self.rooms.items() if self.update else ():
            entries = ("\n  - ".join([case, *stored[case]]) + "\n" for case in sorted(filter(stored.get, stored)))
            (room / "messages.txt").write_text("".join(entries), "utf-8")


def case_of(item: Any) -> str:
    """Return the name of a test with its parameters as JSON, or with its id where these are other objects."""
    try:
        parameters = json.dumps(item.callspec.params, ensure_ascii=False, default=_name)
        parts = re.sub(r'(\\.|[^"\\]){81,}', lambda part: shortened(part[0], 80), parameters)
        return f"{item.path.name}::{item.originalname} {parts}"
    except (AttributeError, TypeError):
        return f"{item.path.name}::{item.name}"


def _without_numbers(text: str) -> str:
    """Return a text without the numbers of folders and the interpreter's, which follow the tests that ran before."""
    text = re.sub(r"(?<=<folder>/)([a-z_]+)-\d+(?=/)", r"\1-N", text)
    return re.sub(r"((?<=/bin/)|(?<='))python3(\.\d+)?\b", "python", text)


def _name(value: Any) -> str:
    if value.__name__ == "<lambda>":
        raise TypeError("lambdas have no names")
    return str(value.__name__)


def _text(message: object) -> str:
    """Return the message, but of pydantic's errors only what it quotes of ours."""
    if not isinstance(message, ValidationError):
        return str(message)
    problems = [(".".join(map(str, problem["loc"])), problem) for problem in message.errors()]
    texts = [(place, str(problem.get("ctx", {}).get("error", problem["type"]))) for place, problem in problems]
    return "; ".join(": ".join(filter(None, text)) for text in texts)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option that writes the files."""
    parser.addoption("--update-messages", action="store_true", help="store the messages that tests check")
