"""What a driver and its workers write to each other: JSON, one record a line."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from ndld_flow.records.base import Record
from ndld_flow.records.step_record import StepRecord


class Line(Record):
    """A record that is one line."""

    def to_line(self) -> str:
        """JSON as Python writes it, as settings may be infinite, with its line end."""
        # What UTF-8 cannot carry, such as a file's name that is none, must not silence a worker.
        text = json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
        return f"{text}\n".encode("utf-8", "replace").decode()

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """The record that `to_line` wrote. Raises pydantic's ValidationError."""
        return cls.model_validate_json(line)


class Progressed(Line):
    """How far the step at a place in the task is."""

    said: Literal["progressed"] = "progressed"
    place: int
    done: int
    total: int
    what: str


class Logged(Line):
    """A line of the log of the step at a place in the task."""

    said: Literal["logged"] = "logged"
    place: int
    text: str


class Waits(Line):
    """Another process computes the same step."""

    said: Literal["waits"] = "waits"
    name: str


class Begins(Line):
    """All that must be held is held: from here on the time counts."""

    said: Literal["begins"] = "begins"


class Done(Line):
    """The task is done."""

    said: Literal["done"] = "done"
    records: tuple[StepRecord, ...]


class Refused(Line):
    """The task ended with an error that a person can act on."""

    said: Literal["refused"] = "refused"
    error: str
    """Name of its class in `ndld_flow.base.errors`."""
    text: str


class Failed(Line):
    """The task ended with a bug."""

    said: Literal["failed"] = "failed"
    error: str
    text: str
    traceback: str


Answer = Done | Refused | Failed
Message = Annotated[Progressed | Logged | Waits | Begins | Done | Refused | Failed, Field(discriminator="said")]


@cache
def _messages() -> TypeAdapter[Progressed | Logged | Waits | Begins | Answer]:
    return TypeAdapter(Message)


def read_message(line: bytes) -> Progressed | Logged | Waits | Begins | Answer | None:
    """What a worker says; None where it is something else: a shell on another machine may greet first."""
    try:
        return _messages().validate_json(line)
    except ValidationError:
        return None
