"""Messages between a driver and its workers: JSON, one record a line."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from ndld_flow.records.document import Record
from ndld_flow.records.run_record import StepRecord


class Line(Record):
    """A record that is written as one line."""

    def to_line(self) -> str:
        """Return the record as one line of JSON in Python's dialect, as settings may be infinite."""
        # A text that UTF-8 cannot encode, such as a broken file name, must not silence a worker.
        text = json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
        return f"{text}\n".encode("utf-8", "replace").decode()

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """Return the record that `to_line` wrote. Raises pydantic's ValidationError."""
        return cls.model_validate_json(line)


class Progressed(Line):
    """Progress of the step at a position in the task."""

    kind: Literal["progressed"] = "progressed"
    place: int
    done: int
    total: int
    what: str


class Logged(Line):
    """A line of the log of the step at a position in the task."""

    kind: Literal["logged"] = "logged"
    place: int
    text: str


class Waits(Line):
    """Another process is computing the same step."""

    kind: Literal["waits"] = "waits"
    name: str


class Started(Line):
    """All locks are held: from here on the time limit counts."""

    kind: Literal["started"] = "started"


class Done(Line):
    """The task is finished."""

    kind: Literal["done"] = "done"
    records: tuple[StepRecord, ...]


class Refused(Line):
    """The task ended with an error that the user can act on."""

    kind: Literal["refused"] = "refused"
    error: str
    """Name of its class in `ndld_flow.base.errors`."""
    text: str
    step: str = ""


class Failed(Line):
    """The task ended with a bug."""

    kind: Literal["failed"] = "failed"
    error: str
    text: str
    traceback: str


Answer = Done | Refused | Failed
Message = Annotated[Progressed | Logged | Waits | Started | Done | Refused | Failed, Field(discriminator="kind")]


@cache
def _messages() -> TypeAdapter[Progressed | Logged | Waits | Started | Answer]:
    return TypeAdapter(Message)


def read_message(line: bytes) -> Progressed | Logged | Waits | Started | Answer | None:
    """Return a worker's message; None for other text: a shell on another machine may print a greeting first."""
    try:
        return _messages().validate_json(line)
    except ValidationError:
        return None
