"""Messages between a process and those that it starts: records as JSON, one on each line."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from typing import Self

from ndld_flow.processes.worker import claim_output
from ndld_flow.records.document import StrictRecord

MAX_LINE_BYTES = 2**28
"""Size limit of a message, which is read into memory: a record may contain a log and the change of a large model."""


class Line(StrictRecord):
    """A record that is written as one line."""

    def to_line(self) -> str:
        """Return the record as one line of JSON in Python's dialect, as settings may be infinite."""
        # A string that UTF-8 cannot encode, such as a broken file name, must not silence a worker.
        text = json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
        return f"{text}\n".encode("utf-8", "replace").decode()

    @classmethod
    def from_line(cls, line: str | bytes) -> Self:
        """Return the record that `to_line` wrote. Raises pydantic's ValidationError."""
        return cls.model_validate_json(line)


class Output:
    """Standard output of a worker, to which only whole messages are written, by any thread."""

    def __init__(self) -> None:
        """Claim it: from now on libraries print to standard error."""
        self._file = os.fdopen(claim_output(), "wb")
        self._lock = threading.Lock()

    def send(self, line: Line, data: Iterable[bytes] = ()) -> None:
        """Write a message, and the bytes that belong to it."""
        with self._lock:
            self._file.write(line.to_line().encode())
            for chunk in data:
                self._file.write(chunk)
            self._file.flush()
