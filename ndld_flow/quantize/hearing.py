"""What ONNX Runtime's quantizer prints and logs, heard instead of shown."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Iterator

_ONE_AT_A_TIME = threading.RLock()


class _Collecting(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Collect what is logged to the root logger, and drop what is printed; the logger is left as it was.

    The quantizer logs to the root logger, which would set itself up on the terminal, and prints.
    """
    root, ours = logging.getLogger(), _Collecting()
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(io.StringIO()):
        before, root.handlers[:] = list(root.handlers), [ours]
        try:
            yield ours.lines
        finally:
            root.handlers[:] = before
