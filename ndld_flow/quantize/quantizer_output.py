"""Capture of the warnings and prints of ONNX Runtime's quantizer."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator

_LOCK = threading.RLock()


class _WarningCollector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def captured_output() -> Iterator[list[str]]:
    """Collect warnings of the root logger and drop printed output; restore the logger afterwards.

    The quantizer prints, and logs to the root logger, which would configure itself for the terminal.
    """
    root, collector = logging.getLogger(), _WarningCollector()
    with _LOCK, contextlib.redirect_stdout(io.StringIO()):
        before, root.handlers[:] = list(root.handlers), [collector]
        try:
            yield collector.lines
        finally:
            root.handlers[:] = before
